"""`oomproof calibrate` where there is no card, and what it prints of one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.sizing import calibrated_card, calibration

PROGRAM = """
import json, sys
job = json.load(open(sys.argv[1]))
with open(sys.argv[2], "a") as file:
    def report(**line):
        file.write(json.dumps(line) + "\\n")
    report(card={"name": "NVIDIA H200", "capability": "9.0", "driver": "570.1", "torch": "2.11", "cuda": "12.8", "cudnn": "9", "total": 1 << 37})
    if job["constants"]:
        sizes = {"context": 470 << 20, "with_matrices": 750 << 20, "with_convolutions": 768 << 20, "matrix_workspace": 32 << 20}
        report(constants=sizes, others=0)
    for index, signature in enumerate(job["signatures"]):
        report(begin=index)
        report(done=index, **({"measured": {"extra": 4, "later": [4, -1]}} if index else {"large": "its operands take 9 MiB"}))
    report(end=True)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that answers as the one on a card does."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(calibration, "_PROGRAM", str(tmp_path / "program.py"))


def test_without_a_card_it_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    assert main(["calibrate", "--python", sys.executable]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "hint:" in told.err and len(told.err.splitlines()) == 2
    assert not calibrated_card.kept()


def test_what_it_prints_keeps_and_exports(a_card: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--python", sys.executable, "--export", "h200.json"]) == 0
    text = capsys.readouterr().out
    for part in (
        "NVIDIA H200",
        "768 MiB",
        "470 MiB alone",
        "32 MiB",
        "1 left out (its operands take 9 MiB)",
        "h200.json",
    ):
        assert part in text, text
    card = calibrated_card.named("h200")
    assert card.as_json() == calibrated_card.named("h200.json").as_json()
    assert main(["calibrate", "--python", sys.executable, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1 and found["constants_bytes"]["context"] == 470 << 20
    assert found["measured"] == len(card.signatures) and os.path.exists(found["file"])


def test_a_command_that_is_no_python_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--", "sh", "-c", "true"]) == 2
    assert "sh is no Python program" in capsys.readouterr().err


def test_the_operations_of_a_command(a_card: None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    Path("train.py").write_text(
        "import torch\nmodel = torch.nn.Conv2d(3, 8, 3).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n    model(torch.randn(4, 3, 32, 32, device='cuda')).sum().backward()\n    optimizer.step()\n"
    )
    assert main(["calibrate", "--", sys.executable, "train.py"]) == 0
    assert "1 measured; 1 left out" in capsys.readouterr().out
    (card,) = calibrated_card.kept().values()
    assert card.constants and all("convolution" in key for key in card.signatures)
    # and sized with it
    assert main(["size", "--card", "h200", "--json", "--", sys.executable, "train.py"]) == 0
    sized = json.loads(capsys.readouterr().out)
    assert "NVIDIA H200 calibrated, 1 of its 2 operations measured there" in sized["basis"]
    assert sized["gpu"]["parts"]["context and libraries"] == (768 - 280) << 20, "no matrix is multiplied"
    assert any(verdict["kind"] == "gpu" for verdict in sized["verdicts"]), (
        "the card's own size is compared with"
    )
