"""Does the guard leave healthy trainings alone? Real programs under limits just above their peak, and leaks among them.

Each healthy program runs once to find its true peak, then under limits 5 %, 10 % and 25 % above that. No run knows
of another one's history. A program that the kernel alone would not let finish under a limit is told apart. Leaks run
under one limit each. Results are kept as they come: a run that was cut goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import (
    HERE,
    MIB,
    OOMPROOF,
    RESULTS,
    Lab,
    end,
    inside,
    lab,
    read_json,
    save,
    small_machine,
    table,
    until,
)

from oomproof.machine.cgroups import Cgroup, CgroupV1, CgroupV2

HOME = HERE.parent / "build" / "false_stops"
SOURCES = {  # what is not ours, at the commit it was tried at
    "transformers": (
        "https://github.com/huggingface/transformers",
        "d56c55bf564ddb176759eb6ec199442682564916",
    ),
    "examples": ("https://github.com/pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "minGPT": ("https://github.com/karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
    "nanoGPT": ("https://github.com/karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
}
PACKAGES = ("datasets", "evaluate", "scikit-learn", "requests", "sentencepiece")
ABOVE = (5, 10, 25)  # percent
AMPLE = 4 << 30  # the limit of the run that finds the peak
LONGEST = 300.0  # seconds of one run


@dataclass(frozen=True)
class Program:
    """One command. ``{sources}``, ``{data}`` and ``{here}`` in it stand for folders."""

    name: str
    argv: Sequence[str]
    what: str
    limit: int = 0  # of a leak
    before: Sequence[str] = ()  # a command that makes its data
    folder: str = ""  # copied to where it runs


_LANGUAGE = "{sources}/transformers/examples/pytorch/language-modeling"
_MODEL = ("--tokenizer_name", "{data}/tokenizer", "--train_file", "{data}/train.txt")
_TRAINER = (
    "--do_train", "--per_device_train_batch_size", "4", "--output_dir", "out", "--save_strategy", "no",
    "--report_to", "none", "--use_cpu",
)  # fmt: skip
_GPT = ("--model_type", "gpt2", "--config_overrides", "n_embd=128,n_layer=2,n_head=2,vocab_size=2000")
_BERT = (
    "--model_type",
    "bert",
    "--config_overrides",
    "hidden_size=128,num_hidden_layers=2,num_attention_heads=2",
)
_WORDS = "{sources}/examples/word_language_model/main.py"


def _words(model: str, *more: str) -> tuple[str, ...]:
    return (_WORDS, "--data", "{data}/words", "--model", model, "--epochs", "1", *more)


HEALTHY = (
    Program("run_clm", (f"{_LANGUAGE}/run_clm.py", *_GPT, *_MODEL, *_TRAINER, "--block_size", "128", "--max_steps", "40"), "Hugging Face example, Trainer"),
    Program("run_clm large", (f"{_LANGUAGE}/run_clm.py", "--model_type", "gpt2", "--config_overrides", "n_embd=384,n_layer=4,n_head=6,vocab_size=2000", *_MODEL, *_TRAINER, "--block_size", "128", "--max_steps", "25"), "the same, a larger model"),
    Program("run_mlm", (f"{_LANGUAGE}/run_mlm.py", *_BERT, *_MODEL, *_TRAINER, "--max_seq_length", "128", "--max_steps", "40"), "Hugging Face example, Trainer"),
    Program("word LSTM", _words("LSTM"), "PyTorch example"),
    Program("word GRU", _words("GRU", "--emsize", "400", "--nhid", "400"), "PyTorch example"),
    Program("word Transformer", _words("Transformer", "--lr", "5"), "PyTorch example"),
    Program("regression", ("{sources}/examples/regression/main.py",), "PyTorch example"),
    Program("nanoGPT", ("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=5", "--eval_interval=30", "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters=60", "--lr_decay_iters=60", "--always_save_checkpoint=True"), "its own Shakespeare recipe for a CPU", before=("data/shakespeare_char/prepare.py",), folder="nanoGPT"),
    Program("minGPT adder", ("projects/adder/adder.py", "--trainer.max_iters=80", "--trainer.num_workers=2"), "two loader workers", folder="minGPT"),
    Program("minGPT chargpt", ("projects/chargpt/chargpt.py", "--trainer.max_iters=30", "--model.model_type=gpt-micro", "--trainer.batch_size=8", "--trainer.num_workers=0"), "its own project", folder="minGPT"),
    Program("Trainer with eval", ("{here}/programs/trainer_eval.py",), "Hugging Face Trainer, eval and checkpoints"),
    Program("accelerate", ("{here}/programs/accelerate_loop.py",), "accumulated gradients, saved states"),
    Program("Lightning images", ("{here}/programs/lightning_images.py", "2"), "Lightning, two workers, checkpoints"),
    Program("Lightning text", ("{here}/programs/lightning_text.py",), "Lightning's demo"),
    Program("torch loop", ("{here}/programs/torch_loop.py", "64", "0"), "plain loop, large batches"),
    Program("torch loop, workers", ("{here}/programs/torch_loop.py", "16", "2"), "plain loop, two workers"),
    Program("caching dataset", ("{here}/programs/torch_cache.py",), "grows through the first epoch"),
    Program("replay buffer", ("{here}/programs/replay_buffer.py",), "grows for half of its steps"),
    Program("generate", ("{here}/programs/generate_text.py",), "transformers, no training"),
    Program("scikit-learn", ("{here}/programs/sklearn_forest.py",), "forest and boosting, no agent"),
    Program("NumPy", ("{here}/programs/numpy_pca.py",), "large arrays come and go, no agent"),
    Program("pandas", ("{here}/programs/pandas_table.py",), "a table grows, no agent"),
)  # fmt: skip


def _leak(kind: str, what: str, limit_mib: int = 520) -> Program:
    return Program(f"leak: {kind}", ("{here}/programs/leaks.py", kind), what, limit_mib * MIB)


LEAKS = (
    _leak("each step", "half a MiB with each step"),
    _leak("drip", "a sixteenth of a MiB with each step", 385),
    _leak("stairs", "12 MiB every 60 steps"),
    _leak("eval", "10 MiB with each evaluation"),
    _leak("late", "flat for 250 steps, then half a MiB each"),
    _leak("workers", "two loader workers, an eighth of a MiB per example", 900),
    _leak("fill", "flat for 60 steps, then about 1 GiB/s"),
)


@dataclass
class Result:
    """One run. Sizes in bytes, times in seconds."""

    limit: int
    status: int | None  # exit code, or minus the signal
    seconds: float
    peak: int  # the most that counted against the limit
    actions: list[str] = field(default_factory=list)  # by the guard: ask, withdraw, term, kill
    saves: int = 0  # requests to save and go on
    warnings: int = 0
    by_kernel: bool = False
    saved: bool = False  # a checkpoint was written
    asked_before_end: float | None = None  # from the first request to the job's end
    room_at_request: int | None = None
    time_at_request: float | None = None  # until full, by the guard's figure of the growth
    kernel_alone: str = ""  # of a run that was not left alone: what happens to it without us

    @property
    def left_alone(self) -> bool:
        return self.status == 0 and not self.actions and not self.saves


# --- the programs ----------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Sources, packages and data, where they are not there yet."""
    for name, (url, commit) in SOURCES.items():
        folder = HOME / "sources" / name
        if not folder.exists():
            run = ["git", "-C", str(folder)]
            folder.mkdir(parents=True)
            subprocess.run([*run, "init", "-q"], check=True)
            subprocess.run([*run, "fetch", "-q", "--depth", "1", url, commit], check=True)
            subprocess.run([*run, "checkout", "-q", "FETCH_HEAD"], check=True)
    if not (HOME / "packages").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(HOME / "packages")]
        subprocess.run([*pip, *PACKAGES], check=True)
    if not (HOME / "data" / "words").exists():
        subprocess.run([sys.executable, str(HERE / "programs" / "make_data.py"), str(HOME)], check=True)


def fill_in(words: Sequence[str]) -> list[str]:
    folders = {"sources": str(HOME / "sources"), "data": str(HOME / "data"), "here": str(HERE)}
    return [word.format(**folders) for word in words]


@contextmanager
def workplace(program: Program) -> Iterator[tuple[Lab, Path, dict[str, str]]]:
    """A fresh state folder, a fresh working folder and the environment of one run."""
    with lab() as here:
        work = here.folder / "work"
        if program.folder:
            ignore = shutil.ignore_patterns(".git")
            shutil.copytree(HOME / "sources" / program.folder, work, ignore=ignore)
        (work / "data" / "shakespeare_char").mkdir(parents=True, exist_ok=True)
        text = HOME / "data" / "train.txt"
        for name in ("data/shakespeare_char/input.txt", "data/wikitext-2.txt", "input.txt"):
            shutil.copy(text, work / name)
        environment = {
            **here.environment,
            "PYTHONPATH": f"{HOME / 'packages'}:{work}",
            "HF_HOME": str(here.folder / "hugging"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",  # so that several at a time do not wait for each other's threads
        }
        del environment["PYTHONPYCACHEPREFIX"]  # the libraries' bytecode is where it always is
        if program.before:
            subprocess.run([sys.executable, *fill_in(program.before)], cwd=work, env=environment, check=True)
        yield here, work, environment


class Peak(threading.Thread):
    """Reads what counts against the limit every few milliseconds."""

    def __init__(self, directory: str, version: int) -> None:
        super().__init__(daemon=True)
        self._view: Cgroup = CgroupV2(directory) if version == 2 else CgroupV1(directory)
        self.highest = 0
        self.series: list[tuple[float, int]] = []

    def run(self) -> None:
        while (memory := self._view.memory()) is not None:
            now, held = time.clock_gettime(time.CLOCK_BOOTTIME), memory.charged + memory.swap
            self.highest = max(self.highest, held)
            last = self.series[-1] if self.series else (0.0, 0)
            if now - last[0] >= 0.5 or (abs(held - last[1]) >= 2 * MIB and now - last[0] >= 0.02):
                self.series.append((now, held))
            time.sleep(0.003)


def run_once(program: Program, limit: int, keep: Path | None = None) -> Result:
    """``keep``: a folder for the series; a leak is then ended by us at its usual limit."""
    with workplace(program) as (here, work, environment):
        command = [
            OOMPROOF,
            "run",
            "--name",
            "job",
            "--limit",
            str(limit),
            "--",
            sys.executable,
            *fill_in(program.argv),
        ]
        log = here.folder / "terminal.log"
        begun = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            attempt = here.attempt("job")
            started = until(lambda: read_json(attempt / "started.json"), "the start")
            backend = started["backend"]
            peak = Peak(backend["memory"], backend["version"])
            peak.start()
            if program.limit and keep is not None:
                until(lambda: peak.highest >= program.limit, "the leak to grow", LONGEST)
                end(process)
            process.wait(LONGEST)
        finally:
            end(process)
        seconds = time.monotonic() - begun
        peak.join(5)
        result = judge(attempt, limit, seconds, peak.highest)
        result.saved = any(work.glob("*/checkpoint-*")) if program.limit else False
        if keep is not None:
            keep_series(keep, program, peak.series, attempt)
        if result.status != 0 and limit == AMPLE and not program.limit:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
        return result


def judge(attempt: Path, limit: int, seconds: float, peak: int) -> Result:
    started, ended = read_json(attempt / "started.json"), read_json(attempt / "exit.json")
    kills = [(one.get("counters") or {}).get("memcg_oom_kill") or 0 for one in (started, ended)]
    signal_number = ended.get("signal")
    status = -int(signal_number) if signal_number else ended.get("code")
    result = Result(limit, status, round(seconds, 1), peak, by_kernel=kills[1] > kills[0])
    path = attempt / "actions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    result.actions = [line["action"] for line in lines if line["by"] == "guard" and line["action"] != "warn"]
    result.warnings = sum(line["action"] == "warn" for line in lines)
    asked = next((line for line in lines if line["action"] == "request"), None)
    if asked is not None and ended.get("boottime"):
        facts = asked["facts"]
        result.asked_before_end = round(ended["boottime"] - asked["boottime"], 1)
        result.room_at_request = facts.get("peak_headroom") or facts.get("limit_headroom")
        growth = facts.get("lasting") or facts.get("sustained")
        result.time_at_request = round((result.room_at_request or 0) / growth, 1) if growth else None
    with sqlite3.connect(attempt / "recording.sqlite") as recording:
        result.saves = recording.execute("SELECT count(*) FROM event WHERE kind = 'save'").fetchone()[0]
    return result


def keep_series(folder: Path, program: Program, series: list[tuple[float, int]], attempt: Path) -> None:
    """What was held, and the phases and steps that were told: for replays against the policy."""
    with sqlite3.connect(attempt / "recording.sqlite") as recording:
        phases = recording.execute("SELECT t, name, step FROM phase ORDER BY t").fetchall()
    start = series[0][0]
    folder.mkdir(parents=True, exist_ok=True)
    name = program.name.replace(": ", "-").replace(", ", "-").replace(" ", "-")
    text = json.dumps(
        {
            "program": " ".join([*program.argv]),
            "held_kib": [[round(t - start, 2), held // 1024] for t, held in series],
            "phases": [[round(max(0.0, t - start), 2), phase, step] for t, phase, step in phases],
        },
        separators=(",", ":"),
    )
    (folder / f"{name}.json").write_text(text + "\n")


def kernel_alone(program: Program, limit: int) -> str:
    """The same program and limit without oomproof."""
    with workplace(program) as (_, work, environment):
        name = f"bench-alone-{abs(hash(program.name)) % 10_000}-{limit}"
        with small_machine(limit, name) as directory:
            if directory is None:
                return ""
            command = [*inside(directory), sys.executable, *fill_in(program.argv)]
            null = subprocess.DEVNULL
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=null, stdout=null, stderr=null
            )
            try:
                code = process.wait(LONGEST)
            finally:
                end(process)
            return "finishes" if code == 0 else "killed" if code == -signal.SIGKILL else f"fails ({code})"


# --- the table -------------------------------------------------------------------------------------------------------


def measure(program: Program, store: dict[str, Any], keep: Path | None, write: Any) -> None:
    """All runs of one program that are not stored yet."""
    mine = store.setdefault(program.name, {})
    if program.limit:
        if "leak" not in mine:
            mine["leak"] = asdict(run_once(program, program.limit))
            write()
        if keep is not None:
            run_once(program, AMPLE, keep)
        return
    if "peak" not in mine:
        found = run_once(program, AMPLE, keep)
        if found.status != 0:
            print(f"{program.name} does not run here (status {found.status}): left out", flush=True)
            return
        mine["peak"], mine["seconds"], mine["ample"] = found.peak, found.seconds, asdict(found)
        write()
    for percent in ABOVE:
        if str(percent) in mine:
            continue
        limit = mine["peak"] * (100 + percent) // 100
        result = run_once(program, limit)
        if (
            result.peak > mine["peak"] and not result.left_alone
        ):  # that was more than it held before: measure again
            mine["peak"] = result.peak
            limit = mine["peak"] * (100 + percent) // 100
            result = run_once(program, limit)
        if not result.left_alone:
            result.kernel_alone = kernel_alone(program, limit)
        mine[str(percent)] = asdict(result)
        write()


def facts_text(result: dict[str, Any]) -> str:
    if result["status"] == 0 and not result["actions"] and not result["saves"]:
        return "left alone"
    told = [*result["actions"], *(["asked to save"] if result["saves"] else [])]
    if result["by_kernel"]:
        told.append("killed by the kernel")
    if result["kernel_alone"]:
        told.append(f"kernel alone: {result['kernel_alone']}")
    return ", ".join(told) or f"status {result['status']}"


def show(store: dict[str, Any]) -> None:
    rows = []
    for program in HEALTHY:
        mine = store.get(program.name) or {}
        if "peak" in mine:
            results = [facts_text(mine[str(p)]) if str(p) in mine else "–" for p in ABOVE]
            rows.append(
                [program.name, program.what, f"{mine['peak'] / MIB:.0f}", f"{mine['seconds']:.0f}", *results]
            )
    header = ["program", "what", "peak MiB", "s", *(f"limit {p} % above" for p in ABOVE)]
    table(f"Healthy programs ({len(rows)})", header, rows)
    rows = []
    for program in LEAKS:
        mine = (store.get(program.name) or {}).get("leak")
        if not mine:
            continue
        available, left, before = (
            mine[key] for key in ("room_at_request", "time_at_request", "asked_before_end")
        )
        rows.append([
            program.what,
            f"{program.limit / MIB:.0f}",
            "the kernel" if mine["by_kernel"] else ", ".join(mine["actions"]) or "nobody",
            "yes" if mine["saved"] else "no",
            f"{available / MIB:.0f}" if available is not None else "–",
            f"{left:.1f}" if left is not None else "–",
            f"{before:.1f}" if before is not None else "–",
        ])  # fmt: skip
    header = [
        "leak",
        "limit MiB",
        "ended by",
        "saved",
        "MiB left at the request",
        "full in, s",
        "ended after, s",
    ]
    table(f"Leaks ({len(rows)})", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of programs, or parts of names")
    parser.add_argument("--quick", action="store_true", help="only the limit 5 %% above the peak")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--jobs", type=int, default=1, help="programs at the same time")
    parser.add_argument("--keep-series", type=Path, help="a folder for what each program held over time")
    parser.add_argument("--results", default="false-stops", help="name of the file in bench/results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what we started is ended
    if arguments.quick:
        globals()["ABOVE"] = ABOVE[:1]
    prepare()
    store: dict[str, Any] = read_json(RESULTS / f"{arguments.results}.json").get("programs", {})
    chosen = [
        program
        for program in (*HEALTHY, *LEAKS)
        if not arguments.only or any(part in program.name for part in arguments.only)
    ]
    if arguments.again:
        for program in chosen:
            store.pop(program.name, None)
    lock = threading.Lock()

    def write() -> None:
        with lock:
            save(arguments.results, {"above_percent": ABOVE, "programs": store})

    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(measure, one, store, arguments.keep_series, write) for one in chosen]
        for program, run in zip(chosen, runs, strict=True):
            try:
                run.result()
            except (OSError, TimeoutError, subprocess.SubprocessError, KeyError) as error:
                print(f"{program.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    show(store)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
