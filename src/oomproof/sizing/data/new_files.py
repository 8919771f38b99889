"""Files that appear whole, and all of them or none: written under other names, renamed when the last one is done."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO

from oomproof.errors import USAGE, OomproofError
from oomproof.units import format_size


class NewFiles:
    """``source`` is what they are made from, which is never written to. ``force``: files of these names are replaced."""

    def __init__(self, source: str, force: bool) -> None:
        self.source, self.force = source, force
        self._renames: list[tuple[str, str]] = []  # (temporary, final)
        self._taken: set[str] = set()
        self._folders: list[str] = []  # made by us

    def __enter__(self) -> NewFiles:
        return self

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Written to the disk when it is closed; under its own name only when all are."""
        self._refuse_taken(path)
        folder, name = os.path.split(path)
        try:
            self._make_folder(folder)
            temporary = os.path.join(folder, f".{name[:200]}.{os.getpid()}.part")
            with open(temporary, "xb") as file:
                self._renames.append((temporary, path))
                yield file
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._failed(path, error) from None

    def _refuse_taken(self, path: str) -> None:
        if path in self._taken:
            raise OomproofError(f"{self.source}: two of its parts would be {path}", "rename one of them")
        self._taken.add(path)
        if not os.path.lexists(path):
            return
        if os.path.isdir(path):
            raise OomproofError(f"{path} is a folder", "name another file", USAGE)
        if os.path.exists(path) and os.path.samefile(path, self.source):
            raise OomproofError(
                f"{path} is the input itself, which is never changed", "name another file", USAGE
            )
        if not self.force:
            raise OomproofError(f"{path} exists already", "--force replaces it", USAGE)

    def _make_folder(self, folder: str) -> None:
        if folder and not os.path.isdir(folder):
            self._make_folder(os.path.dirname(folder))
            os.mkdir(folder)
            self._folders.append(folder)

    def _failed(self, path: str, error: OSError) -> OomproofError:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the folder"
        return OomproofError(f"{path}: cannot be written ({error.strerror}); nothing was kept of it", hint)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for _, path in self._renames:
                    self._refuse_appeared(path)
                while self._renames:
                    os.replace(*self._renames[0])
                    self._renames.pop(0)
                self._folders = []
        except OSError as failure:
            raise self._failed(self._renames[0][1], failure) from None
        finally:
            self._remove_leftovers()

    def _refuse_appeared(self, path: str) -> None:
        if not self.force and os.path.lexists(path):
            raise OomproofError(f"{path} has appeared meanwhile", "--force replaces it", USAGE)

    def _remove_leftovers(self) -> None:
        """Also after Ctrl-C."""
        for remove, names in (
            (os.unlink, [name for name, _ in self._renames]),
            (os.rmdir, self._folders[::-1]),
        ):
            for name in names:
                try:
                    remove(name)
                except OSError:  # not there, or others use the folder by now
                    pass


def refuse_full_disk(folder: str, needed: int) -> None:
    """Before the first byte is written, where it is plain already."""
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    try:
        disk = os.statvfs(folder or ".")
    except OSError:
        return
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise OomproofError(
            f"{folder or '.'}: {format_size(needed)} must be written, {format_size(free)} are free",
            "free some space, or name a folder on another disk",
        )
