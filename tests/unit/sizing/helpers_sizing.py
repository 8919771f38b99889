"""A script on the virtual GPU, in a child of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oomproof.sizing import script_sizing, virtual_run


def on_virtual_gpu(script: str, folder: Path, seconds: float = 60.0) -> tuple[virtual_run.VirtualRun, str]:
    """What was logged, and what the script printed; its errors fail the test."""
    environment = script_sizing._environment(str(folder), seconds, None)
    command = [sys.executable, "-W", "ignore", "-c", script]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    run = virtual_run.read(str(folder))
    assert run is not None
    return run, ended.stdout
