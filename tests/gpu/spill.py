"""By hand on a machine with an NVIDIA GPU: `run --spill` on a card that a ballast process has filled.

    PYTHONPATH=src python tests/gpu/spill.py RESULTS.json [--only filled,together] [--seconds 225] [--left 10] [--reference FILE]

Needs torch 2.11, transformers, torchvision, pynvml and psutil; nothing is downloaded. All jobs import and build their models at
the same time and then wait for their turn on the card: those with a price one after the other, on a physically full card; the
others together on an empty one, each inside a --gpu-limit. One line per check, facts under each that fails; exits 1 when one does.
Run again with the same RESULTS.json it leaves out the rows that passed. Times and losses on an empty card: spill_reference.json.
Sections: filled (dies, rows, books), together (refusals, pause, exits, pair), compiled (and a job that always spills), compiled-full, cost.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).parent
JOB = str(HERE / "jobs" / "spill_job.py")
OURS = [sys.executable, "-m", "oomproof.cli.main"]
STATE = Path(tempfile.mkdtemp(prefix="oomproof-spill-"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(HERE.parents[1] / "src") + os.pathsep + os.environ.get("PYTHONPATH", ""),
    "XDG_STATE_HOME": str(STATE),
    "PYTHONUNBUFFERED": "1",
    "PYTHONWARNINGS": "ignore",
}
MODELS = ("gpt2", "bf16", "resnet", "lora", "unet", "trainer", "generate")
FEW = {
    "gpt2": 4,
    "bf16": 4,
    "resnet": 32,
    "lora": 4,
    "unet": 2,
    "trainer": 256,
    "generate": 64,
    "compiled": 8,
}
BEGUN = time.monotonic()
options = argparse.Namespace()
results: dict[str, Any] = {"checks": {}, "facts": {}}
PLAN: dict[str, Any] = {}
LATER: dict[str, Job] = {}


def left() -> float:
    return options.seconds - (time.monotonic() - BEGUN)


def save() -> None:
    results["seconds"] = round(time.monotonic() - BEGUN, 1)
    Path(options.results).write_text(json.dumps(results, indent=1, default=str))


def check(name: str, good: bool, detail: object = "", facts: Any = None) -> bool:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {str(detail)[:700]}", flush=True)
    results["checks"][name] = {"ok": bool(good), "detail": str(detail)[:2000]}
    if not good and facts is not None:
        text = json.dumps(facts() if callable(facts) else facts, indent=1, default=str)
        print("     " + text[:3500].replace("\n", "\n     "), flush=True)
        results["checks"][name]["facts"] = text[:20000]
    save()
    return good


def fact(name: str, value: object) -> None:
    print(f"     {name}: {str(value)[:1500]}", flush=True)
    results["facts"][name] = value
    save()


class Ballast:
    """Holds the card but for what is left."""

    def __init__(self, gib: float) -> None:
        words = [sys.executable, str(HERE / "jobs" / "ballast.py"), str(gib)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        fact("ballast", self.process.stdout.readline().strip())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Job:
    """One `oomproof run`, what it said and what it left. It waits at its gate until `go`."""

    def __init__(self, name: str, *words: str, flags: tuple[str, ...] = ()) -> None:
        self.name = name
        self.gate = STATE / f"{name}.gate"
        self.errors = open(STATE / f"{name}.err", "w+")  # noqa: SIM115 - read when the job is over
        (STATE / f"{name}.ledger").mkdir(mode=0o700, exist_ok=True)
        environment = {**ENVIRONMENT, "OOMPROOF_LEDGER": str(STATE / f"{name}.ledger")}
        job = [sys.executable, JOB, *words, "--out", str(STATE / f"{name}.out"), "--gate", str(self.gate)]
        command = [*OURS, "run", "--name", name, "--allow-twin", "--no-wait", *flags, "--", *job]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=self.errors, text=True
        )

    def go(self, seconds: float = 60.0) -> Job:
        """Once it is built, the card is its."""
        self.until('"ready"', seconds)
        self.gate.touch()
        return self

    def wait(self, seconds: float = 100.0) -> int:
        try:
            return self.process.wait(max(5.0, min(seconds, left() + 20)))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                return self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                return self.process.wait()

    @property
    def folder(self) -> Path:
        for path in STATE.glob("oomproof/runs/*/run.json"):
            if json.loads(path.read_text())["name"] == self.name:
                return path.parent / "1"
        raise FileNotFoundError(self.name + ": " + self.said()[-500:])

    def said(self) -> str:
        return Path(self.errors.name).read_text()

    def output(self) -> str:
        try:
            return (self.folder / "output.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def until(self, text: str, seconds: float = 60.0) -> bool:
        end = time.monotonic() + seconds
        while text not in self.output() and time.monotonic() < end and self.process.poll() is None:
            time.sleep(0.1)
        return text in self.output()

    def rows(self) -> list[dict[str, Any]]:
        return rows_in(self.output())

    def spills(self, did: str = "spilled") -> list[dict[str, Any]]:
        with sqlite3.connect(self.folder / "recording.sqlite") as connection:
            rows = connection.execute(
                "SELECT text, data FROM event WHERE kind = 'agent:spill' ORDER BY t"
            ).fetchall()
        told = [{**json.loads(data), "said": text} for text, data in rows]
        return [spill for spill in told if spill.get("did") == did]

    def on_card(self) -> int:
        with sqlite3.connect(self.folder / "recording.sqlite") as connection:
            return connection.execute("SELECT max(job_used) FROM gpu").fetchone()[0] or 0

    def shown(self) -> dict[str, Any]:
        return ours("runs", "show", self.name, "--json")

    def facts(self) -> dict[str, Any]:
        try:
            return {"status": self.process.poll(), "said": self.said().splitlines()[-12:], "output": self.output().splitlines()[-8:],
                    "spills": self.spills()[-3:], "refused": self.spills("refused")}  # fmt: skip
        except Exception as error:
            return {
                "status": self.process.poll(),
                "error": str(error),
                "said": self.said().splitlines()[-12:],
            }


def ours(*words: str) -> dict[str, Any]:
    done = subprocess.run([*OURS, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    try:
        value: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"status": done.returncode, "out": done.stdout[-500:], "errors": done.stderr[-500:]}
    return value


def rows_in(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        if line.startswith('{"'):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


# --- sections ---------------------------------------------------------------------------------------------------


class Dies:
    """The same models without oomproof, in one process that catches the error."""

    def __init__(self) -> None:
        self.gate, plan = STATE / "dies.gate", STATE / "plan.json"
        plan.write_text(json.dumps(PLAN["plan"]))
        self.out = open(STATE / "dies.out", "w+")  # noqa: SIM115
        command = [
            sys.executable,
            JOB,
            ",".join(MODELS),
            "--catch",
            "--plan",
            str(plan),
            "--gate",
            str(self.gate),
            "--out",
            str(STATE / "plain.out"),
        ]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=self.out, stderr=subprocess.DEVNULL, text=True
        )

    def check(self) -> None:
        wait_until(lambda: '"ready"' in (STATE / "dies.out").read_text(), 60)
        self.gate.touch()
        try:
            self.process.wait(max(5.0, min(45.0, left() - 100)))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        rows = rows_in((STATE / "dies.out").read_text())
        died = {row["model"] for row in rows if "oom" in row}
        check("dies: each is out of memory without", died == set(MODELS), sorted(died), rows[-6:])


def wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def sizes_of(name: str) -> str:
    few = FEW[name]
    return ",".join(map(str, [few] * 5 + [PLAN["plan"][name]] + [few] * 3))


def judge_row(name: str, job: Job, seconds: float = 40.0) -> bool:
    key, expected = f"row {name}", PLAN["reference"][name][:9]
    status = job.go().wait(seconds)
    mine = [step for step in job.rows() if "step" in step]
    if status != 0 or len(mine) != 9:
        return check(key, False, f"status {status}, {len(mine)} steps", job.facts)
    spills = job.spills()
    worst = max(
        abs(step["loss"] - loss) / max(1e-9, abs(loss))
        for step, (_, _, loss) in zip(mine, expected, strict=True)
    )
    first, last = (statistics.median(step["s"] for step in part) for part in (mine[2:5], mine[7:]))
    seen = [
        (
            spill["step"],
            spill["phase"],
            round(spill["bytes"] / GIB, 2),
            round(spill.get("slower") or -1, 2),
        )
        for spill in spills
    ]
    slow, usual = mine[5]["s"], expected[5][1]
    record = job.shown().get("spill") or {}
    held = {"losses": f"{worst:.1e}", "s": slow, "s on an empty card": usual, "before": first, "after": last, "spills": seen, "card": round(job.on_card() / GIB, 2),
            "ready": [spill["said"] for spill in job.spills("ready")], "waited": [spill["seconds"] for spill in job.spills("waited")], "record": record,
            "said": [line for line in job.said().splitlines() if "spill" in line][:3]}  # fmt: skip
    fact(f"facts {name}", held)
    near = {
        5,
        6,
        7,
    }  # where a loop runs ahead of the card, a step is told late; a trainer's count is one ahead
    good = worst < 5e-3 and bool(spills) and any(spill["step"] in near for spill in spills)
    good = (
        good
        and last < max(1.6 * first, first + 0.03)
        and record.get("spills", 0) >= 1
        and job.on_card() < (options.left + 0.3) * GIB
    )
    text = f"{slow} s with the spill, {usual} s on an empty card, out of memory without; losses differ by {worst:.0e}; {first} s before, {last} s after"
    return check(key, good, text, lambda: {**held, **job.facts()})


def judge_books(job: Job, before: int) -> None:
    """While it sleeps after its steps: host, card and job, as the readers have them."""
    reached = job.until('"sleeps"', 30)
    time.sleep(2.0)
    available = memory_available()
    top = ours("top", "--json")
    mine = next((item for item in top.get("jobs", []) if item.get("name") == job.name), {})
    environment = {**ENVIRONMENT, "OOMPROOF_LEDGER": str(STATE / f"{job.name}.ledger")}
    run_text = subprocess.run(
        [*OURS, "check"], env=environment, capture_output=True, text=True, timeout=60
    ).stdout
    names = (
        "use_bytes",
        "spill_bytes",
        "gpu_used_bytes",
        "gpu_reserved_bytes",
        "bytes_per_second",
        "full_in_seconds",
    )
    figures = {name: mine.get(name) for name in names}
    line = next((text.strip() for text in run_text.splitlines() if "pinned by --spill" in text), "")
    own = (mine.get("use_bytes") or 0) - (mine.get("spill_bytes") or 0)
    fact("books", {**figures, "host took, all jobs": round((before - available) / GIB, 2), "check": line})
    good = reached and mine.get("spill_bytes") == 8 * GIB and 0.3 * GIB < own < 6 * GIB
    good = good and (mine.get("gpu_reserved_bytes") or 99 * GIB) < options.left * GIB
    check(
        "books: top tells the spill from the job's own, the card's figures are the card's",
        good,
        figures,
        job.facts,
    )
    check("books: check says what is pinned", bool(line), line or run_text[-900:])


def judge_shown(job: Job) -> None:
    shown = subprocess.run(
        [*OURS, "runs", "show", job.name], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    ).stdout
    rows = [
        text
        for text in shown.splitlines()
        if text.strip().startswith(("peak", "GPU peak", "spill", "trend", "state"))
    ]
    verdict = (job.shown().get("verdict") or {}).get("verdict", {})
    good = (
        "pinned by --spill" in shown and verdict.get("cause") == "finished" and "grow" not in " ".join(rows)
    )
    check("books: runs show and the verdict", good, rows, shown)


def judge_always(job: Job) -> int | None:
    status = job.go().wait(50)
    record = job.shown().get("spill") or {}
    told = [line for line in job.said().splitlines() if "steps spill" in line]
    good = status == 0 and len(told) == 1 and bool(record.get("fitting_batch"))
    check("always: told once, with the batch that fits", good, (told, record), job.facts)
    return record.get("fitting_batch")


def judge_fit(fits: int) -> None:
    """What it names, and a quarter more."""
    flags = ("--gpu-limit", f"{int(options.left)}G", "--spill", "8G")
    more = -(-fits * 5 // 4) + 1
    both = [
        (
            number,
            Job(f"batch-{number}", "gpt2", "--sizes", ",".join([str(number)] * 5), flags=flags),
        )
        for number in (fits, more)
    ]
    counts = {}
    for number, job in both:
        status = job.go().wait(30)
        counts[number] = (status, (job.shown().get("spill") or {}).get("spills"))
    good = counts.get(fits) == (0, 0) and (counts.get(more, (1, 0))[1] or 0) > 0
    check(
        "always: the batch it names fits, one a quarter larger does not",
        good,
        counts,
        lambda: [job.facts() for _, job in both],
    )


def memory_available() -> int:
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    return int(line.split()[1]) * 1024


# --- together on an empty card ----------------------------------------------------------------------------------


def jobs_together() -> dict[str, Job]:
    capped = ("--gpu-limit", f"{int(options.left)}G", "--spill")
    gpt2 = PLAN["plan"]["gpt2"]
    half = gpt2 // 2 + 1
    return {
        "pair-0": Job("pair-0", "gpt2", "--sizes", f"1,1,1,1,{half},1,1,{half},1,1", flags=("--gpu-limit", "5G", "--spill", "8G")),
        "pair-1": Job("pair-1", "gpt2", "--sizes", f"1,1,1,1,{half},1,1,{half},1,1", flags=("--gpu-limit", "5G", "--spill", "8G")),
        "exit-raise": Job("exit-raise", "small", "--sizes", "64,64,64,64", "--then", "raise:13", flags=(*capped, "8G")),
        "exit-exit": Job("exit-exit", "small", "--sizes", "64,64,64,64", "--then", "exit:13", flags=(*capped, "8G")),
        "exhausted": Job("exhausted", "small", "--sizes", "64,64,64,64", "--then", "raise:40", flags=(*capped, "2G")),
        "tight": Job("tight", "small", "--sizes", ",".join(["64"] * 400), flags=("--spill", "8G", "--limit", "9G")),
        "refused": Job("refused", "small", flags=("--spill", "8G", "--limit", "8G")),
        "much": Job("much", "small", flags=("--spill", "900G")),
        "pause": Job("pause", "gpt2", "--sizes", ",".join(["4"] * 5 + [str(gpt2)] + ["4"] * 150), flags=(*capped, "8G")),
    }  # fmt: skip


def together() -> None:
    jobs = LATER or jobs_together()
    for name, job in jobs.items():
        if name not in ("refused", "much"):
            job.go(40)
    judge_refusals(jobs)
    judge_pause(jobs["pause"])
    judge_exits(jobs)
    judge_pair(jobs["pair-0"], jobs["pair-1"])


def judge_refusals(jobs: dict[str, Job]) -> None:
    status, said = jobs["refused"].wait(30), jobs["refused"].said()
    check(
        "host: refused before the start, with the arithmetic",
        status == 2 and "leaves 0 B for the job itself" in said,
        said.strip().splitlines()[-2:],
    )
    status, said = jobs["much"].wait(30), jobs["much"].said()
    check("host: more than the machine has", status == 69, (status, said.strip().splitlines()[-2:]))
    job = jobs["tight"]
    status = job.wait(50)
    told = [line for line in job.said().splitlines() if "--spill does nothing here" in line]
    check(
        "host: a limit that has no space for it: told, and the job runs",
        status == 0 and bool(told),
        told or job.said()[-600:],
        job.facts,
    )


def judge_pause(job: Job) -> None:
    if not job.until('"step": 12,', 50):
        check("pause: it runs", False, "", job.facts)
        return
    words = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 60}
    first = subprocess.run([*OURS, "pause", "--gpu", "pause"], **words)  # type: ignore[call-overload]
    second = subprocess.run([*OURS, "resume", "pause"], **words)  # type: ignore[call-overload]
    status = job.wait(60)
    losses = [row["loss"] for row in job.rows() if "loss" in row]
    said = (first.stdout + first.stderr + second.stdout + second.stderr).strip().splitlines()
    same = all(
        abs(mine - loss) < 5e-3 * abs(loss)
        for mine, (_, _, loss) in zip(losses, PLAN["reference"]["gpt2"], strict=False)
    )
    good = first.returncode == second.returncode == status == 0 and len(losses) == 156 and same
    check("pause: --gpu and back with the spill in place", good, (status, len(losses), said), job.facts)


def judge_exits(jobs: dict[str, Job]) -> None:
    for name, wanted in (("exit-raise", 1), ("exit-exit", 3)):
        job = jobs[name]
        status = job.wait(40)
        kept = [row for row in job.rows() if "kept" in row]
        check(
            f"{name} while tensors lie in host memory",
            status == wanted and bool(kept),
            (status, kept),
            job.facts,
        )
    job = jobs["exhausted"]
    status = job.wait(40)
    verdict = json.loads((job.folder / "verdict.json").read_text())["verdict"]
    words = "--spill were both full" in verdict["headline"] or "--spill had pinned" in verdict["why"]
    good = status == 1 and verdict["cause"] == "cuda-oom" and words
    check(
        "exit: a spill that is used up is told by the verdict",
        good,
        (verdict["headline"], verdict["why"]),
        job.facts,
    )


def judge_pair(*both: Job) -> None:
    status = [job.wait(50) for job in both]
    spills = [len(job.spills()) for job in both]
    losses = [[row["loss"] for row in job.rows() if "loss" in row] for job in both]
    same = all(abs(one - other) < 5e-3 * abs(other) for one, other in zip(*losses, strict=False))
    good = status == [0, 0] and min(spills) > 0 and same and len(losses[0]) == len(losses[1]) == 10
    check(
        "pair: two jobs spill at once, and both finish with the same losses",
        good,
        (status, spills),
        lambda: [job.facts() for job in both],
    )


def compiled_and_always() -> None:
    """On an empty card, inside a --gpu-limit; compiling takes most of the time."""
    capped = ("--gpu-limit", f"{int(options.left)}G", "--spill")
    compiled = Job("compiled", "compiled", "--sizes", sizes_of("compiled"), flags=(*capped, "14G")).go(60)
    always = Job("always", "gpt2", "--sizes", ",".join(["12"] * 22), flags=(*capped, "8G"))
    fits = judge_always(always)
    if fits:
        judge_fit(fits)
    judge_row("compiled", compiled, left() - 3)


def compiled_on_a_full_card() -> None:
    """The same with the memory taken by a ballast, as the rows of `filled`."""
    job = Job("compiled-full", "compiled", "--sizes", sizes_of("compiled"), flags=("--spill", "14G"))
    ballast = Ballast(options.left)
    try:
        judge_row("compiled", job, left() - 5)
    finally:
        ballast.close()


def cost() -> None:
    """By turns, under oomproof with and without the spill. Not part of a usual run: -2.9 % of 3.4 ms, three turns each, on an H200."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(3):
        for name, flags in (("without", ()), ("with", ("--spill", "4G"))):
            job = Job(
                f"cost-{name}-{len(times[name])}", "small", "--sizes", ",".join(["64"] * 3000), flags=flags
            ).go()
            job.wait(60)
            steps = [row["s"] for row in job.rows() if "step" in row][1000:]
            times[name] += [statistics.median(steps) * 1e6] if steps else []
    more = statistics.median(times["with"]) / statistics.median(times["without"]) - 1
    check(
        "cost: a spill that is not used",
        more < 0.03,
        f"{more:+.1%} of a step of {statistics.median(times['without']):.0f} us; {times}",
    )


def filled() -> None:
    """One after the other, on a card that is physically full."""
    names = [name for name in MODELS if not results["checks"].get(f"row {name}", {}).get("ok")]
    before = memory_available()
    dies = Dies() if not results["checks"].get("dies: each is out of memory without", {}).get("ok") else None
    jobs = {}
    for name in names:
        more = ("--then", "sleep:9") if name == "gpt2" else ()
        jobs[name] = Job(f"row-{name}", name, "--sizes", sizes_of(name), *more, flags=("--spill", "8G"))
    ballast = Ballast(options.left)
    try:
        if dies is not None:
            dies.check()
        if "together" in options.only:
            LATER.update(jobs_together())  # they import meanwhile
        for name, job in jobs.items():
            if left() < 90:
                check(f"row {name}", False, "no time left")
                job.process.terminate()
                continue
            if name == "gpt2":
                job.go()
                judge_books(job, before)
            judge_row(name, job)
            if name == "gpt2":
                judge_shown(job)
    finally:
        ballast.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--only", default="filled,together")
    parser.add_argument("--seconds", type=float, default=225)
    parser.add_argument("--left", type=float, default=10.0)
    parser.add_argument("--reference", default=str(HERE / "spill_reference.json"))
    parser.parse_args(namespace=options)
    PLAN.update(json.loads(Path(options.reference).read_text()))
    if Path(options.results).exists():
        results.update(json.loads(Path(options.results).read_text()))
    sections = (
        ("filled", filled),
        ("together", together),
        ("compiled", compiled_and_always),
        ("compiled-full", compiled_on_a_full_card),
        ("cost", cost),
    )
    for name, section in sections:
        if name not in options.only.split(","):
            continue
        try:
            section()
        except Exception as error:
            check(f"{name}: an error of this script", False, f"{type(error).__name__}: {error}")
    failed = [name for name, entry in results["checks"].items() if not entry["ok"]]
    save()
    print(
        "FAILED: " + "; ".join(failed) if failed else f"all {len(results['checks'])} checks passed",
        f"in {results['seconds']} s",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
