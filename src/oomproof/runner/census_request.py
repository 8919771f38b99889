"""Asks the agent inside the job what is alive there, and finds its answer: a file, then a signal that it handles."""

from __future__ import annotations

import os
import re
from pathlib import Path

from oomproof.leaf.attempt_names import CENSUS_ON, CENSUS_REQUEST
from oomproof.leaf.proc_files import read_bytes
from oomproof.leaf.process_signals import realtime_signal, send_signal
from oomproof.leaf.small_files import replace_file
from oomproof.machine.processes import catches, memory
from oomproof.recording import census_record
from oomproof.recording.census_record import Census

SIGNAL = realtime_signal(12)  # as agent_start has it; 0: none
_MARK = re.compile(rf"([0-9]{{1,9}})-{re.escape(CENSUS_ON)}")


def able(folder: Path) -> list[int]:
    """Processes that answer, those that hold most first. The mark, the handler and the environment must all say so: any
    other process would die of the signal, or take it for its own."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    pids = [int(match[1]) for name in names if SIGNAL and (match := _MARK.fullmatch(name))]
    able_ones = [pid for pid in pids if catches(pid, SIGNAL) and _is_of(pid, folder)]
    return sorted(able_ones, key=lambda pid: (-held_by(pid), pid))


def _is_of(pid: int, folder: Path) -> bool:
    return b"OOMPROOF_AGENT=" + os.fsencode(folder) in (read_bytes(f"/proc/{pid}/environ") or b"").split(
        b"\0"
    )


def held_by(pid: int) -> int:
    held = memory(pid)
    return held.anon if held is not None else 0


def ask(folder: Path, pid: int, request: str, why: str) -> bool:
    """False where the question cannot be written down."""
    try:
        replace_file(
            folder / f"{pid}-{CENSUS_REQUEST}", f"{request}\n{why}\n".encode("utf-8", "replace"), synced=False
        )
    except OSError:
        return False
    send(pid)
    return True


def send(pid: int) -> None:
    """Without a question it looks at its allocators only. To those who are ``able``."""
    send_signal(pid, SIGNAL)


def ask_again(folder: Path, pid: int) -> None:
    """One that waits for the end of a step may have left its steps since."""
    if (folder / f"{pid}-{CENSUS_REQUEST}").exists() and pid in able(folder):
        send(pid)


def answer(folder: Path, pid: int, request: str) -> Census | None:
    for census in reversed(census_record.read_all(folder, pid)):
        if census.request == request:
            return census
    return None
