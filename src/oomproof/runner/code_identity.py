"""Which code ran: the script and its hash, the commit and the hash of what was not committed.

Runs inside the guard's process, so it keeps to small means: no subprocess, no OpenSSL.
"""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

from oomproof.leaf.command_lines import script_of
from oomproof.leaf.small_files import sha256_hex

_LONGEST = 16 << 20
_SECONDS = 5.0  # git on a network file system


def hash_file(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return sha256_hex(Path(path).read_bytes())
    except OSError:
        return None


def _start_git(folder: str, *words: str) -> tuple[int, int] | None:
    """(pid, where it prints), or None when it is not there."""
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_DUP2, null, 0),
        (os.POSIX_SPAWN_DUP2, write_end, 1),
        (os.POSIX_SPAWN_DUP2, null, 2),
    ]
    try:
        pid = os.posix_spawnp("git", ["git", "-C", folder, *words], os.environ, file_actions=actions)
    except OSError:
        os.close(read_end)
        return None
    finally:
        os.close(write_end)
        os.close(null)
    return pid, read_end


def _printed(git: tuple[int, int] | None) -> bytes | None:
    """What git prints, or None when it fails or takes too long."""
    if git is None:
        return None
    pid, read_end = git
    text, deadline = b"", time.monotonic() + _SECONDS
    while select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(read_end, 1 << 16)
        if not part:
            break
        text += part
        if len(text) > _LONGEST:
            os.kill(pid, signal.SIGKILL)  # the hash of its first part must do
            break
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    return text if status == 0 or len(text) > _LONGEST else None


def describe(argv: list[str], folder: str) -> dict[str, object]:
    """Takes tens of milliseconds (git): call it off the path of the start."""
    script = script_of(argv, folder)
    where = os.path.dirname(script) if script else folder
    asked = _start_git(where, "rev-parse", "HEAD")
    # A changed 100 MB file took git 1 GB to compare: files above 1 MB count as changed, not line by line.
    flags = ("--no-optional-locks", "-c", "core.bigFileThreshold=1m")
    compared = _start_git(where, *flags, "diff", "HEAD", "--no-ext-diff", "--no-textconv")  # beside the first
    commit, diff = _printed(asked), _printed(compared)
    return {
        "script": script,
        "script_sha256": hash_file(script),
        "git_commit": commit.decode().strip() if commit else None,
        "git_dirty": bool(diff) if diff is not None else None,
        "git_diff_sha256": sha256_hex(diff) if diff else None,
    }
