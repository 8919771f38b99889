"""Does a plan's steps, each written down before it is done; a step that fails takes back what was done before it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from oomproof.errors import OomproofError
from oomproof.leaf.small_files import sha256_hex
from oomproof.machine import disk_space, swap
from oomproof.remedies import system_manifest
from oomproof.remedies.system_change import (
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
from oomproof.remedies.system_files import Run, put_new_file, run_command, set_sysctl, sysctl_value
from oomproof.remedies.system_manifest import UNIT_FILE, UNIT_LINK, Manifest
from oomproof.remedies.system_plan import DISK_KEPT
from oomproof.remedies.system_undo import undo
from oomproof.units import format_size

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
