"""Asks a process of the job for the Python stack of its main thread.

Our handler inside it writes that between two bytecodes. Only of one that does not come to that, because native code runs,
faulthandler is asked: frames that change while it reads them end the process at times, on every Python.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.leaf.attempt_names import FAULT, STACK_REQUEST
from oomproof.leaf.process_signals import realtime_signal, signal_main_thread
from oomproof.machine.clock import boottime
from oomproof.machine.processes import catches
from oomproof.runner import census_request

if TYPE_CHECKING:
    from oomproof.recording.stack_dumps import Dump

_SIGNAL = realtime_signal(11)  # as agent_start has it; 0: none
WRITTEN_IN = 0.3  # seconds
_MOST = 64 << 10  # bytes of one answer


def answers(pid: int) -> bool:
    return bool(_SIGNAL) and catches(pid, _SIGNAL)


def ask(folder: Path, pid: int, why: str, at: float) -> int | None:
    """Where in its file the answer begins; None where it cannot be asked."""
    with contextlib.suppress(OSError):
        fd = os.open(_path(folder, pid), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            begin = os.fstat(fd).st_size
            os.write(fd, f"--- {at:.3f} {why}\n".encode())
        finally:
            os.close(fd)
        if pid in census_request.able(folder):
            (folder / f"{pid}-{STACK_REQUEST}").touch(0o600)
            census_request.send(pid)
        else:
            signal_main_thread(pid, _SIGNAL)
        return begin
    return None


def read(folder: Path, pid: int, begin: int) -> list[Dump]:
    """What was written since, to be called ``WRITTEN_IN`` later; OSError where the file is gone."""
    with contextlib.suppress(FileNotFoundError):
        (folder / f"{pid}-{STACK_REQUEST}").unlink()
        if answers(pid):  # it is in native code, and its frames stand still
            signal_main_thread(pid, _SIGNAL)
            time.sleep(WRITTEN_IN)
    from oomproof.recording import stack_dumps

    with open(_path(folder, pid), "rb") as file:
        file.seek(begin)
        return stack_dumps.parse(file.read(_MOST).decode("utf-8", "replace"))


def stack_now(folder: Path, pid: int, why: str) -> Dump | None:
    if not answers(pid) or (begin := ask(folder, pid, why, boottime())) is None:
        return None
    time.sleep(WRITTEN_IN)
    with contextlib.suppress(OSError):
        return next(iter(read(folder, pid, begin)), None)
    return None


def _path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}-{FAULT}"
