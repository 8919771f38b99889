"""Children that measure on a card: read line by line, ended when they hang, replaced when they die. There is no card here: the
children are programs that write what one would; the real one is started to see how it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.sizing import calibration
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.calibration import common_operations

BEGIN = """
import json, os, signal, sys, time
job = json.load(open(sys.argv[1]))
def report(**line):
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps(line) + "\\n")
report(card={"name": "NVIDIA H200", "torch": "2.11"})
if job["constants"]:
    report(constants={"context": 5, "with_matrices": 7, "with_convolutions": 8}, others=3)
first = not os.path.exists("again")
open("again", "w").close()
for index, signature in enumerate(job["signatures"]):
    report(begin=index)
"""
END = """
    report(done=index, measured={"extra": 4, "later": [4, -1]})
report(end=True)
"""
OPERATIONS = common_operations()[:4]


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration, "_SILENCE", 1.5)


def measure(body: str, monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0) -> calibration.Measured:
    Path("program.py").write_text(body)
    monkeypatch.setattr(calibration, "_PROGRAM", os.path.abspath("program.py"))
    return calibration.measure(sys.executable, OPERATIONS, seconds=seconds, constants=True)


def test_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure(BEGIN + END, monkeypatch)
    assert measured.card is not None and measured.late == 0 and measured.others == 3
    assert measured.card.signatures.keys() == {signature_key(signature) for signature in OPERATIONS}
    assert measured.card.constants["with_convolutions"] == 8 and not measured.card.skipped


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("time.sleep(600)", "took too long"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "status -9"),
        ("sys.exit('illegal memory access')", "illegal memory access"),
    ],
)
def test_what_hangs_or_dies_is_left_out_and_the_rest_is_measured(
    fault: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = BEGIN + f"    if first and index == 1:\n        {fault}" + END
    measured = measure(body, monkeypatch)
    assert measured.card is not None and measured.late == 0
    assert len(measured.card.signatures) == 3
    assert list(measured.card.skipped) == [signature_key(OPERATIONS[1])]
    assert why in measured.card.skipped[signature_key(OPERATIONS[1])]
    assert measured.card.constants, "the second child was not asked for them, and the first had told"


def test_an_operation_that_fails_or_is_too_large_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
    if index in (0, 2):
        report(done=index, **({"error": "RuntimeError: odd"} if index else {"large": "400 MiB"}))
        continue"""
    measured = measure(BEGIN + more + END, monkeypatch)
    assert measured.card is not None and len(measured.card.signatures) == 2
    assert sorted(measured.card.skipped.values()) == ["400 MiB", "RuntimeError: odd"]


def test_children_that_die_before_anything_was_measured_are_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = measure("import sys; sys.exit('libcuda is broken')", monkeypatch)
    assert measured.card is None
    error = calibration.refusal(measured, "python")
    assert "libcuda is broken" in str(error) and error.status == 2


def test_the_time_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    measured = measure(BEGIN + "    time.sleep(1)" + END, monkeypatch, seconds=0.5)
    assert measured.card is not None and measured.late > 0 and time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no torch", "has no torch"),
        ("old torch", "too old"),
        ("no cuda", "nothing to calibrate"),
        ("busy", "busy"),
    ],
)
def test_each_refusal_is_one_line_and_a_hint(kind: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'import sys; open(sys.argv[2], \'w\').write(\'{{"failed": "{kind}", "why": "2.0"}}\\n\')'
    error = calibration.refusal(measure(body, monkeypatch), "/env/python")
    assert words in error.message and "\n" not in error.message and error.hint and error.status == 2


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    body = BEGIN.replace("import json", "open('pid', 'w').write(str(__import__('os').getpid()))\nimport json")
    Path("program.py").write_text(body + "    time.sleep(600)" + END)
    asked = f"""
import sys
from oomproof.sizing import calibration
calibration._PROGRAM = {os.path.abspath("program.py")!r}
from oomproof.sizing.calibration import common_operations
calibration.measure(sys.executable, common_operations(), seconds=600, constants=True)
"""
    parent = subprocess.Popen([sys.executable, "-c", asked], stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 60
    while not (Path("pid").exists() and Path("again").exists()):
        assert time.monotonic() < ends and parent.poll() is None
        time.sleep(0.02)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


def test_a_python_without_cuda_refuses() -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    measured = calibration.measure(sys.executable, OPERATIONS, seconds=60, constants=True)
    assert measured.card is None and measured.refused is not None
    assert measured.refused[0] in ("no cuda", "no card")


def test_a_python_without_torch_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured = calibration.measure(sys.executable, [], seconds=60, constants=True)
    assert measured.refused == ("no torch", "none here")
    with pytest.raises(OomproofError, match="command not found"):
        calibration.python_with_torch(str(tmp_path / "python"))


def test_what_was_found_so_far_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def keep(card: CalibratedCard) -> None:
        seen.append(len(card.signatures))

    Path("program.py").write_text(BEGIN + END)
    monkeypatch.setattr(calibration, "_PROGRAM", os.path.abspath("program.py"))
    calibration.measure(sys.executable, OPERATIONS, seconds=60, constants=True, each=keep)
    assert seen[0] == 0 and seen[-1] == len(OPERATIONS)
