"""Which calibrated card a script is sized for on a machine with one, and that each operation is measured there once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oomproof.machine import nvidia
from oomproof.machine.gpu import Gpu, Gpus, Query
from oomproof.sizing import calibrated_card, calibration, card_lookup
from oomproof.sizing.calibration import common_operations
from oomproof.sizing.virtual_gpu.child_results import VirtualResult

PROGRAM = """
import json, sys
job = json.load(open(sys.argv[1]))
with open(sys.argv[2], "a") as file, open("asked", "a") as asked:
    asked.write(f"{job['constants']} {len(job['signatures'])} {job['share']}\\n")
    facts = {"name": "NVIDIA H200", "driver": "570.1", "torch": "2.11"}
    lines = [{"card": facts}, *([{"constants": {"with_matrices": 7}, "others": 0}] if job["constants"] else [])]
    lines += [{"done": index, "measured": {"extra": 4, "later": [4, -1]}} for index in range(len(job["signatures"]))]
    file.write("".join(json.dumps(line) + "\\n" for line in [*lines, {"end": True}]))
"""


@pytest.fixture(autouse=True)
def a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(calibration, "_PROGRAM", str(tmp_path / "program.py"))
    monkeypatch.setattr(nvidia, "driver_present", lambda: True)
    monkeypatch.setattr(nvidia, "driver_version", lambda: "570.1")
    monkeypatch.setattr(
        Query, "answer", lambda self, deadline: Gpus((Gpu(0, "NVIDIA H200", 1 << 37, 0, 1 << 37),))
    )


def asked() -> list[str]:
    return Path("asked").read_text().splitlines() if Path("asked").exists() else []


def result(count: int, torch: str = "2.11") -> VirtualResult:
    return VirtualResult(torch=torch, signatures=common_operations()[:count])


def test_what_is_missing_is_measured_once() -> None:
    card_of = card_lookup.measured(sys.executable, lambda text: None)
    assert card_lookup.kept(result(2)) is None
    card = card_of(result(2))
    assert card is not None and len(card.signatures) == 2 and card.constants
    again = card_of(result(3))
    assert again is not None and len(again.signatures) == 3 and again.constants
    assert card_of(result(3)) is not None
    assert asked() == ["True 2 0.5", "False 1 0.5"]
    kept = card_lookup.kept(result(3))
    assert kept is not None and len(kept.signatures) == 3
    assert card_lookup.kept(result(3, torch="2.12")) is None, "another torch has other libraries"


def test_a_machine_without_a_driver_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "driver_present", lambda: False)
    assert card_lookup.measured(sys.executable, lambda text: None)(result(2)) is None and asked() == []


def test_a_command_that_is_no_python_uses_what_is_there() -> None:
    card_lookup.measured(sys.executable, lambda text: None)(result(2))
    card = card_lookup.measured(None, lambda text: None)(result(3))
    assert card is not None and len(card.signatures) == 2 and len(asked()) == 1


def test_a_card_that_cannot_be_measured_keeps_nothing_from_being_sized() -> None:
    told: list[str] = []
    Path("program.py").write_text("import sys; sys.exit('no driver')")
    assert card_lookup.measured(sys.executable, told.append)(result(2)) is None
    assert "the card was not measured" in told[-1] and not calibrated_card.kept()
