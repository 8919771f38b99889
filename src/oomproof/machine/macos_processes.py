"""Processes where there is no /proc: the same functions as ``processes``, through psutil.

Tested on Linux, where psutil answers the same questions; nobody has run it on a Mac yet.
"""

from __future__ import annotations

import time

import psutil

from oomproof.machine.processes import ProcessMemory


def start_time(pid: int, proc: str = "") -> int | None:
    """Milliseconds since the epoch: with the pid it names a process for ever."""
    try:
        return int(psutil.Process(pid).create_time() * 1000)
    except psutil.Error:
        return None


def is_alive(pid: int, start: int | None, proc: str = "") -> bool:
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.Error:
        return False
    return start is None or start_time(pid) == start


def memory(pid: int, proc: str = "") -> ProcessMemory | None:
    """macOS tells resident bytes only; all of it counts as the process's own."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return ProcessMemory(
                pid, start_time(pid) or 0, process.ppid(), process.name(), process.memory_info().rss, 0, 0, 0
            )
    except psutil.Error:
        return None


def pss(pid: int, proc: str = "") -> tuple[int, int] | None:
    """Not to be had."""
    return None


def overlap(pid: int, proc: str = "") -> None:
    """Not to be had either."""


def children(pid: int, proc: str = "") -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def descendants(pid: int, proc: str = "") -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def command_line(pid: int, proc: str = "") -> list[str]:
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def boot_id(proc: str = "") -> str:
    """The minute the machine came up: the same for every process of this boot."""
    return time.strftime("boot-%Y%m%dT%H%M", time.gmtime(psutil.boot_time()))
