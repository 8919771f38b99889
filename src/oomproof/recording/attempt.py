"""One attempt of a run on disk (``RUN/1/``, ``RUN/2/``): its files, and how each is read.

What another part keeps about an attempt goes into a folder of its own, ``attempt.extra("name")``: no reader of ours touches
it, `runs prune` removes it with the run, and the bundle packs its texts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from oomproof.leaf import attempt_names
from oomproof.recording import json_shapes
from oomproof.recording.state_files import append_line, load, read_json, read_lines, read_small
from oomproof.records import dataclass

if TYPE_CHECKING:
    from oomproof.recording.reader import Recording

SAVE_TEXT = "oomproof asks this job to save and continue"


class _Folder(Protocol):
    @property
    def folder(self) -> Path: ...


class FileIn:
    """An attribute of whoever has a ``folder``: the path of that name in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> FileIn: ...
    @overload
    def __get__(self, owner: _Folder, kind: type) -> Path: ...
    def __get__(self, owner: _Folder | None, kind: type) -> FileIn | Path:
        return self if owner is None else owner.folder / self.name


@dataclass(frozen=True)
class Attempt:
    """Everything is read when asked for: an attempt of now changes under us."""

    folder: Path

    # of a second and later one: what differs from run.json; its own command
    info_file = FileIn("attempt.json")
    recording_file = FileIn("recording.sqlite")
    started_file = FileIn(attempt_names.STARTED)
    verdict_file = FileIn("verdict.json")  # by whoever judged its end
    summary_file = FileIn("summary.json")  # a cache of the history's line
    actions_file = FileIn("actions.jsonl")  # what the guard or the user did to the job
    keeper_events_file = FileIn(attempt_names.KEEPER_EVENTS)
    keeper_errors_file = FileIn(attempt_names.KEEPER_ERRORS)
    alerts_file = FileIn("memory_alerts.log")
    output_file = FileIn(attempt_names.OUTPUT)
    output_before_file = FileIn(attempt_names.OUTPUT_BEFORE)
    output_first_file = FileIn(attempt_names.OUTPUT_FIRST)
    paused_file = FileIn(attempt_names.PAUSED)
    gpu_paused_file = FileIn(attempt_names.GPU_PAUSED)
    stop_file = FileIn("stop")  # there when the job is asked to save and stop
    save_file = FileIn("save")  # ... to save and continue
    agent_folder = FileIn("agent")  # what the agent inside the job wrote
    exit_json_file = FileIn(attempt_names.EXIT)
    reserved_exit_file = FileIn(attempt_names.RESERVED_EXIT)

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    __str__ = __fspath__

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    @property
    def number(self) -> int | None:
        name = self.folder.name
        return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None

    @property
    def run_folder(self) -> Path:
        return self.folder.parent

    @property
    def exit_file(self) -> Path:
        """Where that name could not be had (a folder made read-only), the file the keeper had reserved for it."""
        return self.reserved_exit_file if read_json(self.reserved_exit_file) else self.exit_json_file

    @property
    def outputs(self) -> tuple[Path, Path, Path]:
        """The parts of what it printed, oldest first; one that is not there was not needed."""
        return self.output_first_file, self.output_before_file, self.output_file

    def extra(self, name: str) -> Path:
        """The folder of another part; whoever writes makes it."""
        return self.folder / "extra" / name

    def own_info(self) -> dict[str, Any]:
        """What differs from run.json; empty for the first."""
        if (self.number or 1) == 1:
            return {}
        return json_shapes.shaped(read_json(self.info_file), json_shapes.RUN)

    def was_begun(self) -> bool:
        """Whether a job was started in it; also when one of its files is lost."""
        return any(
            os.path.exists(path) for path in (self.started_file, self.exit_json_file, self.recording_file)
        ) or bool(self._spare(self.started_file))

    def started(self) -> dict[str, Any]:
        return json_shapes.shaped(self.load_started()[0], json_shapes.STARTED)

    def exit(self) -> dict[str, Any]:
        return json_shapes.shaped(self.load_exit()[0], json_shapes.EXIT)

    def load_started(self) -> tuple[dict[str, Any], str | None]:
        """As it was written, and why it is empty if it is."""
        value, why_not = load(self.started_file)
        spare = {} if value else self._spare(self.started_file)
        return (spare, None) if spare else (value, why_not)

    def load_exit(self) -> tuple[dict[str, Any], str | None]:
        value, why_not = load(self.exit_file)
        spare = {} if value else self._spare(self.exit_json_file)
        return (spare, None) if spare else (value, why_not)

    def _spare(self, file: Path) -> dict[str, Any]:
        """The same file where the keeper put it when the disk took no more; another run may be moving it home just now."""
        from oomproof.recording import spare_files  # which knows the runs' folder, and that the attempts

        return spare_files.read(self.folder, file.name) or read_json(file)

    def has_ended(self) -> bool:
        """Also when what its keeper wrote cannot be read any more."""
        return bool(self.exit()) or self.exit_json_file.exists()

    def verdict(self) -> dict[str, Any]:
        """As it was stored; empty when nobody has judged."""
        return read_json(self.verdict_file)

    def actions(self) -> list[dict[str, Any]]:
        return read_lines(self.actions_file)

    def keeper_events(self) -> list[dict[str, Any]]:
        return read_lines(self.keeper_events_file)

    def add_action(self, action: dict[str, object]) -> bool:
        """False when it could not be written."""
        return append_line(self.actions_file, action)

    def pause_mark(self) -> dict[str, Any]:
        """Who paused the job, since when, until when; empty when nobody did."""
        return json_shapes.shaped(read_json(self.paused_file), json_shapes.MARK)

    # --- requests that somebody inside the job answers ---

    def listeners(self, what: str, proc: str = "/proc") -> list[str]:
        """Who in the living job answers this kind of request ("save", "stop"): "the Hugging Face Trainer", …"""
        listening = []
        for path in sorted(self.agent_folder.glob(f"*-{attempt_names.LISTENS}")):
            try:
                kinds, by = read_small(path).decode("utf-8", "replace").split("\n")[:2]
            except (OSError, ValueError):
                continue
            if what in kinds.split() and os.path.exists(f"{proc}/{path.name.split('-')[0]}"):
                listening.append(by)
        return list(dict.fromkeys(listening))

    def is_begun(self, what: str) -> bool:
        """Whether somebody in the job has begun to act on this kind of request."""
        return any((self.agent_folder / f"{what}.{mark}").exists() for mark in ("at", "taken"))

    def ask_to_release(self) -> None:
        """Each process of the job that has a card gives back, at the end of its step, what PyTorch keeps there unused, unless
        it was started with ``--release never``. A new request has another time."""
        path = self.agent_folder / attempt_names.RELEASE_REQUEST
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        now = time.time_ns()  # finer than the clock of the file system: two requests are never one
        os.utime(path, ns=(now, now))

    def ask_to_save(self, why: str) -> None:
        """The file is removed by the process that saved. If it exists already, the last request is still unanswered."""
        if not self.save_file.exists():
            with open(os.open(self.save_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(f"{SAVE_TEXT}: {why}\n".encode("utf-8", "replace"))

    def recording(self) -> Recording:
        from oomproof.recording.reader import open_recording  # sqlite3: only for whoever reads one

        return open_recording(self.recording_file, self.agent_folder)

    def damage(self) -> list[str]:
        """The names of those of its files that cannot be read, or hold what does not belong there."""
        files = (
            (self.started_file, json_shapes.STARTED),
            (self.exit_json_file, json_shapes.EXIT),
            (self.info_file, json_shapes.RUN),
        )
        return [path.name for path, shape in files if is_damaged(path, shape)]


def is_damaged(path: Path, shape: json_shapes.Shape) -> bool:
    value = read_json(path)
    return (not value and path.exists()) or bool(json_shapes.wrong(value, shape))
