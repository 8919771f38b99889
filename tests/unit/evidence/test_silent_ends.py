"""Ends without a word: handlers that printed nothing, and two OpenMP runtimes in one process."""

from __future__ import annotations

import hashlib
import mmap
import os
import sqlite3
from pathlib import Path
from signal import SIGKILL, SIGSEGV
from typing import Any

import pytest
from helpers_case import END, Attempt
from hypothesis import given
from hypothesis import strategies as st

from oomproof.diagnosis.judge import judge
from oomproof.evidence.job_output import contains
from oomproof.evidence.script_handlers import branches
from oomproof.machine import processes
from oomproof.recording.attempt import Attempt as RunAttempt

SCRIPT = b"""
import logging, math, sys
try:
    import apex
except ImportError:
    print("apex is not there, going on")

def train(data):
    for step, batch in enumerate(data):
        loss = batch * 2.0
        if math.isnan(loss):
            print(f"loss is NaN at step {step}, stopping")
            break

try:
    train([1.0])
except RuntimeError as error:
    print("training failed at", error, file=sys.stderr)
except Exception:
    logging.exception("anything else went %s wrong in the run", 3)
    raise
except ValueError:
    print("a narrow handler, which says little")
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(tmp_path)
    script = tmp_path / "train.py"
    script.write_bytes(SCRIPT)
    attempt.run["code"] = {"script": str(script), "script_sha256": hashlib.sha256(SCRIPT).hexdigest()}
    attempt.run["argv"] = ["python", "train.py"]
    return attempt


def test_what_a_script_would_have_said() -> None:
    found = [(each.line, each.kind, each.catches, each.text, each.flushed) for each in branches(SCRIPT)]
    assert found == [
        (12, "nan", "its check for NaN", "loss is NaN at step", False),
        (18, "exception", "except RuntimeError", "training failed at", True),
        (20, "exception", "except Exception", "anything else went", True),
    ]


def test_a_silent_handler_speaks_against_an_exception(attempt: Attempt) -> None:
    attempt.ended(signal=SIGSEGV)
    verdict = attempt.verdict()
    assert verdict.cause == "segfault"
    assert (
        "train.py:18 (except RuntimeError) would have printed «training failed at» and did not" in verdict.why
    )
    assert "it was no such Python exception" in verdict.why
    assert "train.py:12" in verdict.why and "in a buffer" in verdict.why, "print to a pipe waits in a buffer"
    assert [each.id for each in verdict.evidence if each.id.startswith("handler.")] == [
        "handler.1", "handler.2", "handler.3",
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["terminal", "-u", "environment"])
def test_on_a_terminal_nothing_waits_in_a_buffer(attempt: Attempt, how: str) -> None:
    attempt.ended(signal=SIGKILL)
    if how == "terminal":
        attempt.started["terminal"] = [0, 1, 2]
    elif how == "-u":
        attempt.run["argv"] = ["python", "-u", "train.py"]
    else:
        attempt.run["env"] = {"PYTHONUNBUFFERED": "1"}
    why = attempt.verdict().why
    assert "train.py:12" in why and "in a buffer" not in why


def test_a_handler_that_did_print_is_not_silent(attempt: Attempt) -> None:
    attempt.ended(signal=SIGKILL)
    attempt.output = (
        b"step 1\ntraining failed at 3\nloss is NaN at step 7, stopping\nanything else went 3 wrong\n"
    )
    assert "would have printed" not in attempt.verdict().why


@pytest.mark.parametrize("how", ["changed", "gone", "dropped output", "no code", "broken"])
def test_no_claim_on_what_is_not_known(attempt: Attempt, tmp_path: Path, how: str) -> None:
    attempt.ended(signal=SIGKILL)
    script = tmp_path / "train.py"
    if how == "changed":
        script.write_bytes(SCRIPT + b"# later\n")
    elif how == "gone":
        script.unlink()
    elif how == "no code":
        attempt.run["code"] = None
    elif how == "broken":
        script.write_bytes(b"def (:\n")
        attempt.run["code"]["script_sha256"] = hashlib.sha256(b"def (:\n").hexdigest()
    else:
        (attempt.dir / "output.prev.log").write_bytes(b"...")
    assert "would have printed" not in attempt.verdict().why


def test_an_error_with_words_needs_no_silence(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b'Traceback (most recent call last):\n  File "t", line 1, in f\nKeyError: 1\n'
    assert "would have printed" not in attempt.verdict().why


def test_words_over_the_border_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oomproof.evidence import job_output

    monkeypatch.setattr(job_output, "_BLOCK", 8)
    (tmp_path / "output.log").write_bytes(b"0123456 the words stand here 789")
    attempt = RunAttempt(tmp_path)
    assert contains(attempt, b"words stand") and not contains(attempt, b"other words")


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_source(source: bytes) -> None:
    branches(source)


# -- OpenMP


def mapped(folder: Path, *names: str) -> list[Any]:
    """Files of these names mapped into this very process."""
    held = []
    for name in names:
        path = folder / name
        path.write_bytes(b"\x7fELF" + b"\0" * 4096)
        with path.open("rb") as file:
            held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return held


def test_runtimes_in_the_maps_of_a_process(tmp_path: Path) -> None:
    before = set(processes.openmp_runtimes(os.getpid()))
    held = mapped(
        tmp_path, "libgomp-a34b3233.so.1.0.0", "libiomp5.so", "libgompertz.so", "libomptarget.so.16"
    )
    found = processes.openmp_runtimes(os.getpid())
    assert set(found) == before | {"gomp", "iomp5"} and len(held) == 4
    assert found["iomp5"].endswith("/libiomp5.so")
    assert processes.openmp_runtimes(1 << 22) == {}


def test_two_runtimes_are_a_possible_reason_of_a_segfault(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=SIGSEGV)
    attempt.run["env"] = {"KMP_DUPLICATE_LIB_OK": "TRUE"}
    attempt.case()
    with sqlite3.connect(attempt.dir / "recording.sqlite") as db:
        text = "python3 (pid 4067) has loaded 2 OpenMP runtimes: /a/libgomp.so.1, /b/libiomp5.so"
        db.execute("INSERT INTO event VALUES(?,?,?,?)", (END - 50, "openmp", text, None))
    verdict = judge(attempt.collect())
    assert (verdict.cause, verdict.certainty) == ("segfault", "proven")
    assert "a possible reason, not proven: python3 (pid 4067) has loaded 2 OpenMP" in verdict.why
    assert "KMP_DUPLICATE_LIB_OK silenced" in verdict.why
    assert "OMP_NUM_THREADS=1" in verdict.causes[0].test and "threadpoolctl" in verdict.causes[0].test
    assert any((each.command or "").startswith("OMP_NUM_THREADS=1 ") for each in verdict.remedies)
    assert "openmp" in verdict.causes[0].evidence


def test_two_runtimes_explain_no_other_end(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(code=1)
    attempt.case()
    with sqlite3.connect(attempt.dir / "recording.sqlite") as db:
        db.execute("INSERT INTO event VALUES(?,?,?,?)", (END - 50, "openmp", "two of them", None))
    assert "two of them" not in judge(attempt.collect()).why
