"""The command line itself, whichever way it is started."""

from __future__ import annotations

import subprocess
import sys


def test_python_dash_m_is_the_same_command() -> None:
    def output(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert output("oomproof", "--version").startswith("oomproof ")
    assert output("oomproof", "why", "--help").startswith("usage: oomproof why ")
    assert output("oomproof", "--help") == output("oomproof.cli.main", "--help")
