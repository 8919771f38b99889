"""How runs of one job ended, and what may be said about several endings together: the words, in plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from oomproof.records import dataclass, field

Found = Literal["tied", "excluded", "open"]
Strength = Literal["strong", "fair", "weak"]

STRONG, FAIR = 0.01, 0.05  # the chance of an accident, after counting how many things were tried


@dataclass(frozen=True, slots=True)
class MemoryAtEnd:
    """From a recording: what the job held, what the machine had left, whether it still grew. Bytes."""

    held: int | None = None
    available: int | None = None
    headroom: int | None = None  # to a limit of its own
    rate: float = 0.0  # bytes a second over the last part of the run
    growing: bool | None = None  # None: too short to tell


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run of the job ended. Runs that lived count too: they date when the deaths began."""

    label: str
    cause: str  # a slug of the design; "silent-end": the text just stops
    died: bool = True
    wall: float | None = None  # epoch seconds of the end
    since_boot: float | None = None  # where only the kernel's uptime is known
    device: str | None = None
    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    phase: str = "unknown"
    last_line: str = ""
    uptime: float | None = None
    memory: MemoryAtEnd | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    job: str = ""  # whose death it was, where a log tells of several programs


def moments(endings: Sequence[Ending]) -> list[float]:
    """When they came, oldest first, on one clock; empty unless all of them tell: a gap over one that is missing would
    be too long."""
    for times in ([ending.wall for ending in endings], [ending.since_boot for ending in endings]):
        known = [moment for moment in times if moment is not None]
        if len(known) == len(endings):
            return sorted(known)
    return []


@dataclass(frozen=True, slots=True)
class Statement:
    """``chance``: how often this much agreement comes by accident. For "excluded" the counterexample decides."""

    topic: str
    found: Found
    text: str
    chance: float | None = None
    strength: Strength = "weak"

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "found": self.found,
            "text": self.text,
            "chance": self.chance,
            "strength": self.strength,
        }


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between one death and the next, and what each run got done before it."""

    days: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    batch: int | None = None
    accumulation: int | None = None

    @property
    def samples(self) -> tuple[int, ...]:
        return tuple(step * self.batch for step in self.steps) if self.batch else ()


@dataclass(frozen=True, slots=True)
class Patterns:
    endings: tuple[Ending, ...]  # oldest first
    statements: tuple[Statement, ...] = ()
    changes: tuple[Statement, ...] = ()
    gaps: Gaps = Gaps()
    intervals: Mapping[str, int] = field(default_factory=dict)
    untested: tuple[tuple[str, str], ...] = ()  # (what, why not)
    caution: str = ""
    others: tuple[Ending, ...] = ()  # deaths of other programs in the same logs, oldest first

    @property
    def deaths(self) -> tuple[Ending, ...]:
        return tuple(ending for ending in self.endings if ending.died)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "runs": len(self.endings),
            "deaths": [_ending_json(death) for death in self.deaths],
            "statements": [statement.to_json() for statement in self.statements],
            "changes": [change.to_json() for change in self.changes],
            "gaps": {
                "days": list(self.gaps.days),
                "steps": list(self.gaps.steps),
                "samples": list(self.gaps.samples),
                "batch": self.gaps.batch,
                "accumulation": self.gaps.accumulation,
            },
            "intervals": dict(self.intervals),
            "untested": [{"topic": topic, "reason": reason} for topic, reason in self.untested],
            "caution": self.caution,
            "others": [_ending_json(death) for death in self.others],
        }


def _ending_json(ending: Ending) -> dict[str, Any]:
    memory = ending.memory
    return {
        "label": ending.label,
        "time": ending.wall,
        "job": ending.job,
        "cause": ending.cause,
        "device": ending.device,
        "step": ending.step,
        "total": ending.total,
        "epoch": ending.epoch,
        "phase": ending.phase,
        "uptime": ending.uptime,
        "last_line": ending.last_line,
        "held_bytes": memory.held if memory else None,
        "available_bytes": memory.available if memory else None,
        "growing": memory.growing if memory else None,
    }


def all_deaths(count: int) -> str:
    """As people say it."""
    return "both deaths" if count == 2 else f"all {count} deaths"


def tied(topic: str, text: str, chance: float, tries: int = 1) -> Statement:
    """The more things are tried, the sooner one fits by accident: the chance is counted ``tries`` times."""
    chance = min(1.0, chance * max(1, tries))
    strength: Strength = "strong" if chance < STRONG else "fair" if chance < FAIR else "weak"
    return Statement(topic, "tied" if chance < FAIR else "open", text, chance, strength)


def excluded(topic: str, text: str, against: int, chance: float | None = None) -> Statement:
    """One counterexample refutes "always"; several make it hard to save as "mostly"."""
    return Statement(
        topic, "excluded", text, chance, "strong" if against >= 3 else "fair" if against == 2 else "weak"
    )
