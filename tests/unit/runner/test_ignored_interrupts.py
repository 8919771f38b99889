"""Ctrl-C again and again at a job that does not end by it: how to end it is told, once, and never over an editor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.runner.supervise import IgnoredInterrupts

_JOB = """
import signal, sys, termios
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: print("heard", flush=True))
if "editor" in sys.argv:
    mode = termios.tcgetattr(0)
    mode[3] &= ~(termios.ISIG | termios.ICANON)
    termios.tcsetattr(0, termios.TCSANOW, mode)
print("ready", flush=True)
while "editor" not in sys.argv:
    signal.pause()
while key := sys.stdin.read(1):
    print("key", ord(key), flush=True)
    if key == "q":
        break
"""


def test_once_and_only_when_pressed_again_and_again() -> None:
    ignored = IgnoredInterrupts()
    assert [ignored.is_enough(t) for t in (0.0, 8.0, 16.0, 18.0, 19.0, 20.0)] == [
        *[False] * 3,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("kind", ["deaf", "editor"])
def test_three_times_ctrl_c(kind: str, folders_of_their_own: Path) -> None:
    words = [sys.executable, "-m", "oomproof", "run", "--name", kind, "--", sys.executable, "-c", _JOB, kind]
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, words)
    seen = b""

    def until(text: bytes, count: int = 1) -> None:
        nonlocal seen
        while seen.count(text) < count:
            seen += os.read(master, 65536)

    until(b"ready")
    for number in range(1, 4):
        os.write(master, b"\x03")
        until(b"heard" if kind == "deaf" else b"key 3", number)
    if kind == "deaf":
        until(b"the job does not end at Ctrl-C; from another terminal: oomproof stop deaf")
        subprocess.run([sys.executable, "-m", "oomproof", "stop", "--kill", "deaf"], check=True, timeout=60)
    else:
        os.write(master, b"q")
        until(b"finished")
        assert b"does not end" not in seen
    while True:
        try:
            if not os.read(master, 65536):
                break
        except OSError:  # its other end was closed
            break
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (137 if kind == "deaf" else 0)
