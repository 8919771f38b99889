"""What `--apply` did, step by step, in /var/lib/oomproof/system.json: written before each step, so that a kill in between can be undone.

A record is a dict: ``kind``, ``change`` (which of the changes it belongs to) and what the kind needs:

    folder  path                    made by us; removed when empty
    file    path sha256
    link    path target
    sysctl  key before after
    swap    path size inode         the file; inode once it exists
    swapon  path unit
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.proc_files import read_text
from oomproof.leaf.small_files import replace_file, write_all
from oomproof.records import dataclass, field
from oomproof.remedies.system_facts import (
    DELEGATION_FILE,
    SWAP_FILE,
    SWAP_UNIT,
    SYSCTL_FILE,
    UNIT_FOLDER,
)

Run = Callable[[Sequence[str]], None]


def run_command(argv: Sequence[str]) -> None:
    """Raises with what the program said."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise OomproofError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise OomproofError(f"{' '.join(argv)} failed: {said[0] if said else f'exit code {done.returncode}'}")


def unfinished(path: str) -> str:
    """What a file is called until it is whole; undo looks for it too."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.oomproof-new")


def put_new_file(path: str, data: bytes) -> None:
    """Whole or not at all, and never over another file: a link to a name that exists is refused."""
    temporary = unfinished(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        write_all(fd, data)
        os.fsync(fd)
        os.link(temporary, path)
    finally:
        os.close(fd)
        os.unlink(temporary)


def remove(path: str) -> None:
    if os.path.lexists(path):  # asked first: a read-only file system refuses to remove even what is not there
        os.unlink(path)


def sysctl_value(key: str, proc: str) -> int | None:
    text = read_text(_sysctl_path(key, proc)).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def set_sysctl(key: str, value: int, proc: str) -> None:
    with open(_sysctl_path(key, proc), "w") as file:
        file.write(f"{value}\n")
    if (now := sysctl_value(key, proc)) != value:
        raise OomproofError(f"{key} is {now} although {value} was written")


def _sysctl_path(key: str, proc: str) -> str:
    return f"{proc}/sys/{key.replace('.', '/')}"


SCHEMA = 1
PATH = "/var/lib/oomproof/system.json"
WANTS = f"{UNIT_FOLDER}/swap.target.wants"
UNIT_FILE, UNIT_LINK = f"{UNIT_FOLDER}/{SWAP_UNIT}", f"{WANTS}/{SWAP_UNIT}"
_FOLDERS = {os.path.dirname(path) for path in (SYSCTL_FILE, DELEGATION_FILE, UNIT_FILE, UNIT_LINK)}
# what may stand in a manifest: whatever else it says was not written by us
_KINDS: dict[str, dict[str, Any]] = {
    "folder": {"path": _FOLDERS},
    "file": {"path": {SYSCTL_FILE, DELEGATION_FILE, UNIT_FILE}, "sha256": str},
    "link": {"path": {UNIT_LINK}, "target": {f"../{SWAP_UNIT}"}},
    "sysctl": {
        "key": {"vm.swappiness", "vm.overcommit_memory", "vm.oom_kill_allocating_task", "kernel.sysrq"},
        "before": int,
        "after": int,
    },
    "swap": {"path": {SWAP_FILE}, "size": int},
    "swapon": {"path": {SWAP_FILE}, "unit": {SWAP_UNIT}},
}
Record = dict[str, Any]


@dataclass
class Manifest:
    """``root``: where /etc, /var and / are, another folder in the tests."""

    root: str = "/"
    records: list[Record] = field(default_factory=list)
    made: float = 0.0
    made_folder: bool = False

    @property
    def path(self) -> str:
        return self.at(PATH)

    def at(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    @property
    def changes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(record["change"]) for record in self.records))

    def begin(self) -> None:
        """Before the first step. FileExistsError: another `--apply` was first."""
        folder = os.path.dirname(self.path)
        self.made, self.made_folder = time.time(), not os.path.isdir(folder)
        os.makedirs(folder, 0o755, exist_ok=True)
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self.save()
        except OSError as error:
            if not isinstance(error, FileExistsError):
                self.end()  # nothing was done yet
            raise

    def add(self, record: Record) -> Record:
        """Before its step is done."""
        self.records.append(record)
        self.save()
        return record

    def remove(self, record: Record) -> None:
        """After it was undone."""
        self.records.remove(record)
        self.save()

    def end(self) -> None:
        """Nothing is left to undo."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self.made_folder:
            with contextlib.suppress(OSError):  # others have files there by now
                os.rmdir(os.path.dirname(self.path))

    def save(self) -> None:
        value = {
            "schema": SCHEMA,
            "made": self.made,
            "made_folder": self.made_folder,
            "records": self.records,
        }
        replace_file(self.path, json.dumps(value, indent=1).encode() + b"\n", synced=True)


def load(root: str = "/") -> Manifest | None:
    """None where nothing was applied. Raises for one that is not ours: it says what root will remove."""
    manifest = Manifest(root)
    try:
        fd = os.open(manifest.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_ours(manifest.path, error.strerror or "not readable") from error
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise _not_ours(manifest.path, "another user may write it")
        text = file.read(1 << 20)
        if not text:  # killed before the first record
            return manifest
        try:
            value = json.loads(text)
            records = value["records"]
            manifest.made, manifest.made_folder = float(value["made"]), value["made_folder"] is True
            if value["schema"] != SCHEMA or not all(_is_known(record) for record in records):
                raise ValueError("it says what we never write")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _not_ours(manifest.path, "it is damaged, or of another version") from error
    manifest.records = records
    return manifest


def is_there(root: str = "/") -> bool:
    return os.path.lexists(Manifest(root).path)


def _is_known(record: Record) -> bool:
    shape = _KINDS.get(record["kind"], {})
    return (
        bool(shape)
        and isinstance(record["change"], str)
        and all(
            record[name] in values if isinstance(values, set) else type(record[name]) is values
            for name, values in shape.items()
        )
    )


def _not_ours(path: str, why: str) -> OomproofError:
    return OomproofError(f"cannot use {path}: {why}", "look at it; nothing was changed")
