"""What the keeper writes and reads beside the job: started.json, exit.json, keeper.jsonl, the kernel's counters, the cgroups.

Whoever keeps the job does it: the keeper, the front that took over, a stand-in.
"""

from __future__ import annotations

import errno
import json
import os
import time

from oomproof.leaf.attempt_names import EXIT, KEEPER_EVENTS, RESERVED_EXIT, STARTED
from oomproof.leaf.proc_files import boottime
from oomproof.leaf.small_files import append, replace_file

EXIT_BYTES = 4096


def reserve_exit(folder: str) -> int | None:
    """Space for exit.json, taken at the start: a disk that fills later must not lose how the job ended."""
    try:
        fd = os.open(f"{folder}/{RESERVED_EXIT}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(fd, b" " * EXIT_BYTES, 0)
        return fd
    except OSError:
        return None


def write_exit(folder: str, fd: int | None, record: dict[str, object]) -> None:
    """Into the reserved space, synced, then under its real name: whole or not there."""
    if fd is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    text = json.dumps(record, indent=1).encode()
    os.pwrite(fd, text.ljust(EXIT_BYTES), 0)
    os.fsync(fd)
    os.replace(f"{folder}/{RESERVED_EXIT}", f"{folder}/{EXIT}")


def append_event(folder: str, **event: object) -> None:
    event = {"boottime": boottime(), "wall": time.time(), **event}
    append(f"{folder}/{KEEPER_EVENTS}", json.dumps(event).encode() + b"\n")


def write_started(folder: str, record: dict[str, object]) -> str | None:
    """Whole or not there; why not, in words. Not synced: the front does that when nobody waits for it."""
    try:
        replace_file(f"{folder}/{STARTED}", json.dumps(record, indent=1).encode(), synced=False)
    except OSError as error:
        return error.strerror
    return None


def read_counter(path: str, key: str) -> int | None:
    """One number: a whole file ("" key), a "key value" line, or an extended attribute ("xattr:NAME")."""
    try:
        if key.startswith("xattr:"):
            return int(os.getxattr(path, key[6:]))
        with open(path, "rb") as file:
            text = file.read()
        if not key:
            return int(text)
        for line in text.splitlines():
            name, _, value = line.partition(b" ")
            if name == key.encode():
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def read_counters(wanted: list[list[str]]) -> dict[str, int | None]:
    return {name: read_counter(path, key) for name, path, key in wanted}


def remove_cgroups(directories: list[str]) -> None:
    """The kernel lets go of a cgroup a moment after its last process is gone."""
    for directory in directories:
        for _ in range(40):
            try:
                for folder, names, _ in os.walk(directory, topdown=False):
                    for name in names:
                        os.rmdir(os.path.join(folder, name))
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.025)
