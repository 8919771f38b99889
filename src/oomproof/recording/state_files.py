"""Small files of the state folder: read whatever state they are in, written whole, and locks that go with their process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

from oomproof.errors import MORE_FILES, OUR_FAILURE, OomproofError
from oomproof.leaf.small_files import append, replace_file
from oomproof.machine.processes import boot_id
from oomproof.recording.json_shapes import parse

_MOST = 4 << 20  # bytes of one JSON file: ours have a few KiB, and a runaway one must not eat memory
_MOST_LINES = 64 << 20  # ... of a .jsonl file, which grows by a line for each action


def state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "oomproof"


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
    return read_small(path, most).decode("utf-8", "replace")


def read_small(path: str | os.PathLike[str], most: int = _MOST) -> bytes:
    """Its first bytes. OSError for all but a regular file: a fifo or folder that a job made there must not hold us up."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            raise OSError(number, os.strerror(number), os.fspath(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)


def make_private(folder: Path) -> Path:
    """The folder, there and closed to others."""
    try:
        for part in (*reversed(folder.parents), folder):  # mkdir(parents=True) leaves the mode to the umask
            if not part.exists():
                part.mkdir(mode=0o700, exist_ok=True)
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


def write_json(path: Path, value: object) -> None:
    """All or nothing, also over a power cut: written beside, synced, renamed."""
    try:
        replace_file(path, json.dumps(value, indent=1).encode(), synced=True)
    except OSError as error:
        space = "free some space there, or set XDG_STATE_HOME elsewhere"
        hint = MORE_FILES if error.errno == errno.EMFILE else space
        raise OomproofError(f"cannot write {path}: {error.strerror}", hint) from error


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


def append_line(path: Path, value: dict[str, object]) -> bool:
    return append(path, json.dumps(value).encode() + b"\n")


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


TEMPORARY = Path("/tmp")  # not TMPDIR: all runs of a user must find each other
_HINT = "set XDG_RUNTIME_DIR to a folder of your own"
_said: set[str] = set()


def runtime_folder() -> Path:
    """$XDG_RUNTIME_DIR/oomproof, else ours in /tmp, else one in the state folder; each 0700 and our own.

    Another user may have made the one in /tmp before us: that is told once, and the next one serves."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    problems: list[str] = []
    # With `sudo -E` it is another user's, who could move our folder away.
    if base and os.path.isdir(base) and os.access(base, os.W_OK) and os.stat(base).st_uid == os.getuid():
        try:
            return private_folder(Path(base) / "oomproof")
        except OomproofError as error:
            problems.append(error.message)
    try:
        return temporary_folder()
    except OomproofError as error:
        problems.append(error.message)
    try:
        folder = private_folder(make_private(state_folder()) / _by_boot())
    except OomproofError as error:
        _tell(f"{problems[0]}, and {error.message}: the runs do not see each other")
        raise OomproofError(problems[0], _HINT) from error
    _tell(f"{problems[0]}: {folder} is used instead")
    return folder


def known_folders() -> list[Path]:
    """Where a run of this user's may have had its runtime folder, with or without a login session; none of them is made."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    session = [Path(base) / "oomproof"] if base else []
    return [*session, TEMPORARY / f"oomproof-{os.getuid()}", state_folder() / _by_boot()]


def _by_boot() -> str:
    """What stands there means nothing after a reboot, and homes are shared between machines."""
    return f"runtime-{boot_id()[:8] or 'here'}"


def temporary_folder() -> Path:
    """Ours in /tmp, where names are short enough for a socket. Raises when it cannot be had."""
    return private_folder(TEMPORARY / f"oomproof-{os.getuid()}")


def private_folder(folder: Path) -> Path:
    """The folder, there, our own, no link, closed to others. Raises OomproofError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise OomproofError(f"cannot make {folder}: {error.strerror}", _HINT) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OomproofError(f"{folder} belongs to another user", _HINT)
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def _tell(text: str) -> None:
    """Once: whoever took our folder should not do so unseen."""
    if text not in _said:
        _said.add(text)
        print(f"oomproof: {text}\n  hint: {_HINT}", file=sys.stderr)
