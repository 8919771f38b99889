"""Notebooks given to `why`: their outputs are the text, and the cell that was run last tells the error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.texts.notebooks import Outputs
from oomproof.evidence.texts.text_case import read_texts

OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 500.00 MiB is free."


def error(name: str, message: str) -> dict[str, Any]:
    frames = [
        "\x1b[0;31m---------------------------------------------------------------------------\x1b[0m",
        f"\x1b[0;31m{name}\x1b[0m                 Traceback (most recent call last)",
        "Cell \x1b[0;32mIn[3], line 1\x1b[0m\n\x1b[0;32m----> 1\x1b[0m trainer\x1b[38;5;241m.\x1b[39mtrain()\n",
        "File \x1b[0;32m/env/site-packages/transformers/trainer.py:2052\x1b[0m, in \x1b[0;36mTrainer.train\x1b[0;34m(self)\x1b[0m\n",
        f"\x1b[0;31m{name}\x1b[0m: {message}",
    ]
    return {"output_type": "error", "ename": name, "evalue": message, "traceback": frames}


def cell(number: int | None, source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": number, "metadata": {}, "outputs": list(outputs), "source": source}  # fmt: skip


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def notebook(*cells: dict[str, Any], indent: int | None = 1) -> str:
    prose = {"cell_type": "markdown", "metadata": {}, "source": ["If you see CUDA out of memory, restart."]}
    return json.dumps({"cells": [prose, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=indent)  # fmt: skip


@pytest.fixture
def why(tmp_path: Path):  # type: ignore[no-untyped-def]
    def judge(text: str) -> Verdict:
        path = tmp_path / "train.ipynb"
        path.write_text(text)
        return judge_texts(read_texts([str(path)]))

    return judge


@pytest.mark.parametrize("indent", [None, 1])
def test_the_error_of_a_cell_with_its_figures(indent: int | None, why) -> None:
    name, _, message = OOM.partition(": ")
    verdict = why(notebook(cell(1, "import torch"), cell(2, "trainer.train()", error(name, message)), indent=indent))  # fmt: skip
    assert verdict.cause == "cuda-oom"
    assert verdict.gpu.requested_bytes == 2 << 30


def test_the_line_is_that_of_the_file(why) -> None:
    text = notebook(cell(1, "x", printed("epoch 1\n")), cell(2, "y", error("KeyError", "'lr'")))
    numbers = [number for number, line in Outputs(enumerate(text.split("\n"), 1)) if "KeyError: 'lr'" in line]
    assert text.split("\n")[numbers[0] - 1].strip().endswith("KeyError\\u001b[0m: 'lr'\"")


def test_of_several_errors_the_one_that_was_run_last(why) -> None:
    name, _, message = OOM.partition(": ")
    above = cell(9, "trainer.train()", error(name, message))
    assert why(notebook(above, cell(4, "x", error("KeyError", "'lr'")))).cause == "cuda-oom"
    below = cell(12, "x", error("KeyError", "'lr'"))
    assert why(notebook(above, below)).cause == "other-error"


def test_code_and_prose_that_name_an_error_report_none(why) -> None:
    handler = cell(
        1, "try:\n    train()\nexcept MemoryError:\n    print('Killed')", printed("step 1 loss 0.5\n")
    )
    assert why(notebook(handler)).kind.good


def test_what_was_printed_is_read_as_a_log(why) -> None:
    text = "epoch 1 loss 0.5\nepoch 2 loss 0.4\nKilled\n"
    assert why(notebook(cell(1, "!python train.py", printed(text)))).cause == "killed-unknown"


def test_a_cut_notebook_is_read_as_it_stands(why) -> None:
    name, _, message = OOM.partition(": ")
    text = notebook(cell(1, "x", error(name, message)))
    assert why(text[: text.rindex("}")]).cause == "cuda-oom"


def test_other_records_are_left_alone() -> None:
    lines = [(1, '{"cells": 3, "time": 1}'), (2, '{"cells": 4, "time": 2}')]
    assert list(Outputs(lines)) == lines


@pytest.mark.parametrize(
    "book",
    [
        {"cells": [1, None, {"outputs": 3}, {"outputs": [None, 4, {"text": 5}, {"output_type": "error"}]}], "nbformat": 4},
        {"worksheets": [{"cells": 7}, 3, {"cells": [{"outputs": [{"text": ["\ud800 step 1 loss 0.5\n"]}]}]}], "nbformat": 3},
        {"cells": {}, "nbformat": 4},
        {"cells": [{"execution_count": "x", "outputs": [{"data": 3, "text": "a"}]}], "nbformat": 4},
    ],
)  # fmt: skip
def test_odd_notebooks_are_read_all_the_same(book: dict[str, Any], why) -> None:
    assert why(json.dumps(book)).cause
