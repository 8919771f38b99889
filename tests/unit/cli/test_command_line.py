"""The command line itself, whichever way it is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oomproof.cli.main import main


def test_python_dash_m_is_the_same_command() -> None:
    def output(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert output("oomproof", "--version").startswith("oomproof ")
    assert output("oomproof", "why", "--help").startswith("usage: oomproof why ")
    assert output("oomproof", "--help") == output("oomproof.cli.main", "--help")


def test_the_older_names_of_pause_and_resume(capsys: pytest.CaptureFixture[str]) -> None:
    for older, verb in (("freeze", "pause"), ("thaw", "resume")):
        with pytest.raises(SystemExit):
            main([older, "--help"])
        assert f"usage: oomproof {verb} " in capsys.readouterr().out
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "pause" in shown and "freeze" not in shown
