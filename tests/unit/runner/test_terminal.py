"""The status line and the job's output never meet: seen through a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

_SHOW = """
import sys
from oomproof.runner.terminal import Terminal
terminal = Terminal(quiet="quiet" in sys.argv)
assert terminal.go_raw()
terminal.status("job 3 MiB")
terminal.message("a line of ours")
terminal.restore()
"""
_STATUS = b"\r\x1b[K\x1b[2mjob 3 MiB\x1b[0m"


def on_a_terminal(command: str) -> bytes:
    """Everything that terminal was sent by a shell's command."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ.pop("NO_COLOR", None)
        os.execve("/bin/sh", ["sh", "-c", command], {**os.environ, "PY": sys.executable, "SHOW": _SHOW})
    seen = b""
    try:
        while piece := os.read(master, 65536):
            seen += piece
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    return seen


def test_the_status_line_is_cleared_before_anything_else() -> None:
    assert on_a_terminal('"$PY" -c "$SHOW"').startswith(_STATUS + b"\r\x1b[Ka line of ours\r\n")


@pytest.mark.parametrize(
    "reader", ["| cat", "| tee /dev/null", "| head", "2>/dev/null", "2>&1 | cat", "> /dev/null"]
)
def test_no_status_line_where_others_write_to_the_terminal(reader: str) -> None:
    assert b"\x1b[K" not in on_a_terminal(f'"$PY" -c "$SHOW" {reader}')


def test_no_status_line_when_quiet() -> None:
    assert b"\x1b[K" not in on_a_terminal('"$PY" -c "$SHOW" quiet')


_LOST = """
import os, sys
from oomproof.runner.terminal import Terminal
terminal = Terminal()
terminal.message("for the log"), terminal.pty_output(b"for nobody")
sys.exit(0 if terminal.gone and terminal.tty_numbers == [1] and terminal.size() == (24, 80) else 1)
"""


def test_a_terminal_that_was_closed_is_still_one() -> None:
    """A second attempt would else write to it as to a file, and its job would meet a closed pipe."""
    master, slave = os.openpty()
    os.close(master)
    done = subprocess.run(
        [sys.executable, "-c", _LOST], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE
    )
    os.close(slave)
    assert done.returncode == 0 and done.stderr == b"for the log\n", (
        "what is no terminal still takes our lines"
    )
