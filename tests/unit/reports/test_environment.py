"""On what a run ran, as the page tells it: read from files, of the job's own Python and of this boot only."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_report import make_run

from oomproof.reports import environment
from oomproof.reports.environment import environment_of


def venv(folder: Path) -> Path:
    packages = folder / "lib/python3.12/site-packages"
    for name in ("torch-2.6.0", "numpy-2.1.3", "unrelated-1.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (packages / "torch").mkdir()
    (packages / "torch/version.py").write_text("debug = False\ncuda: Optional[str] = '12.4'\n")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.write_text("")
    python.chmod(0o755)
    return python


def test_python_torch_cuda_card_driver_commit_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc/driver/nvidia"
    (proc / "gpus/0000:01:00.0").mkdir(parents=True)
    (proc / "gpus/0000:01:00.0/information").write_text("Model: \t\t NVIDIA GeForce RTX 4090\nIRQ: 1\n")
    (proc / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue\n")
    cards = environment._cards(str(tmp_path / "proc"))
    monkeypatch.setattr(environment, "_cards", lambda: cards)
    run = make_run(tmp_path, argv=[str(venv(tmp_path / "venv")), "train.py", "--lr", "3"])
    rows = dict(environment_of(run))
    assert rows["Python"] == "3.12.4" and rows["torch"] == "2.6.0, CUDA 12.4"
    assert rows["packages"] == "numpy 2.1.3"
    assert rows["GPU 0"] == "NVIDIA GeForce RTX 4090" and rows["NVIDIA driver"] == "570.86.15"
    assert rows["commit"] == "c0ffeec0ffee, with changes not committed"
    assert rows["host"].startswith("box, ") and rows["folder"] == "/home/ada/nlp"
    assert rows["script"].startswith("/home/ada/nlp/train.py (sha256 ab")


def test_after_a_reboot_the_card_of_now_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_cards", lambda: [("GPU 0", "another")])
    run = make_run(tmp_path, boot_id="99999999-2222-3333-4444-555555555555")
    rows = dict(environment_of(run))
    assert "GPU 0" not in rows and rows["host"] == "box"
