"""Writes a report's file: never over another one unasked, all of it or nothing."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from oomproof.errors import USAGE, OomproofError

STDOUT = Path("-")


def write(path: Path, make: Callable[[], str], *, force: bool = False) -> None:
    """The report that ``make`` makes, in that file or, for ``-``, on standard output."""
    if path == STDOUT:
        sys.stdout.write(make())
        return
    refuse_to_overwrite(path, force)
    save(path, make().encode("utf-8", "replace"), force=force)


def refuse_to_overwrite(path: Path, force: bool) -> None:
    """Asked before the work, so that nobody waits for a report that has no place."""
    if path.is_dir():
        raise OomproofError(f"{path} is a folder", f"name a file in it, such as {path / 'report'}", USAGE)
    if path.exists() and not force and not _is_device(path):
        raise OomproofError(f"{path} exists already", "give another name, or add --force", USAGE)


def save(path: Path, data: bytes, *, force: bool = False) -> None:
    """Written beside under another name, then renamed. For its owner only: it quotes logs."""
    refuse_to_overwrite(path, force)
    temporary = None
    try:
        if _is_device(path):  # /dev/stdout, a fifo: a rename would put a file in its place
            with open(path, "wb") as file:
                file.write(data)
            return
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise OomproofError(
            f"cannot write {path}: {error.strerror}", "name a file in a folder you may write, with free space"
        ) from error


def _is_device(path: Path) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
