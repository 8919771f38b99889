"""Damages files of a state folder at random and asks everything that reads them: no traceback, no block, the rest goes on.

    python bench/fuzz_state.py --rounds 1000               seeds 0, 1, 2 …
    python bench/fuzz_state.py --seed 17                   one round again, with what was damaged

A round takes a copy of a state folder with real runs, flips, cuts, empties, removes or replaces bytes in one to three files (in
JSON also a value by one of another type), and runs `runs`, `runs show`, `compare`, `export`, `why`, `why --html`, `check` and,
now and then, `run -- true`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 60.0  # one command at most, on a busy machine
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 3.5, float("inf"), float("nan"), 1 << 70, "", "x", "\udcff\x1b[2J", "9" * 400, [], {}, ["x"],
    {"a": 1}, [[[]]],
)  # fmt: skip
JOBS = (
    ["true"],
    [sys.executable, "-c", "import time; print('step 1/2'); time.sleep(0.7)"],
    [sys.executable, "-c", "import time; time.sleep(0.6); raise ValueError('no')"],
)


def environment(base: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OOMPROOF_")}
    return {
        **kept,
        "XDG_STATE_HOME": str(base / "state"),
        "XDG_RUNTIME_DIR": str(base / "runtime"),
        "XDG_CONFIG_HOME": str(base / "config"),
        "NO_COLOR": "1",
    }


def real_state(base: Path) -> Path:
    """A state folder with runs that were run."""
    for name in ("state", "runtime", "config"):
        (base / name).mkdir(mode=0o700, parents=True)
    for words in JOBS:
        oomproof(base, "run", "--", *words)
    return base


def oomproof(base: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oomproof.cli.main", *words],
        env=environment(base),
        capture_output=True,
        text=True,
        timeout=SECONDS * 2,
        stdin=subprocess.DEVNULL,
    )


def damage(folder: Path, chance: random.Random) -> list[str]:
    """What was done, in words."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return [_damage(path, chance) for path in chance.sample(files, min(len(files), chance.randint(1, 3)))]


def _damage(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    how = chance.choice(("flip", "flip", "cut", "splice", "empty", "remove", "value", "value"))
    if how == "value" and path.suffix == ".json":
        with contextlib.suppress(ValueError):
            value = json.loads(data)
            told = _replace(value, chance)
            path.write_text(json.dumps(value))
            return f"{path.name}: {told}"
    if how == "remove":
        path.unlink()
        return f"{path.name}: removed"
    if how == "empty" or not data:
        path.write_bytes(b"")
        return f"{path.name}: emptied"
    at = chance.randrange(len(data))
    if how == "cut":
        data = data[:at]
    elif how == "splice":
        data[at : at + 64] = chance.randbytes(64)
    else:
        for _ in range(chance.choice((1, 1, 8, 64))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{path.name}: {how} at {at}"


def _replace(value: Any, chance: random.Random) -> str:
    """One value, somewhere inside, by one of another type."""
    places: list[tuple[Any, Any]] = []
    rest = [value]
    while rest:
        inner = rest.pop()
        names = (
            list(inner)
            if isinstance(inner, dict)
            else list(range(len(inner)))
            if isinstance(inner, list)
            else []
        )
        places += [(inner, name) for name in names]
        rest += [inner[name] for name in names]
    if not places:
        return "nothing to replace"
    holder, name = chance.choice(places)
    holder[name] = chance.choice(WRONG)
    return f"{name} = {holder[name]!r}"


def ask(base: Path, chance: random.Random) -> list[str]:
    """All that went wrong: (command, what it said)."""
    ids = sorted(path.name for path in (base / "state/oomproof/runs").iterdir())
    one, other = chance.choice(ids), chance.choice(ids)
    commands = [
        ["runs"], ["runs", "--all", "--json"], ["runs", "prune", "--keep", "1"], ["runs", "show", one],
        ["runs", "show", "--json", one], ["runs", "compare", one, other], ["runs", "export", "--csv", one],
        ["why", "--short", one], ["why", "--json", one], ["why", "--all", one],
        ["why", "--html", str(base / "a.html"), "--md", str(base / "a.md"), "--force", one],
    ]  # fmt: skip
    if chance.random() < 0.2:
        commands.append(["check"])
    found = [said for words in commands if (said := _one(base, words))]
    if chance.random() < 0.05:
        done = oomproof(base, "run", "--", "true")
        if done.returncode or "OOMPROOF_DEBUG" in done.stderr or "Traceback" in done.stderr:
            found.append(f"run -- true: {done.returncode} {done.stderr}")
    return found


def _one(base: Path, words: list[str]) -> str | None:
    from oomproof.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    begun = time.monotonic()
    try:
        os.environ.clear()
        os.environ.update(environment(base))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        return f"{' '.join(words)}: {type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    seconds = time.monotonic() - begun
    listing = words[0] == "runs" and len(words) < 2
    if "OOMPROOF_DEBUG" in err.getvalue() or seconds > SECONDS or (listing and status):
        return f"{' '.join(words)}: {status} after {seconds:.1f} s: {err.getvalue()}"
    return None


def one_round(real: Path, seed: int) -> tuple[list[str], list[str]]:
    """(what was damaged, what went wrong)"""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="oomproof-fuzz-") as name:
        base = Path(name)
        shutil.copytree(real, base, dirs_exist_ok=True, symlinks=True)
        told = damage(base / "state", chance)
        return told, ask(base, chance)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.rounds)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="oomproof-fuzz-") as name:
        real = real_state(Path(name) / "real")
        for seed in seeds if arguments.seed is None else [arguments.seed]:
            told, wrong = one_round(real, seed)
            bad += bool(wrong)
            if wrong or arguments.seed is not None:
                print(f"seed {seed}: {told}", *wrong, sep="\n  ", flush=True)
    print(f"{bad} of {len(seeds) if arguments.seed is None else 1} rounds went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
