"""What /proc says about processes, and the clock of all times. A process that has gone is None, an empty list, or X."""

from __future__ import annotations

import os
import time

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep too
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))


def boottime() -> float:
    """Seconds since boot, sleep included, which no date change can move."""
    return time.clock_gettime(_CLOCK)


def read_bytes(path: str) -> bytes | None:
    """The whole file; None for one that is not there or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        text = part = os.read(fd, 16384)
        while len(part) >= 2048:  # a long list (children) comes in several parts
            part = os.read(fd, 16384)
            text += part
        return text
    except OSError:  # ESRCH: it died between open and read
        return None
    finally:
        os.close(fd)


def read_text(path: str) -> str:
    """Any text file to its end; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def kib_field(text: bytes, name: bytes) -> int:
    """The bytes behind ``name`` (with its colon) of a ``Name:  N kB`` line; 0 where absent."""
    at = text.find(name)
    if at < 0:
        return 0
    at += len(name)
    end = text.find(b"kB", at)
    return int(text[at:end]) * 1024 if end > 0 else 0


def stat_fields(pid: int, proc: str = "/proc") -> list[bytes] | None:
    """Fields of /proc/PID/stat from the third on; the name before them may hold spaces and brackets."""
    text = read_bytes(f"{proc}/{pid}/stat")
    if not text:
        return None
    return text[text.rfind(b")") + 2 :].split()


def start_time(pid: int, proc: str = "/proc") -> int | None:
    """Clock ticks since boot: with the pid it names a process for ever. A zombie still tells."""
    fields = stat_fields(pid, proc)
    return int(fields[19]) if fields and len(fields) > 19 else None


def with_start(pid: int) -> dict[str, int | None]:
    """A process for ever, as our files name it."""
    return {"pid": pid, "start": start_time(pid)}


def state_of(pid: int, proc: str = "/proc") -> bytes:
    """Its letter (R, S, D, T, Z …); X when it is gone."""
    fields = stat_fields(pid, proc)
    return fields[0] if fields else b"X"


def is_zombie(pid: int) -> bool:
    """Also when it is gone. False where there is no /proc (macOS): what lists processes there leaves them out."""
    return os.path.isdir("/proc/self") and state_of(pid) in (b"Z", b"X")


def owner_of(pid: int, proc: str = "/proc") -> int | None:
    """The user whose process it is; None once it has gone."""
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None


def is_stopped(pid: int, proc: str = "/proc") -> bool:
    return state_of(pid, proc) in (b"T", b"t")


def is_working(pid: int, proc: str = "/proc") -> bool:
    """Whether one of its threads runs, or waits for a disk, at this moment."""
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return False
    return any(state_of(int(thread), f"{proc}/{pid}/task") in (b"R", b"D") for thread in threads)


def is_alive(pid: int, start: int | None, proc: str = "/proc") -> bool:
    """True only for the very process that had this pid at that start; zombies are dead."""
    fields = stat_fields(pid, proc)
    if not fields or len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return False
    return start is None or int(fields[19]) == start


def children(pid: int, proc: str = "/proc") -> list[int]:
    """Direct children, over all threads of the process: a child hangs on the thread that forked it."""
    pids: list[int] = []
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return pids
    for thread in threads:
        text = read_bytes(f"{proc}/{pid}/task/{thread}/children")
        if text:
            pids.extend(int(word) for word in text.split())
    return pids


def descendants(pid: int, proc: str = "/proc") -> list[int]:
    """The tree below ``pid``, without it, oldest generation first. Never lists all of /proc."""
    pids: list[int] = []
    queue = [pid]
    seen = {pid}
    while queue:
        for child in children(queue.pop(0), proc):
            if child not in seen:
                seen.add(child)
                pids.append(child)
                queue.append(child)
    return pids


def ancestors(pid: int, proc: str = "/proc") -> list[int]:
    """Its parent, that one's parent and so on, up to the first process."""
    pids: list[int] = []
    while pid > 1:
        fields = stat_fields(pid, proc)
        pid = int(fields[1]) if fields else 0
        if pid in pids:
            break
        pids.append(pid)
    return pids


def name_of(pid: int, proc: str = "/proc") -> str:
    """The kernel's short name of it; empty when it is gone."""
    return read_text(f"{proc}/{pid}/comm").strip()


def command_line(pid: int, proc: str = "/proc") -> list[str]:
    text = read_bytes(f"{proc}/{pid}/cmdline") or b""
    return [part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0")] if text else []


def environment(pid: int, proc: str = "/proc") -> dict[str, str]:
    """As it was at the process's start; empty where it may not be read."""
    lines = read_text(f"{proc}/{pid}/environ").split("\0")
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def boot_id(proc: str = "/proc") -> str:
    return read_text(f"{proc}/sys/kernel/random/boot_id").strip()
