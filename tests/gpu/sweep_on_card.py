"""By hand, on a machine with an NVIDIA GPU and PyTorch: a sweep whose trials run out of the card's memory.

    PYTHONPATH=src python tests/gpu/sweep_on_card.py [RESULTS.json] [--only split skip together] [--seconds 150]

Needs the standard library, pynvml and torch; no Optuna. Each trial may hold 4 GiB of the card (--gpu-limit). Prints one line a
check, writes the results after each case; exits 1 when one fails. Without a card the same is rehearsed in RAM (--limit 400M).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRIAL = Path(__file__).parent / "jobs" / "sweep_trial.py"
OURS = [sys.executable, "-m", "oomproof.cli.main"]
results: dict[str, Any] = {}
failures: list[str] = []


def check(name: str, good: bool, detail: object = "") -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)
    results[name] = {"ok": good, "detail": str(detail)}
    if not good:
        failures.append(name)


def sweep(state: Path, name: str, seconds: float, *words: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `oomproof sweep --json` says at its end."""
    command = [*OURS, "sweep", "--name", name, "--metric", "loss", "--json", *words]
    command += ["--", sys.executable, str(TRIAL), "--batch", "{batch}", *more]
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    begun = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    print(done.stderr, end="", flush=True)
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = {"trials": [], "state": "none", "counts": {}}
    told["status"], told["seconds"] = done.returncode, round(time.monotonic() - begun, 1)
    return told


def states(told: dict[str, Any]) -> list[str]:
    return [trial["state"] for trial in told["trials"]]


def skip(state: Path, limit: list[str], on_card: bool, seconds: float) -> None:
    """The first is too large and dies; a larger one is skipped for that; two that fit are measured."""
    told = sweep(state, "skip", seconds, *limit, "--grace", "2", "--param", "batch=400,32,64,480")
    check(
        "skip: each accounted for", states(told) == ["out-of-memory", "done", "done", "skipped"], states(told)
    )
    if len(told["trials"]) == 4:
        first, second, third, last = told["trials"]
        cause = first["cause"]
        check(
            "skip: why it died",
            cause == "cuda-oom" if on_card else cause in ("stopped-by-guard", "oom-kill-memcg"),
            cause,
        )
        check("skip: why the larger one was skipped", "trial 1 died" in (last["why"] or ""), last["why"])
        peaks = [trial["peak_gpu_bytes" if on_card else "peak_bytes"] for trial in (second, third)]
        good = (
            None not in peaks and 0.7 < (peaks[1] - peaks[0]) / ((32 << 24) if on_card else (32 << 20)) < 1.3
        )
        check("skip: the measured peaks differ by 32 samples", good, peaks)
    results["skip"] = told


def split(state: Path, limit: list[str], on_card: bool, seconds: float) -> None:
    """A batch that does not fit is split; samples of one optimizer step stay."""
    more = ("--accum", "{accum}")
    told = sweep(state, "split", seconds, *limit, "--grace", "2", "--param", "batch=400", more=more)
    check("split: done", states(told) == ["done"], states(told))
    for trial in told["trials"]:
        run_as = trial["run_as"]
        check("split: the same effective batch", int(run_as["batch"]) * int(run_as["accum"]) == 400, run_as)
        output = state / "oomproof" / "runs" / str(trial["tries"][-1]["run"]) / "1" / "output.log"
        check("split: as many samples", "samples=400" in output.read_text(), f"{len(trial['tries'])} tries")
    results["split"] = told


def together(state: Path, limit: list[str], on_card: bool, seconds: float) -> None:
    """Two at once, each with its need of the card reserved."""
    need = ["--gpu-need", "2G", "--need", "1G"] if on_card else ["--need", "400M"]
    words = [*limit, *need, "--parallel", "2", "--param", "batch=64", "--param", "lr=0.1,0.2,0.3,0.4"]
    told = sweep(state, "together", seconds, *words, more=("--lr", "{lr}", "--seconds", "6"))
    check("together: all done", states(told) == ["done"] * 4, states(told))
    spans = []
    for trial in told["trials"]:
        folder = state / "oomproof" / "runs" / str(trial["tries"][-1]["run"]) / "1"
        started, ended = (json.loads((folder / name).read_text()) for name in ("started.json", "exit.json"))
        spans.append((started["boottime"], ended["boottime"]))
    at_once = max((sum(begin <= moment < end for begin, end in spans) for moment, _ in spans), default=0)
    check("together: two at once", at_once == 2, at_once)
    results["together"] = told


CASES = {"skip": skip, "split": split, "together": together}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=150.0)
    arguments = parser.parse_args()
    import torch

    on_card = torch.cuda.is_available()
    limit = ["--gpu-limit", "4G"] if on_card else ["--limit", "400M"]
    results["device"] = torch.cuda.get_device_name(0) if on_card else "none: rehearsed in RAM"
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            left = end - time.monotonic()
            if left < 20:
                print(f"left out for want of time: {name}", flush=True)
                continue
            try:
                CASES[name](Path(folder), limit, on_card, left)
            except (subprocess.TimeoutExpired, OSError, KeyError, ValueError, TypeError) as error:
                check(name, False, f"{type(error).__name__}: {error}")
            if arguments.results:
                Path(arguments.results).write_text(json.dumps(results, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
