"""I3 by hand on a machine with an NVIDIA GPU: out of memory only at eval, told right each time, and the hint applied.

    PYTHONPATH=src python tests/gpu/eval_oom.py [RESULTS.json] [--only a,b] [--seconds 340] [--left 24]

A ballast process holds the rest of the card, so that 24 GiB are left. Needs torch, transformers, pynvml and psutil; nothing is
downloaded. One line per check, facts under each that fails; sections that the time no longer allows are said, not passed.
Exits 1 when a check fails. Sections: a live KV cache, b neighbour, c gaps, d kept logits, e limit, f twin, g caches and cost,
h release always, i cost per step.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).parent
JOBS = HERE / "jobs"
OURS = [sys.executable, "-m", "oomproof.cli.main"]
STATE = Path(tempfile.mkdtemp(prefix="oomproof-gpu-"))
ENVIRONMENT = {
    **os.environ,
    "XDG_STATE_HOME": str(STATE),
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
BEGUN = time.monotonic()
LONGEST = 100  # seconds of one job

results: dict[str, Any] = {"checks": {}, "facts": {}}
failures: list[str] = []
options = argparse.Namespace()


def check(name: str, good: bool, detail: object = "", facts: Callable[[], object] | None = None) -> bool:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)
    results["checks"][name] = {"ok": bool(good), "detail": str(detail)[:2000]}
    if not good:
        failures.append(name)
        if facts is not None:
            text = json.dumps(facts(), indent=1, default=str)
            print("     " + text[:6000].replace("\n", "\n     "), flush=True)
            results["checks"][name]["facts"] = text[:20000]
    save()
    return good


def fact(name: str, value: object) -> None:
    print(f"     {name}: {value}", flush=True)
    results["facts"][name] = value
    save()


def save() -> None:
    results["seconds"] = round(time.monotonic() - BEGUN, 1)
    if options.results:
        Path(options.results).write_text(json.dumps(results, indent=1, default=str))


class Job:
    """One `oomproof run`, its folder and what it said."""

    def __init__(
        self, name: str, flags: list[str], command: list[str], environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = command
        self.errors = open(STATE / f"{name}.err", "w+")  # noqa: SIM115 - read when the job is over
        # --no-wait: what the ledger would keep apart is brought together on purpose here; a ledger for each, so that it may
        words = [
            *OURS,
            "run",
            "--name",
            name,
            "--allow-twin",
            "--no-wait",
            *flags,
            "--",
            sys.executable,
            *command,
        ]
        (STATE / f"{name}.ledger").mkdir(mode=0o700, exist_ok=True)
        environment = {"OOMPROOF_LEDGER": str(STATE / f"{name}.ledger"), **(environment or {})}
        self.process = subprocess.Popen(
            words,
            env={**ENVIRONMENT, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            text=True,
        )
        self._folder: Path | None = None

    def wait(self, seconds: float = LONGEST) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            check(f"{self.name} ends in time", False, f"still running after {seconds:.0f} s", self.facts)
            self.process.terminate()
            try:
                return self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                return self.process.wait()

    @property
    def folder(self) -> Path:
        while self._folder is None:
            for path in STATE.glob("oomproof/runs/*/run.json"):
                if json.loads(path.read_text())["name"] == self.name:
                    self._folder = path.parent / "1"
            if self._folder is None:
                if self.process.poll() is not None and self.process.returncode in (2, 125, 126, 127):
                    raise RuntimeError(f"{self.name} did not start: {self.said()}")
                time.sleep(0.1)
        return self._folder

    @property
    def run(self) -> str:
        return self.folder.parent.name

    def said(self) -> str:
        self.errors.flush()
        return Path(self.errors.name).read_text()

    def output(self) -> str:
        path = self.folder / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def verdict(self) -> dict[str, Any]:
        path = self.folder / "verdict.json"
        return json.loads(path.read_text()) if path.exists() else {"verdict": {}, "remedies": []}

    def headline(self) -> str:
        return str(self.verdict()["verdict"].get("headline"))

    def remedies(self) -> list[dict[str, Any]]:
        return self.verdict()["remedies"]

    def accounts(self) -> list[dict[str, Any]]:
        return [
            json.loads(path.read_text()) for path in sorted((self.folder / "agent").glob("*-cuda-oom-*.json"))
        ]

    def events(self, kind: str = "") -> list[tuple[str, str, Any]]:
        path = self.folder / "recording.sqlite"
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT kind, text, data FROM event ORDER BY t").fetchall()
        return [(name, text, json.loads(data) if data else {}) for name, text, data in rows if kind in name]

    def facts(self) -> dict[str, Any]:
        verdict = self.verdict()
        return {
            "status": self.process.poll(),
            "verdict": verdict["verdict"],
            "remedies": verdict["remedies"][:4],
            "output": self.output().splitlines()[-12:],
            "said": self.said().splitlines()[-12:],
            "accounts": [{key: each[key] for key in each if key != "classes"} for each in self.accounts()[-1:]],
            "agent": [(kind, text or data) for kind, text, data in self.events() if "note" in kind or "fail" in kind or "wont" in kind or "limit" in kind or "release" in kind][-12:],
        }  # fmt: skip


def job(
    name: str,
    script: str,
    *words: str,
    flags: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Job:
    if options.device != "cuda" and script == "train_eval.py":
        words = (*words, "--device", options.device)
    return Job(name, list(flags), [str(JOBS / script), *words], environment)


def wait_for(path: Path, of: Job, seconds: float = LONGEST) -> bool:
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end and of.process.poll() is None:
        time.sleep(0.1)
    return path.exists()


def told_of(one: Job, name: str, words: str, status: int = 1) -> bool:
    """The verdict: CUDA, and the true cause in its headline."""
    code = one.wait()
    verdict = one.verdict()["verdict"]
    good = code == status and verdict.get("cause") == "cuda-oom" and words in one.headline()
    return check(name, good, one.headline(), one.facts)


def finishes(one: Job, name: str) -> bool:
    code = one.wait()
    return check(name, code == 0 and "done" in one.output(), f"exit {code}, {one.headline()}", one.facts)


def account_of(one: Job) -> dict[str, Any]:
    found = one.accounts()
    return found[-1] if found else {}


# --- sections ---------------------------------------------------------------------------------------------------


def a_live_cache() -> None:
    first = job("a", "train_eval.py", "generate")
    told_of(first, "a: the live KV cache is named", "a live KV cache held")
    verdict, account = first.verdict()["verdict"], account_of(first)
    check(
        "a: in the phase and step it happened",
        (verdict.get("phase"), verdict.get("step")) == ("generate", 3),
        (verdict.get("phase"), verdict.get("step")),
        first.facts,
    )
    check(
        "a: warned before the call that does not fit",
        "will not fit on GPU" in first.said(),
        [line for line in first.said().splitlines() if "fit" in line],
        first.facts,
    )
    check(
        "a: the account came within two and a half seconds",
        0 < account.get("took", 99) < 2.5,
        account.get("took"),
    )
    check(
        "a: the owners explain most of what is allocated",
        account.get("seen", 0) > 0.9 * account.get("allocated", 1),
        (account.get("seen"), account.get("allocated")),
        first.facts,
    )
    check(
        "a: the neighbours are told by the driver, this process's own share too",
        bool(account.get("own")) and bool(account.get("neighbours")),
        (account.get("own"), account.get("neighbours")),
    )
    fact("a.account", {key: account.get(key) for key in ("requested", "free", "allocated", "reserved", "retries", "outside", "outside_first", "context", "others", "took", "generating", "unseen")} | {"owners": account.get("owners", [])[:5], "pieces": {k: v for k, v in account.get("pieces", {}).items() if k != "classes"}})  # fmt: skip
    shown = subprocess.run(
        [*OURS, "runs", "show", "a"], env=ENVIRONMENT, capture_output=True, text=True
    ).stdout
    check(
        "a: runs show tells who held the card",
        "who held the card" in shown and "KV cache" in shown,
        [line for line in shown.splitlines() if "cache" in line][:3],
    )
    page = STATE / "a.html"
    subprocess.run([*OURS, "why", "a", "--html", str(page)], env=ENVIRONMENT, capture_output=True)
    check(
        "a: the crash page tells who held the card",
        page.exists() and "Who held the card" in page.read_text(),
        page,
    )
    remedies = first.remedies()
    change = (remedies[0].get("change") or {}) if remedies else {}
    if not check(
        "a: the cure is a number",
        change.get("key") in ("max_new_tokens", "eval_batch_size") and str(change.get("to", "")).isdigit(),
        change,
        first.facts,
    ):
        return
    flag = "--new-tokens" if change["key"] == "max_new_tokens" else "--batch"
    finishes(
        job("a-cured", "train_eval.py", "generate", flag, change["to"]),
        f"a: with {flag} {change['to']} it finishes",
    )


# generates within 15 GiB; between 8 and 12.5 GiB of that stay reserved and unused
NEIGHBOUR = ("quiet", "--batch", "256", "--prompt", "384", "--new-tokens", "128")
MAIN = ("generate", "--batch", "384", "--prompt", "384", "--new-tokens", "160")  # about 15.6 GiB at its peak


def b_neighbour() -> None:
    for policy in ("warn", "always"):
        until = STATE / f"b-{policy}.until"
        other = job(
            f"b-neighbour-{policy}",
            "train_eval.py",
            *NEIGHBOUR,
            "--until",
            str(until),
            flags=("--gpu-limit", "15G", "--release", policy),
        )
        try:
            if not check(
                f"b: the neighbour ({policy}) has generated",
                wait_for(Path(f"{until}.ready"), other),
                "ready",
                other.facts,
            ):
                return
            time.sleep(2)  # its next sample
            samples = [
                json.loads(path.read_text()) for path in (other.folder / "agent").glob("*-allocator.json")
            ]
            idle = max((each["unused"] for each in samples), default=0)
            fact(
                f"b.neighbour.{policy}",
                {"unused": idle, "reserved": max((each["reserved"] for each in samples), default=0)},
            )
            main = job(f"b-{policy}", "train_eval.py", *MAIN)
            if policy == "warn":
                check(
                    "b: the neighbour keeps much that it does not use",
                    idle > 6 * GIB,
                    f"{idle / GIB:.1f} GiB",
                    other.facts,
                )
                check(
                    "b: and is told so once",
                    other.said().count("stays reserved and unused") == 1,
                    [line for line in other.said().splitlines() if "unused" in line],
                )
                told_of(main, "b: the neighbour is named as the cause", "neighbour on the card")
                check(
                    "b: with its pid and run",
                    any(str(other.run) in remedy["title"] for remedy in main.remedies()[:1]),
                    main.remedies()[:1],
                    main.facts,
                )
                check(
                    "b: the cure is the neighbour's --release always",
                    "--release always" in str((main.remedies() or [{}])[0].get("command")),
                    (main.remedies() or [{}])[0].get("command"),
                )
            else:
                check(
                    "b: with --release always it gives it back",
                    idle < 3 * GIB,
                    f"{idle / GIB:.1f} GiB",
                    other.facts,
                )
                fact("b.released", [data for _, _, data in other.events("release")][:3])
                finishes(main, "b: and the job beside it finishes")
        finally:
            until.touch()
        check(
            f"b: the neighbour ({policy}) itself lives and finishes",
            other.wait() == 0,
            other.headline(),
            other.facts,
        )


def c_gaps() -> None:
    first = job("c", "gaps.py")
    told_of(first, "c: split segments are named", "split segments")
    account = account_of(first)
    fact(
        "c.pieces",
        dict(account.get("pieces", {}).items())
        | {"unused": account.get("unused"), "requested": account.get("requested")},
    )
    change = ((first.remedies() or [{}])[0].get("change")) or {}
    if check(
        "c: the cure is a variable",
        change.get("kind") == "env" and change.get("to") == "expandable_segments:True",
        change,
        first.facts,
    ):
        finishes(
            job("c-cured", "gaps.py", environment={change["key"]: change["to"]}),
            f"c: with {change['key']}={change['to']} it finishes",
        )


def d_kept_logits() -> None:
    first = job("d", "train_eval.py", "logits", "--batch", "32")
    told_of(
        first, "d: the list is named with its function", "all_logits in evaluate_by_logits (train_eval.py:"
    )
    change = ((first.remedies() or [{}])[0].get("change")) or {}
    if check("d: the cure is .cpu()", change.get("key") == ".cpu()", change, first.facts):
        finishes(
            job("d-cured", "train_eval.py", "logits", "--batch", "32", "--to-cpu"),
            "d: with .cpu() it finishes",
        )


def e_limit() -> None:
    first = job("e", "fill.py", flags=("--gpu-limit", "6G"))
    told_of(first, "e: the job's own limit is named", "the job's own GPU limit was full")
    account = account_of(first)
    own = account.get("own") or (account.get("reserved", 0) + 768 * (1 << 20))
    check(
        "e: the whole process stayed within 6 GiB",
        4 * GIB < own < 6.1 * GIB,
        f"{own / GIB:.2f} GiB on the card, {account.get('reserved', 0) / GIB:.2f} reserved",
        first.facts,
    )
    check(
        "e: the card had room",
        account.get("free", 0) > 10 * GIB,
        f"{account.get('free', 0) / GIB:.1f} GiB free",
    )
    fact("e.limit", [data for _, _, data in first.events("gpu-limit")])


def f_twin() -> None:
    hold = STATE / "f.hold"
    words = ("plain", "--batch", "14", "--hold", str(hold))
    one = job("f-first", "train_eval.py", *words)
    try:
        if not check(
            "f: the first copy holds its evaluation",
            wait_for(Path(f"{hold}.holding"), one),
            "holding",
            one.facts,
        ):
            return
        two = job("f-second", "train_eval.py", *words)
        told_of(two, "f: the twin is named", "the same job ran twice")
        hint = str((two.remedies() or [{}])[0].get("command"))
        if check(
            "f: the cure ends the twin",
            hint == f"oomproof stop {one.run}" or hint.startswith("kill "),
            hint,
            two.facts,
        ):
            command = (
                [*OURS, *shlex.split(hint)[1:], "--grace", "2"]
                if hint.startswith("oomproof")
                else shlex.split(hint)
            )
            subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60)
            one.wait(60)
            hold.touch()
            finishes(job("f-cured", "train_eval.py", *words), "f: alone it finishes")
    finally:
        hold.touch()
        one.wait(60)


def g_caches_and_cost() -> None:
    done = subprocess.run(
        [sys.executable, str(JOBS / "measure.py")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        check("g: figures were measured", False, done.returncode, lambda: done.stderr[-3000:])
        return
    fact("g.measured", found)
    for name, entry in found["caches"].items():
        check(f"g: KV cache of {name} predicted within 1 %", abs(entry.get("error", 1)) <= 0.01, entry)
        if "real_peak" in entry:
            fact(
                f"g.{name}.peak",
                f"predicted at least {entry['predicted_peak'] / 1e6:.0f} MB, was {entry['real_peak'] / 1e6:.0f} MB",
            )
    cost = found.get("cost", {})
    check("g: a sample costs under 2 ms (one a second: 0.2 %)", cost.get("sample_us", 1e9) < 2000, cost)
    check(
        "g: a step without a sample costs under 5 us",
        cost.get("step_without_sample_us", 1e9) < 5,
        cost.get("step_without_sample_us"),
    )


def h_release_always() -> None:
    one = job("h", "train_eval.py", "plain", "--batch", "8", "--evals", "2", flags=("--release", "always"))
    finishes(one, "h: a job with --release always finishes")
    after = [
        json.loads(line.split(" ", 1)[1])["reserved"]
        for line in one.output().splitlines()
        if line.startswith("after ")
    ]
    check(
        "h: what the evaluation left was given back both times",
        len(after) == 2 and all(size < 4 * GIB for size in after),
        after,
        one.facts,
    )
    fact("h.released", [data for _, _, data in one.events("release")])


def i_cost_per_step() -> None:
    medians = {}
    for name, flags in (("without", ("--no-agent",)), ("with", ())):
        one = job(f"i-{name}", "train_eval.py", "steps", "--steps", "400", "--evals", "0", flags=flags)
        finishes(one, f"i: {name} the agent it finishes")
        times = [float(line.split()[2]) for line in one.output().splitlines() if line.startswith("step ")]
        medians[name] = statistics.median(times[40:]) if len(times) > 60 else float("nan")
    share = medians["with"] / medians["without"] - 1
    fact("i.step", {**medians, "share": share})
    check(
        "i: the agent costs under 0.5 % of a step (and noise)",
        share < 0.02,
        f"{share:+.2%} of {1e3 * medians['without']:.2f} ms",
    )


SECTIONS: dict[str, tuple[Callable[[], None], int]] = {  # with the seconds each is expected to take
    "a": (a_live_cache, 60), "b": (b_neighbour, 90), "c": (c_gaps, 25), "d": (d_kept_logits, 30), "e": (e_limit, 15),
    "f": (f_twin, 40), "g": (g_caches_and_cost, 40), "h": (h_release_always, 20), "i": (i_cost_per_step, 30),
}  # fmt: skip


def ballast(left: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(JOBS / "ballast.py"), str(left)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    if line[:1] != ["ready"]:
        raise SystemExit("the ballast could not be taken")
    fact("card", {"free": f"{int(line[1]) / GIB:.2f} GiB", "total": f"{int(line[2]) / GIB:.2f} GiB"})
    return process


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?")
    parser.add_argument("--only", default="abcdefghi")
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--left", type=float, default=24)
    parser.add_argument(
        "--device", default="cuda", help="cpu: only to try this script; most checks then fail"
    )
    parser.parse_args(namespace=options)
    weight = (
        ballast(options.left)
        if options.device == "cuda"
        else subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    )
    try:
        for name, (section, expected) in SECTIONS.items():
            if name not in options.only:
                continue
            spent = time.monotonic() - BEGUN
            if spent + expected > options.seconds:
                print(f"SKIP {name}: {spent:.0f} s of {options.seconds:.0f} are spent", flush=True)
                results["checks"][f"{name}: ran"] = {"ok": None, "detail": "no time was left"}
                continue
            try:
                section()
            except Exception as error:
                import traceback

                check(f"{name}: ran", False, f"{type(error).__name__}: {error}", traceback.format_exc)
            print(f"     ({name} took {time.monotonic() - BEGUN - spent:.0f} s)", flush=True)
        check(
            "the process that held the rest of the card lived through it all",
            weight.poll() is None,
            weight.poll(),
        )
    finally:
        if weight.stdin is not None:
            weight.stdin.close()
        try:
            weight.wait(20)
        except subprocess.TimeoutExpired:
            weight.kill()
    save()
    print("FAILED: " + ", ".join(failures) if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
