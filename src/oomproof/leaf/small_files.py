"""Small files of ours: written whole, read whatever state they are in, locked by whoever lives."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def write_all(fd: int, data: bytes) -> None:
    """All of it: a disk that fills up takes a part first, and says so only at the next write."""
    while data:
        written = os.write(fd, data)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]


def replace_file(path: str | os.PathLike[str], data: bytes, synced: bool) -> None:
    """All or nothing: written beside, renamed. ``synced``: also over a power cut. Raises OSError; the old file stands then."""
    folder, name = os.path.split(os.fspath(path))
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
            if synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        try:  # half a new one would only fill the disk
            os.unlink(temporary)
        except OSError:
            pass
        raise


def append(path: str | os.PathLike[str], line: bytes) -> bool:
    """A line at the end, synced; False when it could not be written. A full disk costs the line, not the caller."""
    try:
        fd = os.open(path, APPEND, 0o600)
    except OSError:
        return False
    try:
        return append_to(fd, line)
    finally:
        os.close(fd)


def append_to(fd: int, line: bytes) -> bool:
    """The same for a file that was opened (``APPEND``) while a descriptor could be had."""
    try:
        write_all(fd, line)
        sync(fd)
    except OSError:
        return False
    return True


def read_object(path: str) -> dict[str, Any]:
    """The JSON object in it; empty when it is absent, cut or something else."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read().decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_own_folder(path: str | os.PathLike[str]) -> bool:
    """A folder of ours, no link, that nobody else may write to."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a living process holds its flock: true for just as long as that process lives."""
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


def hold_lock(path: str) -> int | None:
    """Waited for, then held as long as we live. None where there can be no file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        try:  # a disk that has turned read-only since the file was made
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        pass
    return fd


def sha256_hex(data: bytes) -> str:
    """Without OpenSSL, which ``hashlib`` loads: 2 MiB and 3 ms that no guard needs."""
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]  # Python 3.12 on
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())
