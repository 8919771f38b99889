"""`oomproof why FILE` over logs as they come about: our own labelled texts, put into the shapes that real files have.

    python bench/why_stress.py                      every shape
    python bench/why_stress.py --only runs,notebook --misses

Several runs in one file, two jobs line by line, errors before the rest of the output, broken at a screen's width, cut
anywhere, in a notebook, quoted by somebody else. A shape's verdict must be that of the text it was made from; of a text
that is only quoted, no death. A cut text may say less than the whole, but no other figure.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diagnosis import HERE, figures, truths

from oomproof.causes import cause_of
from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.text_case import read_texts

Lines = list[str]
_SIZE = re.compile(r"\b(\d{1,6})(\.\d\d)?(?= ?(?:[KMGT]i?B|bytes)\b)|(?<=\(pid )\d+|(?<=pid: )\d+")


def header(number: int) -> Lines:
    return [
        f"2024-05-0{number} 10:00:0{number} INFO run.py: starting the training, seed {number}",
        f"Namespace(batch_size={8 * number}, lr=0.00{number}, seed={number})",
        "Loading the data from data/train.csv",
    ]


def steps(first: int, last: int, every: int = 5) -> Lines:
    return [f"step {step} loss {3 / (step + 1):.4f} lr 0.001" for step in range(first, last, every)]


def epochs(first: int, last: int) -> Lines:
    return [f"Epoch {epoch}/30, train loss: {2 / (epoch + 1):.4f}" for epoch in range(first, last)]


def other_figures(lines: Lines) -> Lines:
    """The same death with other sizes and pids."""
    return [
        _SIZE.sub(lambda size: str(int(size[1] or size[0]) * 2 + 3) + (size[2] or ""), line) for line in lines
    ]


def broken(lines: Lines, width: int) -> Lines:
    return [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]


def woven(lines: Lines, others: Lines) -> Lines:
    return [
        line for pair in zip(lines, (others * (len(lines) // len(others) + 1)), strict=False) for line in pair
    ]


def notebook(cells: list[tuple[str, list[dict[str, Any]]]]) -> Lines:
    book = {
        "cells": [
            {
                "cell_type": "code", "execution_count": number, "metadata": {}, "outputs": outputs,
                "source": code.splitlines(True),
            }
            for number, (code, outputs) in enumerate(cells, 1)
        ],
        "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    return json.dumps(book, indent=1, ensure_ascii=False).splitlines()


def stream(lines: Lines) -> dict[str, Any]:
    return {"name": "stderr", "output_type": "stream", "text": [f"{line}\n" for line in lines]}


def raised(lines: Lines) -> dict[str, Any]:
    """As a kernel keeps an exception: its frames coloured, each a string of several lines."""
    name, _, message = next((line for line in reversed(lines) if line.strip()), "Error: x").partition(": ")
    frames = [f"\x1b[0;31m{'-' * 75}\x1b[0m", *(f"\x1b[0;32m{line}\x1b[0m\n" for line in lines)]
    return {"ename": name, "evalue": message, "output_type": "error", "traceback": frames}


Shape = Callable[[Lines, Lines, random.Random], Lines]  # the text's lines, another death's, chance
BAR = [f"train:  {at}%|###   | {at}/100 [00:{at:02d}<01:00,  1.0it/s]" for at in range(0, 60, 5)]
SHAPES: dict[str, Shape] = {
    "as it is": lambda text, other, chance: text,
    "runs: header again": lambda text, other, chance: (
        header(1) + steps(0, 60) + other + header(2) + steps(0, 40) + text
    ),
    "runs: header again, same death, other figures": lambda text, other, chance: (
        header(1) + steps(0, 60) + other_figures(text) + header(2) + steps(0, 40) + text
    ),
    "runs: job's number": lambda text, other, chance: (
        ["Loading module cuda/12.1", "SLURM_JOB_ID=4711", "node: gpu-07", *steps(0, 60), *other_figures(text), "Loading module cuda/12.1", "SLURM_JOB_ID=4712", "node: gpu-11", *steps(0, 40), *text]
    ),
    "runs: commands": lambda text, other, chance: (
        ["+ export OMP_NUM_THREADS=4", "+ python train.py --lr 0.1", *steps(0, 60), *other_figures(text), "+ python train.py --lr 0.01", *steps(0, 40), *text]
    ),
    "runs: trials": lambda text, other, chance: (
        ["4 trials, grid search", "===== trial 1/4: lr=0.1 =====", *other_figures(text), "===== trial 2/4: lr=0.01 =====", *text]
    ),
    "runs: steps begin again": lambda text, other, chance: (
        steps(0, 90) + other_figures(text) + steps(0, 40) + text
    ),
    "runs: epochs begin again": lambda text, other, chance: (
        epochs(1, 9) + other_figures(text) + epochs(1, 5) + text
    ),
    "runs: three": lambda text, other, chance: (
        header(1) + steps(0, 60) + other + header(2) + steps(0, 40) + other_figures(text) + header(3) + text
    ),
    "woven: another rank's steps": lambda text, other, chance: woven(
        [f"[rank0]: {line}" for line in text], [f"[rank1]: {line}" for line in steps(0, 400)]
    ),
    "woven: another job's steps": lambda text, other, chance: woven(text, steps(0, 4000)),
    "woven: heartbeats": lambda text, other, chance: woven(
        text, [f"2024-05-03 12:00:{at % 60:02d} INFO heartbeat ok queue={at % 7}" for at in range(500)]
    ),
    "woven: another rank's same death": lambda text, other, chance: woven(
        [f"[rank0]: {line}" for line in text], [f"[rank1]: {line}" for line in text]
    ),
    "errors first: then a run's output": lambda text, other, chance: text + header(1) + steps(0, 60),
    "errors first: then epochs": lambda text, other, chance: text + header(1) + epochs(1, 8),
    "errors first: bars above": lambda text, other, chance: BAR + text + header(1) + epochs(1, 3),
    "errors, then the buffer's rest": lambda text, other, chance: (
        header(1) + steps(0, 200) + text + steps(200, 300)
    ),
    "errors in the middle of a line": lambda text, other, chance: (
        header(1) + steps(0, 200) + ["step 200 lo" + text[0], *text[1:], "ss 0.0149 lr 0.001"] + steps(205, 260)
    ),
    "broken at 80": lambda text, other, chance: broken(text, 80),
    "broken at 100": lambda text, other, chance: broken(text, 100),
    "broken at 120": lambda text, other, chance: broken(text, 120),
    "cut: the end": lambda text, other, chance: cut(text, chance, end=True),
    "cut: the beginning": lambda text, other, chance: cut(text, chance, end=False),
    "notebook: printed": lambda text, other, chance: notebook([("import torch", []), ("train()", [stream(text)])]),
    "notebook: raised": lambda text, other, chance: notebook(
        [("import torch", []), ("a()", [stream(steps(0, 50)), raised(text)]), ("b()", [])]
    ),
    "notebook: another cell's error above": lambda text, other, chance: notebook(
        [("a()", [raised(other)]), ("train()", [stream(steps(0, 50)), raised(text)])]
    ),
    "quoted: a change": lambda text, other, chance: [
        "diff --git a/tests/test_reader.py b/tests/test_reader.py", "index 3f1c2aa..9d0b7e1 100644",
        "--- a/tests/test_reader.py", "+++ b/tests/test_reader.py", f"@@ -10,6 +10,{len(text) + 8} @@ def test_one():",
        "     assert read(ONE) == 1", *(f"+{line}" for line in text), '+"""', "+", "+def test_two():", "+    assert read(TWO)",
    ],
    "quoted: a test": lambda text, other, chance: [
        "import pytest", "from reader import read", "", 'LOG = """\\', *text, '"""', "", "def test_read():",
        "    assert read(LOG).cause", "",
    ],
    "quoted: strings": lambda text, other, chance: [
        "from reader import read", "", "LINES = [", *(f"    {line!r}," for line in text), "]", "",
        "def test_read():", "    assert read(LINES)",
    ],
    "quoted: searched source": lambda text, other, chance: [
        f"src/reader/words.py:{at}:    ({line!r}, 3)," for at, line in enumerate(text, 10) if line.strip()
    ],
    "quoted: a manual": lambda text, other, chance: [
        "# Troubleshooting", "", "## The job is killed", "",
        "If your job needs more memory than it asked for, you may see output like this:", "", "```", *text, "```", "",
        "To avoid this, ask for more memory with `--mem`, or use a smaller batch.", "", "## The job does not start",
        "", "See the queue with `squeue`.",
    ],
}  # fmt: skip


def cut(lines: Lines, chance: random.Random, end: bool) -> Lines:
    text = "\n".join(lines)
    at = chance.randrange(len(text) // 2, len(text)) if end else chance.randrange(0, len(text) // 2 + 1)
    return (text[:at] if end else text[at:]).split("\n")


def contradicts(truth: dict[str, Any], said: dict[str, Any]) -> list[str]:
    """Figures that are told, and are not the text's."""
    verdict = said["verdict"]
    told = {
        **(verdict["victim"] or {}),
        **{f"{name}_bytes": size for name, size in (verdict["victim"] or {}).items()},
    }
    told |= verdict["gpu"] or {}
    return [
        name for name, right in figures(truth, said)
        if not right and (told.get(name) is not None or told.get(f"{name}_bytes") is not None)
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, action="append", help="default: the project's own texts")
    parser.add_argument("--only", default="", help="beginnings of shapes' names, with commas between")
    parser.add_argument("--misses", action="store_true", help="name each of them")
    chosen = parser.parse_args()
    folders = chosen.corpus or [HERE / "tests" / "corpus"]
    cases = [(path, truth) for folder in folders for path, truth in truths(folder)]
    texts = {
        path: path.read_text(errors="surrogateescape").rstrip("\n").split("\n")
        for path, _ in cases
    }  # fmt: skip
    jobs = [(path, truth) for path, truth in cases if not texts[path][0].startswith("# ")]
    deaths = [path for path, truth in jobs if path.parent.name == "logs" and cause_of(truth["kind"]).memory]
    wanted = tuple(filter(None, chosen.only.split(",")))
    print(f"{len(jobs)} texts\n{'':48} wrong causes   wrong figures   false memory deaths")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            if not wanted or name.startswith(wanted):
                row(name, shape, jobs, texts, deaths, Path(folder), chosen.misses)
    return 0


def row(
    name: str,
    shape: Shape,
    jobs: list[tuple[Path, dict[str, Any]]],
    texts: dict[Path, Lines],
    deaths: list[Path],
    folder: Path,
    misses: bool,
) -> None:
    chance = random.Random(1)
    wrong = told = known = false = count = peaceful = 0
    quoted, runs = name.startswith("quoted"), name.startswith(("runs", "errors", "woven: another"))
    for path, truth in jobs:
        dead = not cause_of(truth["kind"]).good and truth["kind"] != "silent-end"
        if (runs or quoted or name.startswith("notebook")) and not (dead and path.parent.name == "logs"):
            continue  # what the kernel tells is no run's output
        if name.startswith("errors") and not any("Traceback (most" in line for line in texts[path]):
            continue  # only an exception lets a buffer out
        other = texts[chance.choice([death for death in deaths if death != path])]
        made = folder / ("text.ipynb" if name.startswith("notebook") else "text.log")
        made.write_text("\n".join(shape(texts[path], other, chance)) + "\n", errors="surrogateescape")
        said = judge_texts(read_texts([str(made)])).to_json()
        cause = said["verdict"]["cause"]
        count += 1
        if quoted:
            good = cause_of(cause).good
            bad: list[str] = []
        else:
            good = cause in (truth["kind"], *(truth.get("also") or ()))
            fields = figures(truth, said)
            known += len(fields)
            bad = [field for field, right in fields if not right]
            if name.startswith("cut"):
                bad = contradicts(truth, said)
        told += len(bad)
        wrong += not good
        if quoted or not cause_of(truth["kind"]).memory:
            peaceful += 1
            false += cause_of(cause).memory and not good
        if misses and (bad or not good):
            print(f"  {path.parent.name}/{path.name}: {truth['kind']} → {cause}  {', '.join(bad)}")
    print(f"{name:48} {wrong:4} of {count:3}    {told:4} of {known:3}    {false:4} of {peaceful}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
