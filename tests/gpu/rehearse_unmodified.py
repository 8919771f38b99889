"""By hand on a machine with an NVIDIA GPU: `oomproof rehearse` of programs that others wrote, beside real runs of the same commands.

    PYTHONPATH=src python tests/gpu/rehearse_unmodified.py RESULTS.json PROGRAMS [--seconds 350] [--only nano-char,run-clm]

PROGRAMS is a folder with
    nanoGPT/    github.com/karpathy/nanoGPT: train.py, model.py, configurator.py, config/, data/
    hf/         github.com/huggingface/transformers: run_clm.py of examples/pytorch/language-modeling, run_glue.py of
                examples/pytorch/text-classification; github.com/huggingface/evaluate: metrics/accuracy as accuracy/
    *.tar.xz, wheels/*.whl    of `datasets`, `evaluate` and what they need, unpacked only where this Python has none of the name
Not a byte of them is changed. Data, a tokenizer and a model with random weights are made by jobs/program_data.py.

Two rounds: nanoGPT, then Hugging Face's Trainer. Each program is rehearsed and, beside that, run for real in a folder of its own; peaks
of the real runs as the driver counted them. One that runs out of memory in its second evaluation comes last. One line per check.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rehearse
from rehearse import ENVIRONMENT, FOLDER, GIB, HERE, Drill, Real, check, options, results

MEDIUM = "n_layer=24,n_embd=1024,n_head=16"
MEDIUM_BYTES = 4 * (12 * 24 * 1024**2 + (50257 + 1024) * 1024)  # of its weights


@dataclass(frozen=True)
class Program:
    folder: str  # of PROGRAMS
    words: str
    on_cpu: str  # further words with --device cpu: to try this script, not oomproof
    evaluated: str  # what its real run prints at an evaluation
    saved: str  # a file that its real run leaves behind


CLM = (
    "run_clm.py --model_type gpt2 --tokenizer_name tokenizer --train_file train.txt --validation_file validation.txt --do_train --do_eval"
    " --eval_strategy steps --save_steps 100 --save_total_limit 1 --block_size 1024 --max_steps 5000 --logging_steps 20 --report_to none"
    " --output_dir out"
)
CLM_ON_CPU = (
    "--use_cpu --max_steps 12 --eval_steps 4 --save_steps 4 --block_size 32 --per_device_train_batch_size 2"
    " --per_device_eval_batch_size 2 --max_eval_samples 6 --config_overrides n_layer=1,n_embd=32,n_head=2"
)
NANO_ON_CPU = (
    "--device=cpu --compile=False --eval_iters=2 --eval_interval=20 --log_interval=10 --block_size=32 --batch_size=4 --n_layer=1"
    " --n_head=2 --n_embd=32 --max_iters=60 --always_save_checkpoint=True"
)
PROGRAMS = {
    "nano-char": Program(
        "nanoGPT", "train.py config/train_shakespeare_char.py", NANO_ON_CPU, r"^step \d+:", "*/ckpt.pt"
    ),
    "nano-gpt2": Program(
        "nanoGPT",
        "train.py config/train_gpt2.py --wandb_log=False --gradient_accumulation_steps=4 --eval_interval=25 --eval_iters=10",
        NANO_ON_CPU,
        r"^step \d+:",
        "*/ckpt.pt",
    ),
    "run-clm": Program(
        "hf",
        f"{CLM} --eval_steps 50 --max_eval_samples 128 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --bf16",
        CLM_ON_CPU,
        "eval_loss",
        "out/checkpoint-*/*.safetensors",
    ),
    "run-glue": Program(
        "hf",
        "run_glue.py --model_name_or_path bert --train_file train.json --validation_file validation.json --do_train --do_eval"
        " --max_seq_length 512 --pad_to_max_length False --per_device_train_batch_size 32 --per_device_eval_batch_size 64"
        " --eval_strategy steps --eval_steps 100 --max_eval_samples 1280 --save_steps 100 --save_total_limit 1 --max_steps 5000"
        " --logging_steps 20 --report_to none --output_dir out",
        "--use_cpu --max_steps 12 --eval_steps 4 --save_steps 4 --per_device_train_batch_size 2 --per_device_eval_batch_size 4"
        " --max_eval_samples 12",
        "eval_loss",
        "out/checkpoint-*/*.safetensors",
    ),
}
ROUNDS = (("nano-char", "nano-gpt2"), ("run-clm", "run-glue"))
SECOND = Program(
    "hf",
    f"{CLM} --eval_steps 20 --max_eval_samples 64 --per_device_train_batch_size 1 --per_device_eval_batch_size 32 --bf16"
    f" --eval_on_start True --config_overrides {MEDIUM}",
    CLM_ON_CPU,
    "eval_loss",
    "",
)


def command(program: Program) -> list[str]:
    more = program.on_cpu if options.device == "cpu" else ""
    return [sys.executable, *program.words.split(), *more.split()]


def checksums(folder: Path) -> dict[str, str]:
    """Of the programs' own files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.py"))
    }


def unpack(programs: Path) -> None:
    """What this Python lacks of the carried packages, into a folder of its own."""
    site, everything = FOLDER / "site", FOLDER / "everything"
    everything.mkdir()
    for archive in sorted(programs.glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            tar.extractall(everything, filter="data")
    for wheel in sorted((programs / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(everything)
    site.mkdir()
    kept = [path for path in everything.iterdir() if not _has(path.name)]
    for path in kept:
        path.rename(site / path.name)
    shutil.rmtree(everything)
    results["facts"]["packages carried and used"] = sorted(path.name for path in kept)
    print("     carried and used:", *results["facts"]["packages carried and used"], flush=True)
    ENVIRONMENT["PYTHONPATH"] += os.pathsep + str(site)


def _has(name: str) -> bool:
    package = re.split(r"-\d", name)[0] if name.endswith((".dist-info", ".data")) else name.split(".")[0]
    package = {"python_dateutil": "dateutil"}.get(package, package)
    return importlib.util.find_spec(package) is not None


def make(programs: Path) -> None:
    for name in ("nanoGPT", "hf"):
        shutil.copytree(programs / name, FOLDER / "made" / name)
    began = time.monotonic()
    words = [sys.executable, str(HERE / "jobs" / "program_data.py"), str(FOLDER / "made")]
    tiny = ["--tiny"] if options.device == "cpu" else []
    subprocess.run([*words, *tiny], env=ENVIRONMENT, check=True, timeout=300)
    print(f"     data made in {time.monotonic() - began:.0f} s", flush=True)


def place(name: str, program: Program) -> tuple[Path, dict[str, str]]:
    folder = FOLDER / name
    shutil.copytree(FOLDER / "made" / program.folder, folder)
    quiet = {
        "HF_HOME": str(folder / "hf-home"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    return folder, quiet


def drill(name: str, program: Program, more: dict[str, str] | None = None) -> Drill:
    folder, environment = place(f"drill-{name}", program)
    return Drill(folder, command(program), {**environment, **(more or {})}, time_limit="2m")


def real(name: str, program: Program, more: dict[str, str] | None = None) -> tuple[Real, Path]:
    folder, environment = place(f"real-{name}", program)
    return Real(name, folder, command(program), {**environment, **(more or {})}), folder


def sizes(value: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {
        phase["phase"]: (
            round((phase["gpu_bytes"] or 0) / GIB, 2),
            round((phase["host_bytes"] or 0) / GIB, 2),
        )
        for phase in value.get("phases", [])
        if phase["reached"]
    }


def compare(name: str, rehearsed: Drill, ran: tuple[Real, Path], ends: float) -> None:
    program, value = PROGRAMS[name], rehearsed.result()
    status, card, ram = ran[0].peaks(ends - time.monotonic())
    log = ran[0].log.read_text(errors="replace")
    evaluations = len(re.findall(program.evaluated, log, re.M))
    saved = any(ran[1].glob(program.saved))
    results["facts"][name] = {
        "command": " ".join(["python", *command(program)[1:]]),
        "rehearsal": value,
        "real": {
            "status": status,
            "card": card,
            "ram": ram,
            "evaluations": evaluations,
            "saved": saved,
            "growth": ran[0].growth(),
        },
    }
    gpu = (value.get("gpu") or {}).get("peak_bytes") or 0
    host = (value.get("host") or {}).get("peak_bytes") or 0
    text = (
        f"{gpu / GIB:.2f} GiB rehearsed in {value.get('seconds')} s, {card / GIB:.2f} GiB in the real run"
        f" ({evaluations} evaluations; host {host / GIB:.2f} and {ram / GIB:.2f}); (card, host) by phase {sizes(value)}"
    )
    facts = {"rehearsal": value, "log": log[-3000:]}
    ended_well = evaluations >= 3 and saved
    check(f"{name}: the real run evaluated three times and saved", ended_well, (status, evaluations), facts)
    if options.device == "cpu":
        close = abs(host / max(1, ram) - 1) < 0.15
    else:
        close = abs(gpu / max(1, card) - 1) < 0.03
    check(f"{name}: within 3 % of the real run's peak on the card", close, text, facts)
    reached = {phase["phase"] for phase in value.get("phases", []) if phase["reached"]}
    check(
        f"{name}: training, two evaluations and saving within two minutes",
        {"train", "eval", "save"} <= reached
        and value.get("evaluations", 0) >= 2
        and (value.get("seconds") or 999) < 120
        and value.get("status") == 0,
        (
            sorted(reached),
            value.get("evaluations"),
            value.get("seconds"),
            value.get("status"),
            value.get("notes"),
        ),
        facts,
    )
    rehearse.check_files(name, rehearsed)
    if name == "run-glue":
        shapes = [batch["shapes"] for batch in value.get("batches", []) if batch["training"]]
        longest = "512]" if options.device != "cpu" else ""
        check("run-glue: the longest text is in the batch", longest in str(shapes), shapes)


def second_evaluation(measured: Drill) -> None:
    """Of a model whose evaluation fits beside its weights, and no longer once the optimizer has its state."""
    value = measured.result()
    phases = {phase["phase"]: phase["gpu_allocated_bytes"] or 0 for phase in value.get("phases", [])}
    total = (value.get("gpu") or {}).get("total_bytes") or 0
    allowed = phases.get("eval", 0) - MEDIUM_BYTES
    print(f"     second evaluation: tensors by phase {phases}, allowed {allowed / GIB:.2f} GiB", flush=True)
    results["facts"]["second evaluation, free"] = value
    if not total or allowed < phases.get("train", 0):
        check(
            "second evaluation: can be shown", options.device == "cpu", (phases, value.get("refused")), value
        )
        return
    limit = {"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{allowed / total:.5f}"}
    rehearsed, ran = drill("second", SECOND, limit), real("second", SECOND, limit)
    value = rehearsed.result()
    status, _, _ = ran[0].peaks()
    log = ran[0].log.read_text(errors="replace")
    evaluations, oom = len(re.findall(SECOND.evaluated, log)), value.get("out_of_memory") or {}
    died = status not in (0, 143) and "out of memory" in log.lower()
    results["facts"]["second evaluation"] = {"rehearsal": value, "limit": limit, "log": log[-4000:]}
    check(
        "second evaluation: the real run dies in it",
        died and evaluations == 1,
        (status, evaluations),
        log[-2500:],
    )
    check(
        "second evaluation: refused beforehand with the phase named",
        value.get("status") in (69, 75) and oom.get("phase") == "eval" and value.get("steps", 0) > 0,
        (value.get("status"), oom, value.get("steps"), value.get("seconds")),
        value,
    )


def round_of(names: Iterable[str]) -> None:
    chosen = [name for name in names if not options.only or name in options.only.split(",")]
    ends = time.monotonic() + options.real_seconds
    drills = {name: drill(name, PROGRAMS[name]) for name in chosen}
    reals = {name: real(name, PROGRAMS[name]) for name in chosen}
    last = drill("second-free", SECOND) if "run-clm" in chosen else None
    for name in chosen:
        try:
            compare(name, drills[name], reals[name], ends)
        except Exception as error:
            check(f"{name}: an error of this script", False, f"{type(error).__name__}: {error}")
    if last is not None:
        second_evaluation(last)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("programs", type=Path)
    parser.add_argument("--seconds", type=float, default=350)
    parser.add_argument(
        "--real-seconds", type=float, default=125, help="of a real run that has not ended by itself"
    )
    parser.add_argument("--only", default="", help="some of " + ",".join(PROGRAMS))
    parser.add_argument("--device", default="cuda")
    parser.parse_args(namespace=options)
    before = checksums(options.programs)
    unpack(options.programs)
    make(options.programs)
    for names in ROUNDS:
        round_of(names)
    copies = {
        f"{name}: {path}"
        for name in PROGRAMS
        for path, value in checksums(FOLDER / f"drill-{name}").items()
        if before.get(f"{PROGRAMS[name].folder}/{path}") != value
    }
    check(
        "the programs are those of their repositories",
        not copies,
        sorted(copies)[:5] or f"{len(before)} files",
    )
    return rehearse.summed_up()


if __name__ == "__main__":
    sys.exit(main())
