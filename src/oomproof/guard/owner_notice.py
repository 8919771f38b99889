"""A line on the terminal of whoever started a job that we pause or resume: a job that just stops is a riddle."""

from __future__ import annotations

import os

from oomproof.leaf.proc_files import name_of, stat_fields
from oomproof.machine.job_ties import reads_keys
from oomproof.machine.jobs import LAUNCHERS
from oomproof.printable import printable


def tell_owner(pid: int, text: str, proc: str = "/proc") -> bool:
    """Only where the terminal is that user's and shows lines: a program that draws the whole screen is left alone."""
    terminal = terminal_of(pid, proc)
    try:
        if not terminal or os.stat(terminal).st_uid != os.stat(f"{proc}/{pid}").st_uid:
            return False
        if reads_keys(terminal) and _in_front(pid, proc) not in LAUNCHERS:  # a shell's prompt is only a line
            return False
        fd = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, f"\r\noomproof: {printable(text)}\r\n".encode())
        finally:
            os.close(fd)
    except OSError:  # it has ended, the terminal is closed, or nobody reads it
        return False
    return True


def _in_front(pid: int, proc: str) -> str:
    """The program that has its terminal now."""
    fields = stat_fields(pid, proc)
    return name_of(int(fields[5]), proc) if fields and len(fields) > 5 else ""


def terminal_of(pid: int, proc: str = "/proc") -> str:
    """The path of its controlling terminal, where that is a pseudo terminal; else empty."""
    fields = stat_fields(pid, proc)
    number = int(fields[4]) if fields and len(fields) > 4 else 0
    major, minor = number >> 8 & 0xFFF, (number & 0xFF) | (number >> 12 & 0xFFF00)
    return f"/dev/pts/{(major - 136) * 256 + minor}" if 136 <= major <= 143 else ""
