"""The newest checkpoint that a run wrote and that is whole: by the word of the trainer inside, else by what lies in its output folder.

Reads headers only; what a SIGKILL cut in half is recognised by them and passed over."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from oomproof.errors import OomproofError
from oomproof.islands import island_part
from oomproof.leaf.command_lines import output_folder
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import load
from oomproof.records import dataclass

Kind = Literal["trainer", "lightning", "folder", "file"]

_ORDER: tuple[Kind, ...] = ("trainer", "lightning", "folder", "file")  # what is surest to be resumable first
_SAVED = re.compile(r"saved (?P<path>/.+) at step (?:\d+|None)", re.S)
_TRAINER = re.compile(r"checkpoint-(\d{1,12})")
_STEP = re.compile(r"(?:step|iter|checkpoint|epoch)[-_=]?(\d{1,12})", re.I)
# A file that holds only weights, or the best of all, is not where a training stopped.
_NO_RESUME = re.compile(r"best|final|ema|model(?:-\d+-of-\d+)?\.|optimizer|scheduler|scaler|rng|random", re.I)
_WEIGHTS = ("model", "pytorch_model", "adapter_model")
_BY_NAME = re.compile(r"(?i)ckpt|checkpoint|snapshot")  # a plain loop's file beside the script
# by default, where the trainers of our tests write
_FOLDERS = ("lightning_logs", "checkpoints", "ckpts", "trainer_output", "tmp_trainer")
_FILES = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")
_DEEPEST, _MOST = 5, 20_000  # folders, entries: an output folder may hold a data set too
_EARLIER = 2.0  # seconds: file systems round times
_AT_DEATH = 1.0  # seconds before it in which a folder without a last file may be half written


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: str
    kind: Kind
    step: int | None
    wall: float  # when it was written


@dataclass(frozen=True, slots=True)
class Found:
    """``cut``: newer ones that are not whole."""

    newest: Checkpoint | None = None
    cut: tuple[str, ...] = ()


def newest_checkpoint(
    attempts: Sequence[Attempt],
    argv: Sequence[str],
    folder: str,
    since: float,
    died: float | None = None,
    saving_since: float | None = None,
    until: float = float("inf"),
) -> Found:
    """Of one run. ``since``: its start, ``died``: its end, ``saving_since``: when it began to save, if it died in that; wall seconds.
    ``until``: what is newer was written by a later run in the same folder."""
    told = {checkpoint.path: checkpoint for path in _told(attempts) for checkpoint in _below(Path(path))}
    candidates = {
        checkpoint.path: checkpoint for path in _places(argv, folder) for checkpoint in _below(Path(path))
    }
    # what the run itself told it wrote is its own also where the clock was set back since
    written = [*told.values()] + [
        checkpoint
        for checkpoint in candidates.values()
        if checkpoint.path not in told and since - _EARLIER <= checkpoint.wall <= until
    ]
    cut: list[str] = []
    for kind in _ORDER:
        of_kind = [checkpoint for checkpoint in written if checkpoint.kind == kind]
        for checkpoint in sorted(of_kind, key=_newest_first, reverse=True):
            if _is_whole(checkpoint, died, saving_since):
                return Found(checkpoint, tuple(cut))
            cut.append(checkpoint.path)
    return Found(None, tuple(cut))


def _newest_first(checkpoint: Checkpoint) -> tuple[float, int]:
    return checkpoint.wall, checkpoint.step or 0


def _told(attempts: Sequence[Attempt]) -> Iterator[str]:
    """By the trainer inside the job, when it had written one."""
    for attempt in attempts:
        try:
            with attempt.recording().series() as series:
                events = series.events("saved")
        except Exception:  # a damaged recording: the folders still tell
            continue
        for event in events:
            if match := _SAVED.fullmatch(event.text):
                yield match["path"]


def _places(argv: Sequence[str], folder: str) -> list[str]:
    named = output_folder(argv, folder)
    if named is not None:
        return [named]
    try:
        beside = sorted(name for name in os.listdir(folder) if _BY_NAME.search(name))
    except OSError:
        beside = []
    files = [name for name in beside if name.endswith(_FILES)]
    return [os.path.join(folder, name) for name in (*_FOLDERS, *files)]


def _below(path: Path, depth: int = 0, left: list[int] | None = None) -> Iterator[Checkpoint]:
    """The path itself, or what is in it. Links are not followed."""
    left = [_MOST] if left is None else left
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return
    if stat.S_ISREG(status.st_mode):
        if (kind := _kind_of_file(path)) is not None:
            yield Checkpoint(str(path), kind, _step(path.name), status.st_mtime)
        return
    if not stat.S_ISDIR(status.st_mode):
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    left[0] -= len(names)
    if (kind := _kind_of_folder(path, names)) is not None:
        yield Checkpoint(str(path), kind, _step(path.name), _newest(path))
        return
    if depth < _DEEPEST and left[0] > 0:
        for name in names:
            if not name.startswith("."):
                yield from _below(path / name, depth + 1, left)


def _kind_of_file(path: Path) -> Kind | None:
    if path.suffix == ".ckpt":
        return "lightning"
    return "file" if path.suffix in _FILES and not _NO_RESUME.search(path.name) else None


def _kind_of_folder(path: Path, names: Sequence[str]) -> Kind | None:
    if _TRAINER.fullmatch(path.name) and any(
        _is_weights(name) or name == "trainer_state.json" for name in names
    ):
        return "trainer"
    if path.suffix == ".ckpt":
        return "lightning"
    # accelerate's save_state, torch's distributed checkpoints
    state = any(name.startswith(("optimizer", "random_states", "scheduler")) for name in names)
    return "folder" if ".metadata" in names or (state and any(map(_is_weights, names))) else None


def _is_weights(name: str) -> bool:
    return name.startswith((*_WEIGHTS, "global_step")) and (
        name.endswith(_FILES) or "." not in name or ".index." in name
    )


def _step(name: str) -> int | None:
    match = _STEP.search(name)
    return int(match[1]) if match else None


def _newest(folder: Path) -> float:
    """When the last of its files was written."""
    times = [0.0]
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                times.append(os.lstat(os.path.join(base, name)).st_mtime)
            except OSError:
                continue
    return max(times)


def _is_whole(checkpoint: Checkpoint, died: float | None, saving_since: float | None) -> bool:
    path = Path(checkpoint.path)
    if path.is_file():
        return _file_is_whole(path)
    if checkpoint.kind == "trainer":
        if not _trainer_finished(path):
            return False
    elif not (path / ".metadata").exists():  # torch writes that one last
        begun = saving_since if saving_since is not None else (died - _AT_DEATH if died is not None else None)
        if begun is not None and checkpoint.wall >= begun - 0.01:
            return False
    files = [Path(base, name) for base, _, names in os.walk(path) for name in names]
    indexes = [file for file in files if file.name.endswith(".index.json")]
    return all(map(_file_is_whole, files)) and all(map(_has_all_parts, indexes))


def _trainer_finished(path: Path) -> bool:
    """The Trainer writes its state after weights and optimizer."""
    state, _ = load(path / "trainer_state.json")
    return isinstance(step := state.get("global_step"), int) and str(step) == path.name.rpartition("-")[2]


def _has_all_parts(index: Path) -> bool:
    parts = load(index)[0].get("weight_map")
    return (
        isinstance(parts, dict)
        and bool(parts)
        and all((index.parent / str(name)).is_file() for name in parts.values())
    )


def _file_is_whole(path: Path) -> bool:
    """By its header: a directory at its end, tensors that end where the file does.

    A file with neither counts as whole; without the island that reads headers every file does."""
    if path.suffix not in _FILES:
        return True
    try:
        formats = island_part("sizing", "data.file_formats")
    except OomproofError:
        return True
    try:
        formats.load_cost(str(path))
    except formats.UnknownZip:
        return True
    except OomproofError:
        return False
    return True
