"""What --spill pinned and what it cost, as every reader has it; whatever stands in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from oomproof.recording import spill_record
from oomproof.recording.attempt import Attempt
from oomproof.recording.spill_record import SpillRecord, text_of

GIB = 1 << 30


def attempt(folder: Path, *files: Any) -> Attempt:
    (folder / "agent").mkdir()
    for number, value in enumerate(files, 1):
        path = folder / "agent" / f"{number}-spill.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        os.utime(path, (number, number))
    return Attempt(folder)


def test_what_was_spilled_is_said_in_a_sentence(tmp_path: Path) -> None:
    sums = {"size": 8 * GIB, "count": 3, "bytes": 5 * GIB, "seconds": 2.7, "largest": int(2.4 * GIB), "step": 812, "phase": "train",
            "batch": 32, "fits": 24}  # fmt: skip
    run = attempt(tmp_path, {"refused": "the process before it"}, sums)
    record = spill_record.read(run)
    assert record is not None and spill_record.pinned(run) == 8 * GIB
    assert text_of(record) == (
        "8.0 GiB of host memory pinned; used 3 times, at most 2.4 GiB at step 812, 2.7 s slower in all; a batch of 24 always "
        "fits (that one: 32)"
    )
    assert record.as_json()["fitting_batch"] == 24 and record.as_json()["seconds_slower"] == 2.7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"size": 8 * GIB, "count": 0}, "8.0 GiB of host memory pinned; never used"),
        ({"size": 0, "refused": "PyTorch 2.9.0 cannot do it"}, "none: PyTorch 2.9.0 cannot do it"),
        (
            {"size": GIB, "given_back": GIB},
            "1.0 GiB of host memory given back when the host was short; never used",
        ),
        ({"size": "x", "count": -1, "seconds": "NaN", "step": []}, "0 B of host memory pinned; never used"),
        ("{broken", "0 B of host memory pinned; never used"),
    ],
)
def test_anything_may_stand_there(tmp_path: Path, value: Any, text: str) -> None:
    record = spill_record.read(attempt(tmp_path, value))
    assert record is not None and text_of(record) == text


def test_given_back_is_not_pinned(tmp_path: Path) -> None:
    assert spill_record.pinned(attempt(tmp_path, {"size": GIB, "given_back": GIB})) == 0
    assert spill_record.read(Attempt(tmp_path / "nothing")) is None
    assert SpillRecord().as_json()["phase"] is None
