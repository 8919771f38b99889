"""Which sizing is that of which command: what changes its memory changes the key, and little else does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oomproof.sizing import need_auto, sizing_cache


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work" / "models").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text('import os\nbatch = os.environ.get("BATCH", 32)')
    Path("models/net.py").write_text("width = 512")
    Path("config.yaml").write_text("layers: 3")
    Path("data.npz").write_bytes(b"12345")


def key(*words: str, gpu: int | None = None, **environment: str) -> str | None:
    return sizing_cache.key([sys.executable, "train.py", *words], os.getcwd(), environment, gpu)


def test_the_key_changes_with_what_changes_the_memory() -> None:
    keys = [
        key(),
        key("--batch", "64"),
        key(gpu=24 << 30),
        key(BATCH="8"),
        key(PYTORCH_ALLOC_CONF="expandable_segments:True"),
    ]
    keys.append(key("--data", "data.npz"))
    Path("data.npz").write_bytes(b"123456789")
    keys.append(key("--data", "data.npz"))
    for path, text in (
        ("train.py", "import torch"),
        ("models/net.py", "width = 1024"),
        ("config.yaml", "layers: 6"),
    ):
        Path(path).write_text(text)
        keys.append(key())
    assert None not in keys and len(set(keys)) == len(keys)


def test_the_key_stays_with_what_does_not() -> None:
    before = key()
    assert key("--seed", "3", "--output_dir", "out") == before and key(HOME_SWEET="x") == before
    Path("metrics.json").write_text("{}")  # what it wrote itself
    Path("wandb").mkdir()
    Path("wandb/run.py").write_text("")
    assert key() == before


def test_another_torch_is_another_key(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (packages / "torch-2.12.0.dist-info").mkdir()
    command = [str(python), "train.py"]
    before = sizing_cache.key(command, os.getcwd(), {}, None)
    (packages / "torch-2.12.0.dist-info").rename(packages / "torch-2.13.0.dist-info")
    assert before is not None and sizing_cache.key(command, os.getcwd(), {}, None) != before


def test_only_a_python_has_a_key(tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\nimport torch")
    launcher.chmod(0o755)
    assert sizing_cache.python_of(str(launcher)) == sys.executable
    assert sizing_cache.python_of("ls") is None and sizing_cache.python_of("no-such-program") is None
    assert sizing_cache.key(["ls", "train.py"], os.getcwd(), {}, None) is None


def test_kept_small_and_read_whatever_state_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing_cache, "_KEPT", 3)
    for number in range(5):
        sizing_cache.store(f"k{number}", {"refused": "no"})
        os.utime(sizing_cache.folder() / f"k{number}.json", (number, number))
    assert sorted(path.stem for path in sizing_cache.folder().iterdir()) == ["k2", "k3", "k4"]
    assert sizing_cache.load("k3") == {"schema": 1, "refused": "no"} and sizing_cache.load("k0") == {}
    (sizing_cache.folder() / "k3.json").write_text('{"schema": 1, "ho')
    assert sizing_cache.load("k3") == {}


@pytest.mark.parametrize(
    ("source", "may"),
    [
        ("import os, json\nimport numpy as np\nimport beside", False),
        ("import torch", True),
        ("from transformers import Trainer", True),
        ("import unknown_library", True),
        ("import importlib\nimportlib.import_module('tor' + 'ch')", True),
        ("__import__('torch')", True),
        ("from . import model", True),
        ("import uses_torch", True),
        ("def broken(:", True),
    ],
)
def test_what_surely_does_without_torch(source: str, may: bool) -> None:
    Path("beside.py").write_text("import math")
    Path("uses_torch.py").write_text("import torch.nn")
    Path("main.py").write_text(source)
    assert need_auto.may_use_torch(os.path.abspath("main.py")) is may
