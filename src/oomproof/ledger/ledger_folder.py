"""Where the ledger is: the administrator's folder for several users, else the user's own."""

from __future__ import annotations

import os
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.recording.run_folders import state_folder
from oomproof.recording.runtime_folder import runtime_folder

SHARED = Path("/var/lib/oomproof")


def ledger_name() -> str:
    """A home on the network serves several machines: each has its own ledger in it."""
    letters = (letter if letter.isalnum() or letter in "-_." else "_" for letter in os.uname().nodename)
    return f"ledger-{''.join(letters) or 'here'}.sqlite"


def spare_file() -> Path | None:
    """For entries that the disk does not take: in the runtime folder."""
    try:
        return runtime_folder() / ledger_name()
    except (OSError, OomproofError):
        return None


def is_there(wanted: str | None = None) -> bool:
    """Whether anybody has begun a ledger; a reader makes none."""
    spare = spare_file()
    return (ledger_folder(wanted)[0] / ledger_name()).exists() or bool(spare and spare.exists())


def ledger_folder(wanted: str | None = None) -> tuple[Path, bool]:
    """(folder, shared?): what the settings name, else the administrator's when there is one, else the user's own."""
    if wanted:
        folder = Path(wanted)
        if not folder.is_dir():
            raise OomproofError(
                f"the reservations folder {folder} is not there", f"sudo install -d -m 2770 -g users {folder}"
            )
        problem = _shared_problem(folder)
        status = folder.stat()
        if problem is not None and (status.st_uid not in (0, os.getuid()) or status.st_mode & 0o002):
            raise OomproofError(
                f"the reservations folder {folder} is not safe: {problem}",
                f"sudo install -d -m 2770 -g users {folder}",
            )
        return folder, problem is None
    if SHARED.is_dir() and os.access(SHARED, os.W_OK) and _shared_problem(SHARED) is None:
        return SHARED, True
    return state_folder(), False


def _shared_problem(folder: Path) -> str | None:
    """Only root's folder, open to a group and closed to the rest, is a place for files several users write."""
    status = folder.stat()
    if status.st_uid != 0:
        return "it does not belong to root"
    if status.st_mode & 0o002:
        return "everybody may write it"
    return None if status.st_mode & 0o020 else "no group may write it"
