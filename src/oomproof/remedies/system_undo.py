"""Takes back what `--apply` did, newest first; what somebody changed since is left alone and named.

Works on whatever a killed `--apply` left: each record is undone from what is there, not from what should be.
"""

from __future__ import annotations

import contextlib
import os
import stat

from oomproof.leaf.small_files import sha256_hex
from oomproof.ledger.budget import default_floor
from oomproof.machine import memory, swap
from oomproof.records import dataclass
from oomproof.remedies.system_change import DELEGATION_FILE
from oomproof.remedies.system_files import Run, remove, set_sysctl, sysctl_value, unfinished
from oomproof.remedies.system_manifest import UNIT_FILE, Manifest, Record
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
            done += _take_back(record, manifest, proc, run)
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


def _take_back(record: Record, manifest: Manifest, proc: str, run: Run) -> list[str]:
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
