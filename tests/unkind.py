"""Runs the tests where they like it least, one condition after the other, and prints who passed: `make unkind`.

unkind.py [--suite SUITE] [-k WORD] [CONDITION …]: everything when nothing is named; "five at once" is five of them together. Needs root for the boots and for the
ordinary user; a condition that cannot be had here is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = [
    f"--ignore=tests/incidents/test_agent_{name}.py" for name in ("programs", "torch", "silence", "leaks")
]
SUITES = {
    "unit": ["tests/unit", "-n", "2", "--dist", "loadfile"],
    "incidents": ["tests/incidents", *PROGRAMS, "-n", "3", "--dist", "worksteal"],
}
KINDS = ("passed", "skipped", "failed")
NOBODY = "65534"


@dataclass
class Setting:
    """How the tests are started under one condition."""

    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    words: list[str] = field(default_factory=list)


class NotHere(Exception):
    """The condition cannot be had on this machine; the text says why."""


@contextmanager
def random_order(scratch: Path) -> Iterator[Setting]:
    seed = random.randrange(1_000_000)
    print(f"random order: --random-order-seed={seed}", flush=True)
    yield Setting(words=["--random-order-bucket=global", f"--random-order-seed={seed}"])


def booted(seconds_ago: float) -> Callable[[Path], AbstractContextManager[Setting]]:
    """A time namespace whose clocks began then. The kernel's log keeps its own clock, so it is out of reach there."""

    def condition(scratch: Path) -> Iterator[Setting]:
        shift = int(seconds_ago - float(Path("/proc/uptime").read_text().split()[0]))
        closed = str(scratch / "closed")
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(closed)  # whoever opens a socket as a file is refused, root too
            hide = f'! test -e /dev/kmsg || mount --bind {shlex.quote(closed)} /dev/kmsg; exec "$@"'
            clocks = ["--time", f"--boottime={shift}", f"--monotonic={shift}"]
            prefix = ["unshare", "--mount", *clocks, "--fork", "sh", "-c", hide, "sh"]
            tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
            if tried.returncode:
                raise NotHere(tried.stderr.strip().splitlines()[-1])
            yield Setting(prefix)

    return contextmanager(condition)


@contextmanager
def another_machine(scratch: Path) -> Iterator[Setting]:
    """Another boot id, machine id and host name: a test may know those of its own fixtures only."""
    steps = ["hostname elsewhere"]
    for number, path in enumerate(("/proc/sys/kernel/random/boot_id", "/etc/machine-id")):
        other = scratch / f"id{number}"
        other.write_text(f"{uuid.uuid4()}\n" if number == 0 else f"{uuid.uuid4().hex}\n")
        other.chmod(0o444)
        steps.append(f"{{ ! test -e {path} || mount --bind {shlex.quote(str(other))} {path}; }}")
    scratch.chmod(0o755)
    prefix = ["unshare", "--mount", "--uts", "sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise NotHere(tried.stderr.strip().splitlines()[-1])
    yield Setting(prefix)


def variables(**changed: str | None) -> Callable[[Path], AbstractContextManager[Setting]]:
    def condition(scratch: Path) -> Iterator[Setting]:
        kept = {name: value for name, value in os.environ.items() if name not in changed}
        yield Setting(environment=kept | {name: value for name, value in changed.items() if value})

    return contextmanager(condition)


@contextmanager
def cores_busy(scratch: Path) -> Iterator[Setting]:
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        yield Setting()
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@contextmanager
def ordinary_user(scratch: Path) -> Iterator[Setting]:
    """As nobody. Where Python lies in a folder that is closed to others, such as root's, that way alone is opened."""
    if os.getuid() != 0:
        raise NotHere("you are an ordinary user already: run the tests")
    if shutil.which("setpriv") is None:
        raise NotHere("no setpriv (Debian: apt install util-linux)")
    # In a mount namespace: each closed folder is replaced by an empty one that holds what is needed
    kept_aside, emptied, put_back = [], [], []
    for number, needed in enumerate(dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT)))):
        closed = next((one for one in reversed(Path(needed).parents) if not one.stat().st_mode & 0o001), None)
        if closed is not None:
            aside, way = scratch / f"aside{number}", shlex.quote(needed)
            aside.mkdir()
            kept_aside.append(f"mount --bind {way} {aside}")
            emptied.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}")
            put_back.append(f"mkdir -p {way} && mount --bind {aside} {way}")
    steps = [*kept_aside, *dict.fromkeys(emptied), *put_back]
    home = scratch / "home"
    home.mkdir(mode=0o700)
    os.chown(home, int(NOBODY), int(NOBODY))
    scratch.chmod(0o755)
    script = " && ".join([*steps, 'exec "$@"'])
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    kept |= {"HOME": str(home), "TMPDIR": str(home), "USER": "nobody", "LOGNAME": "nobody"}
    kept |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        "OOMPROOF_RANDOM_EXAMPLES": "1",
    }
    yield Setting(["unshare", "--mount", "sh", "-c", script, "sh", *user], kept, ["-p", "no:cacheprovider"])


def together(
    *conditions: Callable[[Path], AbstractContextManager[Setting]],
) -> Callable[[Path], AbstractContextManager[Setting]]:
    """Several at once: where there is no time for one after the other."""

    @contextmanager
    def condition(scratch: Path) -> Iterator[Setting]:
        joined = Setting()
        with ExitStack() as stack:
            for part in conditions:
                setting = stack.enter_context(part(scratch))
                gone = set(os.environ) - set(setting.environment)
                changed = set(setting.environment.items()) - set(os.environ.items())
                kept = {name: value for name, value in joined.environment.items() if name not in gone}
                joined = Setting(
                    [*joined.prefix, *setting.prefix], kept | dict(changed), [*joined.words, *setting.words]
                )
            yield joined

    return condition


CONDITIONS: dict[str, Callable[[Path], AbstractContextManager[Setting]]] = {
    "random order": random_order,
    "booted a minute ago": booted(60),
    "booted 400 days ago": booted(400 * 86400),
    "another machine": another_machine,
    "TZ=Asia/Kolkata": variables(TZ="Asia/Kolkata"),
    "LC_ALL=C": variables(LC_ALL="C", LANG=None, PYTHONUTF8=None),
    "HOME unset": variables(HOME=None),
    "every core busy": cores_busy,
    "ordinary user": ordinary_user,
}
_AT_ONCE = ("random order", "booted 400 days ago", "TZ=Asia/Kolkata", "LC_ALL=C", "HOME unset")
ALL_CONDITIONS = {**CONDITIONS, "five at once": together(*(CONDITIONS[name] for name in _AT_ONCE))}


def run(setting: Setting, suite: str, words: list[str], results: Path) -> Counter[str]:
    results.parent.mkdir(mode=0o777, exist_ok=True)
    results.parent.chmod(0o777)
    command = [sys.executable, "-m", "pytest", "-q", *SUITES[suite], *setting.words, *words]
    command += ["-o", "junit_family=xunit2", f"--junitxml={results}"]
    status = subprocess.run(["nice", *setting.prefix, *command], cwd=ROOT, env=setting.environment).returncode
    found: Counter[str] = Counter()
    if results.exists():
        for case in ElementTree.parse(results).iter("testcase"):
            kinds = {child.tag for child in case}
            failed = kinds & {"failure", "error"}
            found["failed" if failed else "skipped" if "skipped" in kinds else "passed"] += 1
    if status not in (0, 5) and not found["failed"]:  # 5: none matched
        found["failed"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("condition", nargs="*", metavar="CONDITION", help=" · ".join(ALL_CONDITIONS))
    parser.add_argument(
        "--suite", choices=SUITES, action="append", help="unit or incidents; both when not given"
    )
    parser.add_argument("-k", dest="word", help="only the tests whose names match, as pytest's -k")
    asked = parser.parse_args()
    if unknown := set(asked.condition) - set(ALL_CONDITIONS):
        parser.error(f"no such condition: {', '.join(unknown)}")
    words = ["-k", asked.word] if asked.word else []
    rows = []
    for name in asked.condition or CONDITIONS:
        for suite in asked.suite or SUITES:
            print(f"\n== {name}: {suite}", flush=True)
            with tempfile.TemporaryDirectory(prefix="unkind-") as scratch:
                try:
                    with ALL_CONDITIONS[name](Path(scratch)) as setting:
                        found = run(setting, suite, words, Path(scratch) / "results" / "junit.xml")
                        rows.append((name, suite, *(str(found[kind]) for kind in KINDS)))
                except NotHere as reason:
                    rows.append((name, suite, f"not here: {reason}"))
    print("\n| condition | suite | " + " | ".join(KINDS) + " |\n|" + "---|" * (2 + len(KINDS)))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return int(any(row[-1] != "0" and not row[-1].startswith("not here") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
