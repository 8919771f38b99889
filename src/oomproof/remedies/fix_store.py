"""Applied changes on disk: what each file was before, what it became, and how the change fares."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.small_files import sha256_hex, write_all
from oomproof.recording import state_files
from oomproof.recording.run_folders import fixes_folder
from oomproof.recording.state_files import state_folder
from oomproof.records import dataclass

SCHEMA = 1
PROBATION, CONFIRMED, OFFERED, UNDONE, BEGUN = "probation", "confirmed", "offered for undo", "undone", "begun"
_KEPT = 50  # of the newest that are over
_LARGEST = 2 << 20  # bytes; a file that may be changed has at most half of it
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # not on a Mac, nor in a glibc older than 2.28


@dataclass(frozen=True)
class Fix:
    """One application: a folder with its manifest and the files as they were."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def manifest(self) -> dict[str, Any]:
        return state_files.read_json(self.folder / "fix.json")

    @property
    def state(self) -> str:
        return str(self.manifest.get("state") or "")

    def backup(self, number: int) -> Path:
        return self.folder / f"{number}.before"

    def note(self, **changed: Any) -> None:
        state_files.write_json(self.folder / "fix.json", {**self.manifest, **changed})


def list_fixes() -> list[Fix]:
    """Newest first."""
    try:
        names = sorted(os.listdir(fixes_folder()), reverse=True)
    except OSError:
        return []
    return [fix for name in names if (fix := Fix(fixes_folder() / name)).manifest]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """One file's new content. It waits in ``aside``, beside the file; later ``aside`` has what was replaced."""

    path: str
    expected: str  # hash of what is replaced
    text: str
    aside: str
    time_ns: int | None = None  # when the file shall have been written; None: now

    @property
    def after(self) -> str:
        return _hash(self.text)


def apply(texts: Mapping[str, tuple[str, str]], about: Mapping[str, Any]) -> Fix:
    """``texts``: (before, after) by path. Changes all files or none. The manifest, the backups and the new contents
    are on disk before the first file is replaced. Raises OomproofError."""
    fix = _new_fix()
    new = [
        _Replacement(path, _hash(before), after, _aside(fix, path)) for path, (before, after) in texts.items()
    ]
    try:
        files: list[dict[str, Any]] = []
        for change in new:
            status = os.lstat(change.path)
            if status.st_nlink > 1:
                raise OomproofError(f"nothing was changed: {change.path} has several names (hard links)")
            files.append(
                {
                    "path": change.path,
                    "before": change.expected,
                    "after": change.after,
                    "time_ns": status.st_mtime_ns,
                }
            )
        for number, (before, _) in enumerate(texts.values()):
            _write_new(fix.backup(number), before.encode())
        manifest = {"schema": SCHEMA, **about, "applied": time.time(), "state": BEGUN, "files": files}
        state_files.write_json(fix.folder / "fix.json", manifest)
        for folder in (fix.folder, fix.folder.parent):
            state_files.sync(folder)
        _replace_all(fix, new, PROBATION)
    except BaseException as error:
        _put_back(fix, new, error)
        shutil.rmtree(fix.folder, ignore_errors=True)
        raise _shown(error, "changed") from error
    for change in new:
        _clear(change.aside, change.path, (change.expected,))
    _prune()
    return fix


def undo(fix: Fix) -> list[str]:
    """The files that are again as they were. Raises OomproofError, and then none is touched."""
    files = _files(fix)
    now = {path: _hash_now(path) for _, path, _, _ in files}
    for number, path, before, after in files:
        if now[path] not in (before, after):
            gone = "is gone" if now[path] is None else "was changed since"
            raise OomproofError(
                f"nothing was undone: {path} {gone}", f"as it was before: {fix.backup(number)}"
            )
        _clear(_aside(fix, path), path, (before, after))
    kept = {number: _kept_text(fix.backup(number), before) for number, _, before, _ in files}
    times = [file.get("time_ns") for file in fix.manifest["files"]]
    new = [
        _Replacement(path, after, kept[number], _aside(fix, path), times[number])
        for number, path, _, after in files
        if now[path] == after
    ]
    try:
        _replace_all(fix, new, UNDONE)
    except BaseException as error:
        _put_back(fix, new, error)
        raise _shown(error, "undone") from error
    for change in new:
        _clear(change.aside, change.path, (change.expected,))
    return list(now)


def _replace_all(fix: Fix, new: Sequence[_Replacement], state: str) -> None:
    """Takes no space once the first file is replaced, so that a disk that is full by then does no harm."""
    for change in new:
        _stage(change)
    for change in new:
        _swap(change.aside, change.path, change.expected)
    for folder in {os.path.dirname(change.path) for change in new}:
        state_files.sync(Path(folder))
    fix.note(state=state)


def _put_back(fix: Fix, new: Sequence[_Replacement], error: BaseException) -> None:
    """Undoes ``_replace_all`` by renames alone. Raises OomproofError where that fails; the originals are then kept."""
    left = []
    for change in reversed(new):
        try:
            now, aside = _hash_now(change.path), _hash_now(change.aside)
            staged = aside == change.after or (
                aside is None and now != change.after
            )  # never replaced, or back already
            if now != change.expected and not staged:
                _swap(change.aside, change.path, change.after)
            _clear(change.aside, change.path, (change.after,))
        except (OSError, OomproofError):
            left.append(change.path)
    if left:
        hint = f"the files as they were: {fix.folder}; to put them back: oomproof fix --undo {fix.id}"
        raise OomproofError(f"{_words(error)}; not put back: {', '.join(left)}", hint) from error


def _stage(change: _Replacement) -> None:
    """Writes the new content beside the file, with the file's mode, owner and attributes."""
    status = os.lstat(change.path)
    if _hash_now(change.path) != change.expected:
        raise _changed(change.path)
    part = f"{change.aside}.part"  # a name that only what is half written has
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, change.text.encode())
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, status.st_uid, status.st_gid)
            shutil.copystat(change.path, part)
            written = time.time_ns() if not isinstance(change.time_ns, int) else change.time_ns
            os.utime(fd, ns=(written, written))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, change.aside)
    except OSError as error:
        raise OSError(error.errno, error.strerror, change.path) from error


def _swap(aside: str, path: str, expected: str) -> None:
    """Makes the two files change places, unless ``path`` has another content than expected: newer work of the user's.
    That is asked again after the exchange, when nobody can replace what was there."""
    if _hash_now(path) != expected:
        raise _changed(path)
    _exchange(aside, path)
    if _hash_now(aside) != expected:
        _exchange(aside, path)
        raise _changed(path)


def _exchange(aside: str, path: str) -> None:
    """Atomically where the file system can. Elsewhere (NFS) the file that is replaced gets a second name first."""
    if _renameat2 is not None:
        names = (os.fsencode(aside), os.fsencode(path))
        if not _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
            return
    old = f"{aside}.old"
    os.link(path, old, follow_symlinks=False)
    try:
        os.replace(aside, path)
    except OSError:
        os.unlink(old)
        raise
    os.replace(old, aside)


def _clear(aside: str, path: str, known: Sequence[str]) -> None:
    """Removes what we left beside the file. Raises OomproofError where the user wrote into it meanwhile; that stays."""
    with contextlib.suppress(OSError):
        os.unlink(f"{aside}.part")
    for name in (aside, f"{aside}.old"):
        now = _hash_now(name)
        if now in known:
            with contextlib.suppress(OSError):
                os.unlink(name)
        elif now is not None:
            raise OomproofError(f"{path} was written to just as it was replaced", f"what was written: {name}")


def _aside(fix: Fix, path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.oomproof-{fix.id}")


def _changed(path: str) -> OomproofError:
    return OomproofError(f"{path} was changed meanwhile", "look at it, and try again")


def _shown(error: BaseException, done: str) -> BaseException:
    return OomproofError(f"nothing was {done}: {_words(error)}") if isinstance(error, OSError) else error


def _words(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}: {error.filename}"
    return error.message if isinstance(error, OomproofError) else "interrupted"


def _files(fix: Fix) -> list[tuple[int, str, str, str]]:
    files = fix.manifest.get("files")
    if not isinstance(files, list) or not all(
        isinstance(file, dict) and all(isinstance(file.get(key), str) for key in ("path", "before", "after"))
        for file in files
    ):
        raise OomproofError(f"{fix.folder / 'fix.json'} is damaged", f"the files as they were: {fix.folder}")
    return [(number, file["path"], file["before"], file["after"]) for number, file in enumerate(files)]


def _kept_text(backup: Path, expected: str) -> str:
    try:
        data = backup.read_bytes()
    except OSError:
        data = b""
    if sha256_hex(data) != expected:
        raise OomproofError(f"nothing was undone: the backup {backup} is damaged", "undo it by hand")
    return data.decode()


def _new_fix() -> Fix:
    folder = state_files.make_private(state_files.make_private(state_folder()) / "fixes")
    while True:
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise OomproofError(
                f"cannot make a backup in {folder}: {error.strerror}", "free some space there"
            ) from error
        return Fix(path)


def _write_new(path: Path, data: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _hash(text: str) -> str:
    return sha256_hex(text.encode())


def _hash_now(path: str) -> str | None:
    """None where there is no such file; empty where there is something else than a file that we can read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            with open(fd, "rb", closefd=False) as file:
                return sha256_hex(file.read(_LARGEST + 1))
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def _prune() -> None:
    """Backups of changes that are over; one on probation stays."""
    over: Sequence[Fix] = [fix for fix in list_fixes() if fix.state in (CONFIRMED, UNDONE)]
    for fix in over[_KEPT:]:
        shutil.rmtree(fix.folder, ignore_errors=True)
