"""What the keeper writes and reads beside the job: started.json, exit.json, keeper.jsonl, the kernel's counters, the cgroups.

Whoever keeps the job does it: the keeper, the front that took over, a stand-in.
"""

from __future__ import annotations

import errno
import json
import os
import time

from oomproof.leaf.attempt_names import EXIT, KEEPER_EVENTS, RESERVED_EXIT, SPARE, SPARE_OF, STARTED
from oomproof.leaf.proc_files import boottime
from oomproof.leaf.small_files import append, is_own_folder, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_BYTES = 4096


def reserve_exit(folder: str) -> int | None:
    """Space for exit.json, taken at the start: a disk that fills later must not lose how the job ended."""
    fd = None
    try:
        fd = os.open(f"{folder}/{RESERVED_EXIT}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.pwrite(fd, b" " * EXIT_BYTES, 0) == EXIT_BYTES:
            return fd
    except OSError:
        pass
    if fd is not None:
        os.close(fd)
    return None


def how_it_ended(status: int | None) -> dict[str, object]:
    """The fields of exit.json that are a wait status taken apart; None: it could not be learnt."""
    exited = status is not None and os.WIFEXITED(status)
    killed = status is not None and os.WIFSIGNALED(status)
    return {
        "status": status,
        "code": os.WEXITSTATUS(status) if status is not None and exited else None,
        "signal": os.WTERMSIG(status) if status is not None and killed else None,
        "core": status is not None and os.WCOREDUMP(status),
    }


def write_exit(folder: str, fd: int | None, record: dict[str, object], spares: Sequence[str] = ()) -> None:
    """Into the reserved space, synced, then under its real name: whole or not there. Where there was no space at the start,
    or it is not to be had any more: where there is some now."""
    text = json.dumps(record, indent=1).encode()
    try:
        if fd is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(fd, text.ljust(EXIT_BYTES), 0)
        os.fsync(fd)
    except OSError:
        write_somewhere(folder, spares, EXIT, record, synced=True)
        return
    os.replace(f"{folder}/{RESERVED_EXIT}", f"{folder}/{EXIT}")


def write_somewhere(
    folder: str, spares: Sequence[str], name: str, record: dict[str, object], synced: bool
) -> None:
    """At its place, else in the first spare folder that takes it: with the name of its place, so that it is found and brought
    there later. Raises what its place said when none does."""
    try:
        replace_file(f"{folder}/{name}", json.dumps(record, indent=1).encode(), synced)
        return
    except OSError as error:
        reason = error
    if not os.path.isdir(folder):  # removed with its run: nobody will look for it
        raise reason
    text = json.dumps({SPARE_OF: folder, **record}, indent=1).encode()
    for spare in spares:
        base = spare[: spare.rindex(f"/{SPARE}/")]
        try:
            os.makedirs(base, 0o700, exist_ok=True)
            if is_own_folder(base):  # in /dev/shm anybody may have made it
                os.makedirs(spare, 0o700, exist_ok=True)
                replace_file(f"{spare}/{name}", text, synced)
                return
        except OSError:
            pass
    raise reason


def append_event(folder: str, **event: object) -> None:
    event = {"boottime": boottime(), "wall": time.time(), **event}
    append(f"{folder}/{KEEPER_EVENTS}", json.dumps(event).encode() + b"\n")


def write_started(folder: str, record: dict[str, object], spares: Sequence[str] = ()) -> str | None:
    """Whole or not there; why not, in words. Not synced: the front does that when nobody waits for it."""
    try:
        write_somewhere(folder, spares, STARTED, record, synced=False)
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
