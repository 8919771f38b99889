"""The core works without an island's folder, and says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oomproof
from oomproof.cli.main import VERBS

_PACKAGE = Path(oomproof.__file__).parent
_ISLANDS = ("sizing", "sweeps")


@pytest.fixture(scope="module", params=_ISLANDS)
def without(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The island's name, and a folder with a copy of the package that lacks it."""
    island = request.param
    folder = tmp_path_factory.mktemp(f"without_{island}")
    copied = shutil.copytree(_PACKAGE, folder / "oomproof", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copied / island)
    return island, folder


def _oomproof(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oomproof.cli.main", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_verbs_of_a_missing_island_say_so(without: tuple[str, Path]) -> None:
    island, folder = without
    theirs = [verb for verb, (module, _) in VERBS.items() if module.startswith(f"{island}.")]
    assert theirs
    for verb in theirs:
        done = _oomproof(folder, verb, "--help")
        assert done.returncode == 125, verb
        assert done.stderr.startswith(f"oomproof: this installation of oomproof has no oomproof.{island}"), (
            verb
        )
        assert "hint: pip install" in done.stderr


def test_run_why_guard_and_top_work_without_it(without: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = without
    assert _oomproof(folder, "run", "--name", "small", "--", "true").returncode == 0
    assert "small" in _oomproof(folder, "runs").stdout
    log = tmp_path / "train.log"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nMemoryError\n')
    assert '"cause": "python-memory-error"' in _oomproof(folder, "why", "--json", str(log)).stdout
    assert _oomproof(folder, "top", "-1").returncode == 0
    assert _oomproof(folder, "guard", "--help").returncode == 0
    assert _oomproof(folder, "--help").returncode == 0
