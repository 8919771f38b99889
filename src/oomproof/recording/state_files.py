"""Small files of the state folder: read whatever state they are in, written whole, and locks that go with their process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.recording.json_text import parse

_MOST = 4 << 20  # bytes of one JSON file: ours have a few KiB, and a runaway one must not eat memory
_MOST_LINES = 64 << 20  # ... of a .jsonl file, which grows by a line for each action


def load(path: Path) -> tuple[dict[str, Any], str | None]:
    """The object in the file, and why it is empty if it is: absent, cut in half or not ours is a value."""
    try:
        value = parse(_text(path, _MOST))
    except OSError as error:
        return {}, f"{path.name}: {error.strerror}"
    except ValueError:
        return {}, f"{path.name} is damaged"
    return (value, None) if isinstance(value, dict) else ({}, f"{path.name} is damaged")


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty where there is none: a reader shows what there is."""
    return load(path)[0]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; lines that are none (the last one cut short by a crash) are left out."""
    values = []
    try:
        lines = _text(path, _MOST_LINES).splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError):
            if isinstance(value := parse(line), dict):
                values.append(value)
    return values


def _text(path: Path, most: int) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a fifo in its place must not hold us up
    with open(fd, "rb") as file:
        return file.read(most).decode("utf-8", "replace")


def make_private(folder: Path) -> Path:
    """The folder, there and closed to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():  # root may write there too, and its owner may lay links
            raise PermissionError(errno.EPERM, "it belongs to another user")
        folder.chmod(0o700)
    except OSError as error:
        raise OomproofError(
            f"cannot use the state folder {folder}: {error.strerror}",
            "set XDG_STATE_HOME to a folder of your own, for example XDG_STATE_HOME=$(mktemp -d)",
            OUR_FAILURE,
        ) from error
    return folder


def write_all(fd: int, data: bytes) -> None:
    """All of it: a disk that fills up takes a part first, and says so only at the next write."""
    while data:
        written = os.write(fd, data)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]


def write_json(path: Path, value: object) -> None:
    """All or nothing, also over a power cut: written beside, synced, renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, json.dumps(value, indent=1).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the old file stands; half a new one would only fill the disk
            temporary.unlink()
        raise OomproofError(
            f"cannot write {path}: {error.strerror}", "free some space there, or set XDG_STATE_HOME elsewhere"
        ) from error


def sync(path: Path) -> None:
    """So that a file written without a sync outlives a power cut. What cannot be synced is there all the same."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        pass


APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def append(path: Path, line: bytes) -> bool:
    """A line at the end, synced; False when it could not be written. A full disk costs the line, not the caller."""
    try:
        fd = os.open(path, APPEND, 0o600)
    except OSError:
        return False
    try:
        return _append_to(fd, line)
    finally:
        os.close(fd)


def _append_to(fd: int, line: bytes) -> bool:
    try:
        write_all(fd, line)
        getattr(os, "fdatasync", os.fsync)(fd)  # macOS has only the latter
    except OSError:
        return False
    return True


def append_line(path: Path, value: dict[str, object]) -> bool:
    return append(path, json.dumps(value).encode() + b"\n")


def append_to(fd: int, value: dict[str, object]) -> bool:
    """The same for a file that was opened (``APPEND``) while a descriptor could be had."""
    return _append_to(fd, json.dumps(value).encode() + b"\n")


def take_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None when somebody else does. It goes with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:  # perhaps only a reader's glance (is_locked), gone in microseconds
            time.sleep(0.005)
    os.close(fd)
    return None


def is_locked(path: Path) -> bool:
    """Whether a living process holds it: true for just as long as that process lives."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
