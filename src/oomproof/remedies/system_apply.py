"""Does the steps of a plan and takes them back. Each is written down before it is done; after a failure the earlier ones are undone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from oomproof.errors import OomproofError
from oomproof.leaf.small_files import sha256_hex
from oomproof.ledger.budget import default_floor
from oomproof.machine import disk_space, memory, swap
from oomproof.records import dataclass
from oomproof.remedies import system_manifest
from oomproof.remedies.system_facts import (
    DELEGATION_FILE,
    DELEGATION_TEXT,
    HEAD,
    SWAP_FILE,
    SWAP_UNIT,
    SYSCTL_FILE,
    Change,
    Delegate,
    SwapFile,
    Sysctl,
)
from oomproof.remedies.system_manifest import (
    UNIT_FILE,
    UNIT_LINK,
    Manifest,
    Record,
    Run,
    put_new_file,
    remove,
    run_command,
    set_sysctl,
    sysctl_value,
    unfinished,
)
from oomproof.remedies.system_plan import DISK_KEPT
from oomproof.units import format_size


@dataclass(frozen=True, slots=True)
class Undone:
    """A sentence each."""

    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def undo(manifest: Manifest, proc: str, run: Run) -> Undone:
    """Change by change: one that others touched stays as a whole, and stays in the manifest."""
    done: list[str] = []
    refused: list[str] = []
    for change in reversed(manifest.changes):
        records = [record for record in manifest.records if record["change"] == change]
        problems = [problem for record in records if (problem := _problem(record, manifest, proc))]
        if problems:
            refused += [f"{change}: {problem}" for problem in problems]
            continue
        for record in reversed(records):
            done += _take_back_all(record, manifest, proc, run)
            manifest.remove(record)
        if any(record.get("path") in (UNIT_FILE, DELEGATION_FILE) for record in records):
            run(("systemctl", "daemon-reload"))
    if not manifest.records:
        manifest.end()
    return Undone(tuple(done), tuple(refused))


# --- may it be undone? --------------------------------------------------------------------------------------


def _problem(record: Record, manifest: Manifest, proc: str) -> str:
    """Why this one stays; empty: it may go, or is gone already."""
    kind, path = record["kind"], manifest.at(str(record.get("path", "")))
    if kind == "swapon":
        return _swap_in_use(str(record["path"]), proc)
    if kind not in ("file", "link", "swap") or not os.path.lexists(path):
        return ""
    status = os.lstat(path)
    if kind == "link":
        ours = stat.S_ISLNK(status.st_mode) and os.readlink(path) == record["target"]
    elif kind == "swap":
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        # an apply that was killed as it made the file knows no inode yet, or has not filled it
        ours = (
            ours and record.get("inode", status.st_ino) == status.st_ino and status.st_size <= record["size"]
        )
    else:
        ours = stat.S_ISREG(status.st_mode) and _hash(path) == record["sha256"]
    return "" if ours else f"{record['path']} was changed since; remove it by hand, then --undo again"


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return sha256_hex(file.read(1 << 20))
    except OSError:
        return ""


def _swap_in_use(path: str, proc: str) -> str:
    """What is in the swap must come back into RAM, and RAM must not be short then."""
    used = sum(area.used for area in swap.read(proc) if area.path == path)
    now = memory.read(proc)
    spare = now.available - default_floor(now.total)
    if used <= spare:
        return ""
    return (
        f"{path} holds {format_size(used)}, and RAM can take back only {format_size(max(0, spare))} now; "
        "end or wait for a job, then --undo again"
    )


# --- undoing ------------------------------------------------------------------------------------------------


def _take_back_all(record: Record, manifest: Manifest, proc: str, run: Run) -> list[str]:
    """What was done, in words. Each may be half done already."""
    kind, path = record["kind"], manifest.at(str(record.get("path", "")))
    if kind == "sysctl":
        return _restore(record, proc)
    if kind == "folder":
        with contextlib.suppress(OSError):  # others have files there by now, or it was never made
            os.rmdir(path)
        return []
    if kind == "swapon":
        if not any(area.path == record["path"] for area in swap.read(proc)):
            return []
        run(("systemctl", "stop", str(record["unit"])))
        if any(area.path == record["path"] for area in swap.read(proc)):
            run(("swapoff", str(record["path"])))
        return [f"swap {record['path']} is off"]
    remove(unfinished(path))
    if not os.path.lexists(path):
        return []
    remove(path)
    return [f"removed {record['path']}"] if kind != "link" else []


def _restore(record: Record, proc: str) -> list[str]:
    key, before, after = str(record["key"]), int(record["before"]), int(record["after"])
    now = sysctl_value(key, proc)
    if now == before or now is None:
        return []
    if now != after:
        return [f"{key} is {now}, not the {after} of oomproof: left as it is"]
    set_sysctl(key, before, proc)
    return [f"{key} = {before} again"]


SYSCTL = "kernel settings"  # the change that the one file for all of them belongs to


def apply(
    changes: Sequence[Change], root: str = "/", proc: str = "/proc", run: Run = run_command
) -> Manifest:
    """Everything or nothing. Raises OomproofError; what was done before the failure is undone then."""
    refuse_what_is_there(changes, root)
    manifest = Manifest(root)
    try:
        manifest.begin()
    except FileExistsError:
        raise _in_place() from None
    except OSError as error:
        raise OomproofError(
            f"cannot write {manifest.path}: {error.strerror}; nothing was changed", _hint_for(error, ())
        ) from error
    try:
        _do_all(changes, manifest, proc, run)
    except BaseException as error:
        left = _take_back(manifest, proc, run)
        if isinstance(error, OSError):
            name = error.filename or manifest.path
            message = f"cannot write {name}: {error.strerror}"
        elif isinstance(error, OomproofError):
            message = error.message
        else:
            raise
        undone = f"and this could not be undone: {'; '.join(left)}" if left else "nothing was changed"
        raise OomproofError(f"{message}; {undone}", _hint_for(error, left)) from error
    return manifest


def _take_back(manifest: Manifest, proc: str, run: Run) -> tuple[str, ...]:
    """What could not be undone."""
    try:
        return undo(manifest, proc, run).refused
    except (OSError, OomproofError) as error:
        return (str(error),)


def _hint_for(error: BaseException, left: Sequence[str]) -> str:
    if left:
        return "when that is corrected: sudo oomproof system --undo"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EROFS:
        return "this file system is read-only: change these settings where your system keeps them"
    if number == errno.ENOSPC:
        return "free some space, then try again"
    return "what it would do, and the commands by hand: oomproof system"


def refuse_what_is_there(changes: Sequence[Change], root: str = "/") -> None:
    """A file of the same name that is not ours is never replaced."""
    manifest = Manifest(root)
    if system_manifest.is_there(root):
        raise _in_place()
    wanted = []
    for change in changes:
        if isinstance(change.step, Sysctl):
            wanted.append(SYSCTL_FILE)
        elif isinstance(change.step, Delegate):
            wanted.append(DELEGATION_FILE)
        elif isinstance(change.step, SwapFile):
            wanted += [SWAP_FILE, UNIT_FILE, UNIT_LINK]
    for path in dict.fromkeys(wanted):
        if os.path.lexists(manifest.at(path)):
            raise OomproofError(
                f"{path} is there already, and oomproof did not write it",
                f"look at it, and move it away: sudo mv {path} /root/",
            )


def _in_place() -> OomproofError:
    return OomproofError(
        "settings of oomproof are in place already", "take them back first: sudo oomproof system --undo"
    )


def _do_all(changes: Sequence[Change], manifest: Manifest, proc: str, run: Run) -> None:
    settings = [change.step for change in changes if isinstance(change.step, Sysctl)]
    if settings:
        text = HEAD + "".join(f"{setting.key} = {setting.value}\n" for setting in settings)
        _file(manifest, SYSCTL_FILE, text, SYSCTL)
        for setting in settings:
            _sysctl(manifest, setting, proc)
    for change in changes:
        if isinstance(change.step, Delegate):
            _file(manifest, DELEGATION_FILE, DELEGATION_TEXT, change.name)
            run(("systemctl", "daemon-reload"))
        elif isinstance(change.step, SwapFile):
            _swap(manifest, change.step, change.name, proc, run)


def _folder(manifest: Manifest, path: str, change: str) -> None:
    if not os.path.isdir(manifest.at(path)):
        manifest.add({"kind": "folder", "path": path, "change": change})
        os.mkdir(manifest.at(path), 0o755)


def _file(manifest: Manifest, path: str, text: str, change: str) -> None:
    _folder(manifest, os.path.dirname(path), change)
    data = text.encode()
    manifest.add({"kind": "file", "path": path, "sha256": sha256_hex(data), "change": change})
    put_new_file(manifest.at(path), data)


def _sysctl(manifest: Manifest, setting: Sysctl, proc: str) -> None:
    before = sysctl_value(setting.key, proc)
    if before is None:
        raise OomproofError(f"{setting.key} cannot be read")
    record = {"kind": "sysctl", "key": setting.key, "before": before, "after": setting.value}
    manifest.add({**record, "change": SYSCTL})
    set_sysctl(setting.key, setting.value, proc)


def _swap(manifest: Manifest, wanted: SwapFile, change: str, proc: str, run: Run) -> None:
    path = manifest.at(SWAP_FILE)
    _refuse_full_disk(wanted.size, os.path.dirname(path))
    record = manifest.add({"kind": "swap", "path": SWAP_FILE, "size": wanted.size, "change": change})
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        record["inode"] = os.fstat(fd).st_ino
        manifest.save()
        os.posix_fallocate(fd, 0, wanted.size)  # blocks, not a hole: the kernel refuses to swap into one
        os.fsync(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, SWAP_FILE) from error
    finally:
        os.close(fd)
    run(("mkswap", "-q", path))
    _file(manifest, UNIT_FILE, wanted.unit_text, change)
    _folder(manifest, os.path.dirname(UNIT_LINK), change)
    manifest.add({"kind": "link", "path": UNIT_LINK, "target": f"../{SWAP_UNIT}", "change": change})
    os.symlink(f"../{SWAP_UNIT}", manifest.at(UNIT_LINK))
    run(("systemctl", "daemon-reload"))
    manifest.add({"kind": "swapon", "path": SWAP_FILE, "unit": SWAP_UNIT, "change": change})
    run(("systemctl", "start", SWAP_UNIT))
    if not any(area.path == SWAP_FILE for area in swap.read(proc)):
        raise OomproofError(f"{SWAP_UNIT} was started, and {SWAP_FILE} is not in use")


def _refuse_full_disk(size: int, folder: str) -> None:
    """Looked at again: there may have been an hour between the plan and the yes."""
    disk = disk_space.read(folder)
    if disk is not None and disk.free - size < disk.total * DISK_KEPT // 100:
        raise OomproofError(
            f"a swap file of {format_size(size)} would leave less than {DISK_KEPT} % of the disk free "
            f"({format_size(disk.free)} of {format_size(disk.total)} free now)"
        )
