"""Which code ran: the script and its hash, the commit and the hash of what was not committed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

_SECONDS = 5.0  # git on a network file system


def script_of(argv: list[str], folder: str) -> str | None:
    """The file a person would call "the script": the first word that is a source file of the user's."""
    for word in argv:
        if word.endswith((".py", ".sh", ".ipynb", ".R", ".jl", ".lua")):
            path = os.path.join(folder, word)
            if os.path.isfile(path):
                return os.path.realpath(path)
    return None


def hash_file(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _git(folder: str, *words: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def describe(argv: list[str], folder: str) -> dict[str, object]:
    """Takes tens of milliseconds (git): call it off the path of the start."""
    script = script_of(argv, folder)
    where = os.path.dirname(script) if script else folder
    commit = _git(where, "rev-parse", "HEAD")
    diff = _git(where, "diff", "HEAD", "--no-ext-diff") if commit else None
    return {
        "script": script,
        "script_sha256": hash_file(script),
        "git_commit": commit.decode().strip() if commit else None,
        "git_dirty": bool(diff) if diff is not None else None,
        "git_diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }
