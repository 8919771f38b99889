"""Applied changes on disk: what each file was before, what it became, and how the change fares."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.small_files import write_all
from oomproof.recording import state_files
from oomproof.recording.run_folders import fixes_folder, state_folder
from oomproof.records import dataclass

SCHEMA = 1
PROBATION, CONFIRMED, OFFERED, UNDONE, BEGUN = "probation", "confirmed", "offered for undo", "undone", "begun"
_KEPT = 50  # of the newest that are over
_LARGEST = 1 << 20


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


def apply(texts: Mapping[str, tuple[str, str]], about: Mapping[str, Any]) -> Fix:
    """``texts``: (before, after) by path. All of them, or none: what was written is put back when one fails. The manifest and the backups
    are on disk before the first file changes. Raises OomproofError."""
    fix = _new_fix()
    files: list[dict[str, Any]] = []
    written: list[str] = []
    try:
        for path, (before, after) in texts.items():
            written_at = os.stat(path).st_mtime_ns
            files.append(
                {"path": path, "before": _hash(before), "after": _hash(after), "time_ns": written_at}
            )
        for number, (before, _) in enumerate(texts.values()):
            _write_new(fix.backup(number), before.encode())
        state_files.write_json(
            fix.folder / "fix.json",
            {"schema": SCHEMA, **about, "applied": time.time(), "state": BEGUN, "files": files},
        )
        for path, (before, after) in texts.items():
            replace_text(path, _hash(before), after)
            written.append(path)
        fix.note(state=PROBATION)
    except (OSError, OomproofError) as error:
        for path in written:
            with contextlib.suppress(OSError, OomproofError):
                replace_text(path, _hash(texts[path][1]), texts[path][0])
        shutil.rmtree(fix.folder, ignore_errors=True)
        if isinstance(error, OomproofError):
            raise
        raise OomproofError(f"nothing was changed: {error.strerror}: {error.filename}") from error
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
    kept = {number: _kept_text(fix.backup(number), before) for number, _, before, _ in files}
    times = {file["path"]: file.get("time_ns") for file in fix.manifest["files"]}
    for number, path, _, after in files:
        if now[path] == after:
            replace_text(path, after, kept[number], times.get(path))
    fix.note(state=UNDONE)
    return list(now)


def replace_text(path: str, expected: str, text: str, time_ns: int | None = None) -> None:
    """Atomically, with mode and owner as they were; only where the file still is what was read. ``time_ns``: when it shall have been
    written. Raises OomproofError or OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or hashlib.sha256(file.read()).hexdigest() != expected:
            raise OomproofError(f"{path} was changed meanwhile", "look at it, and try again")
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.oomproof-{os.getpid()}")
    made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(made, text.encode())
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(made, status.st_uid, status.st_gid)
            os.fchmod(made, stat.S_IMODE(status.st_mode))
            if isinstance(time_ns, int):
                os.utime(made, ns=(time_ns, time_ns))
            os.fsync(made)
        finally:
            os.close(made)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
    if hashlib.sha256(data).hexdigest() != expected:
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
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_now(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(_LARGEST + 1)).hexdigest()
    except OSError:
        return None


def _prune() -> None:
    """Backups of changes that are over; one on probation stays."""
    over: Sequence[Fix] = [fix for fix in list_fixes() if fix.state in (CONFIRMED, UNDONE)]
    for fix in over[_KEPT:]:
        shutil.rmtree(fix.folder, ignore_errors=True)
