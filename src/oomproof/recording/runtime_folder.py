"""The runtime folder: where the runs of one user see each other. Closed to others, and gone after a reboot if possible."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.machine.processes import boot_id
from oomproof.recording.run_folders import state_folder
from oomproof.recording.state_files import make_private

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
