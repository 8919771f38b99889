"""Kills that outlive the rotation of logs and reboots: a line each in a file beside the runs; the system's guard has its own.

`oomproof guard` keeps them, by `oomproof runs kills --keep`; `why --system` and `runs kills` read them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from oomproof.evidence.texts.finding import KernelFacts, TaskJob
from oomproof.leaf.small_files import append
from oomproof.recording.state_files import make_private, state_folder
from oomproof.records import dataclass, replace

Certainty = Literal["proven", "likely", "possible"]


@dataclass(frozen=True, slots=True)
class SystemKill:
    """``held`` is what the victim had of its own, in bytes: never address space."""

    wall: float | None
    cause: str
    pid: int | None
    name: str | None
    held: int | None
    certainty: Certainty
    source: str
    text: str
    cgroup: str | None = None
    limit: int | None = None
    run: str | None = None  # the id of the run of ours it belonged to
    run_name: str | None = None
    facts: KernelFacts = KernelFacts()  # who held what, and the machine, where the kernel's report has them

    @property
    def job(self) -> TaskJob | None:
        return self.facts.job_of(self.pid)

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.wall,
            "cause": self.cause,
            "victim": {"pid": self.pid, "name": self.name},
            "held_bytes": self.held,
            "certainty": self.certainty,
            "ours": self.run is not None,
            "run": self.run,
            "run_name": self.run_name,
            "cgroup": self.cgroup,
            "limit_bytes": self.limit,
            "source": self.source,
            "text": self.text,
            "jobs": [
                {
                    "name": job.name,
                    "uid": job.uid,
                    "pids": list(job.pids),
                    "ram_bytes": job.ram,
                    "swap_bytes": job.swap,
                    "victim": self.pid in job.pids,
                }
                for job in self.facts.jobs
            ],
            "machine": {
                "ram_bytes": self.facts.machine.ram,
                "free_bytes": self.facts.machine.free,
                "swap_total_bytes": self.facts.machine.swap_total,
                "swap_free_bytes": self.facts.machine.swap_free,
            },
            "asked_by": self.facts.asked_by,
            "asked_bytes": self.facts.asked,
        }


# root's, readable by all: command names and sizes, no arguments
SYSTEM_FILE = Path("/var/lib/oomproof/kills.jsonl")
_NAME = "kills.jsonl"
_DRIFT = 120.0  # seconds
_MOST = 10_000  # lines that are read: more is somebody's mistake
_STRINGS, _WHOLE = ("cause", "name", "source", "text", "cgroup", "run", "run_name"), ("pid", "held", "limit")


def own_file() -> Path:
    return state_folder() / _NAME


def stored_kills(paths: Iterable[Path] | None = None) -> list[SystemKill]:
    """Of this user's file and of the system's; what is damaged is left out."""
    kills: list[SystemKill] = []
    for path in (own_file(), SYSTEM_FILE) if paths is None else paths:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_MOST:]
        except OSError:
            continue
        kills += [kill for line in lines if (kill := _parse(line)) is not None]
    return kills


def keep(kills: Sequence[SystemKill], system: bool = False, path: Path | None = None) -> int:
    """Adds those that are not in the file yet and have a time; how many."""
    path = path or (SYSTEM_FILE if system else own_file())
    there = stored_kills([path])
    new = [kill for kill in kills if kill.wall is not None and kill.cause != "stopped-by-guard"]
    new = [kill for kill in new if not any(_same(kill, other) for other in there)]
    if not new:
        return 0
    if system:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    else:
        make_private(path.parent)
    added = sum(append(path, json.dumps(_line(kill)).encode() + b"\n") for kill in new)
    if system:
        os.chmod(path, 0o644)
    return added


def last_time(system: bool = False) -> float:
    """Of the newest that is kept; 0.0 where none is."""
    return max(
        (kill.wall or 0.0 for kill in stored_kills([SYSTEM_FILE if system else own_file()])), default=0.0
    )


def _same(kill: SystemKill, other: SystemKill) -> bool:
    """A wall time is a time since boot and a clock: the same kill may be told some seconds later."""
    near = abs((kill.wall or 0.0) - (other.wall or 0.0)) <= _DRIFT
    return near and (kill.pid, kill.name) == (other.pid, other.name)


def _line(kill: SystemKill) -> dict[str, Any]:
    names = ("wall", "certainty", *_STRINGS, *_WHOLE)
    return {"schema": 1, **{name: getattr(kill, name) for name in names}}


def _parse(line: str) -> SystemKill | None:
    try:
        values = json.loads(line)
        wall, certainty = float(values["wall"]), values["certainty"]
        if certainty not in get_args(Certainty) or not isinstance(values["cause"], str):
            return None
        strings = {name: values.get(name) for name in _STRINGS}
        whole = {name: values.get(name) for name in _WHOLE}
        if not all(isinstance(value, str | None) for value in strings.values()):
            return None
        if not all(isinstance(value, int | None) for value in whole.values()):
            return None
        kill = SystemKill(wall=wall, certainty=certainty, **strings, **whole)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return replace(kill, source=kill.source or _NAME, text=kill.text or "")
