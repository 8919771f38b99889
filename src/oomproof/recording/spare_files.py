"""Where a keeper puts what its run's own disk did not take (full, read-only): the runtime folder, else shared memory.

`started.json` and `exit.json` stand there with the name of the attempt they belong to; readers find them, and the next run
that starts moves them to their place (`runner/leftovers.py`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf import attempt_names
from oomproof.leaf.small_files import is_own_folder, replace_file
from oomproof.recording.state_files import known_folders, read_json, runtime_folder

_MEMORY = Path("/dev/shm")  # where the runtime folder is on the same full disk: no login session, a container
_NAMES = (attempt_names.STARTED, attempt_names.EXIT)


def spare_folders(attempt: Path) -> list[str]:
    """For whoever keeps the attempt: folders of its own, the first that takes a file serves. None of them is made yet."""
    bases = []
    try:
        bases.append(runtime_folder())
    except (OomproofError, OSError):
        pass
    return [str(_of(base, attempt)) for base in (*bases, _shared_memory())]


def read(attempt: Path, name: str) -> dict[str, Any]:
    """What stands there in the place of the attempt's own file; empty where nothing does."""
    for base in _bases():
        value = read_json(_of(base, attempt) / name)
        if value and value.pop(attempt_names.SPARE_OF, None) == str(attempt) and is_own_folder(base):
            return value
    return {}


def bring_home() -> None:
    """Moves what now has space to its place; what belongs to a run that was removed goes."""
    for folder in _kept():
        for name in _NAMES:
            value = read_json(folder / name)
            home = Path(str(value.pop(attempt_names.SPARE_OF, "")))
            if value and home.is_absolute() and home.is_dir():
                try:
                    if not (home / name).exists():
                        replace_file(home / name, json.dumps(value, indent=1).encode(), synced=True)
                except OSError:  # no space yet
                    continue
            _remove(folder / name)
        for empty in (folder, folder.parent):
            try:
                empty.rmdir()
            except OSError:
                break


def _of(base: Path, attempt: Path) -> Path:
    return base / attempt_names.SPARE / attempt.parent.name / attempt.name


def _shared_memory() -> Path:
    return _MEMORY / f"oomproof-{os.getuid()}"


def _bases() -> list[Path]:
    return [*known_folders(), _shared_memory()]


def _kept() -> Iterator[Path]:
    for base in _bases():
        if is_own_folder(base):
            yield from sorted((base / attempt_names.SPARE).glob("*/*/"))


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
