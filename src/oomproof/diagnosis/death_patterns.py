"""What several deaths of one job have in common, and what that rules out. Pure functions of plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from oomproof.evidence import run_settings
from oomproof.records import dataclass, field
from oomproof.units import format_duration, format_size, format_span

_SURE = 0.05  # agreement that comes by accident more often than this is left open
_AMPLE = 0.1  # of the memory held: with more than this available, the machine was not full
_NAMES = {
    "accumulation": "optimizer steps",
    "eval": "evaluations",
    "save": "checkpoints",
    "epoch": "epoch ends",
}
_CODE = {"script_sha256": "the script", "git_commit": "the commit", "git_diff_sha256": "uncommitted changes"}


@dataclass(frozen=True, slots=True)
class MemoryAtEnd:
    """The last samples before a death, in bytes: the job's memory, what the machine had left, whether the job grew."""

    held: int | None = None
    available: int | None = None
    headroom: int | None = None  # to a limit of its own
    rate: float = 0.0  # bytes a second over the last part of the run
    growing: bool | None = None  # None: the recording is too short to say


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run of the job ended. Runs that finished are kept too: they date the first death."""

    label: str
    cause: str  # a slug of causes.py; "silent-end": the text just stops
    died: bool = True
    wall: float | None = None  # epoch seconds of the end
    since_boot: float | None = None  # set where only the kernel's uptime is known
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
    job: str = ""  # the program that died, where a log covers several programs

    def to_json(self) -> dict[str, Any]:
        memory = self.memory or MemoryAtEnd()
        plain = ("label", "job", "cause", "device", "step", "total", "epoch", "phase", "uptime", "last_line")
        return {
            **{name: getattr(self, name) for name in plain},
            "time": self.wall,
            "held_bytes": memory.held,
            "available_bytes": memory.available,
            "growing": memory.growing,
        }


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that was compared. ``tied``: the deaths share it. ``excluded``: a counterexample was seen.
    ``chance``: how often this much agreement comes by accident."""

    topic: str
    found: Literal["tied", "excluded", "open"]
    text: str
    chance: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "found": self.found, "text": self.text, "chance": self.chance}


@dataclass(frozen=True, slots=True)
class Patterns:
    endings: tuple[Ending, ...]  # oldest first
    statements: tuple[Statement, ...] = ()
    changes: tuple[Statement, ...] = ()
    caution: str = ""
    others: tuple[Ending, ...] = ()  # deaths of other programs in the same logs, oldest first

    @property
    def deaths(self) -> tuple[Ending, ...]:
        return tuple(ending for ending in self.endings if ending.died)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "runs": len(self.endings),
            "deaths": [death.to_json() for death in self.deaths],
            "statements": [statement.to_json() for statement in self.statements],
            "changes": [change.to_json() for change in self.changes],
            "gaps": {"days": [gap / 86400 for gap in _gaps(self.deaths)]},
            "caution": self.caution,
            "others": [death.to_json() for death in self.others],
        }


def find_patterns(endings: Sequence[Ending]) -> Patterns:
    endings, others = _of_one_job(endings)
    dated = bool(_moments(endings))
    ordered = tuple(sorted(endings, key=_age) if dated else endings)
    deaths = [ending for ending in ordered if ending.died]
    if len(deaths) < 2:
        caution = f"{'only one death' if deaths else 'no death'}: a pattern needs at least two"
        return Patterns(ordered, caution=caution, others=others)
    statements = [*_memory(deaths), *_times(deaths), *_steps(deaths)]
    statements += _words("device", [death.device for death in deaths])
    statements += _words("phase", [None if death.phase == "unknown" else death.phase for death in deaths])
    caution = "" if dated else "not every ending has a date, so they stand in the order given; "
    missed = (2 / 3) ** len(deaths)
    caution += (
        f"a cause behind one death in three shows in none of {len(deaths)} deaths {missed:.0%} of the time"
    )
    order = ("tied", "excluded", "open")
    statements.sort(key=lambda statement: order.index(statement.found))
    return Patterns(ordered, tuple(statements), tuple(_changes(ordered)), caution, others)


def _of_one_job(endings: Sequence[Ending]) -> tuple[list[Ending], tuple[Ending, ...]]:
    """Splits off the endings of other programs. A run's own log comes before a system's log; in a system's log the
    program that died most often is the job, and of equals the one that died last."""
    counts = Counter(ending.job for ending in endings)
    newest = {ending.job: (ending.wall or 0.0, at) for at, ending in enumerate(endings)}
    job = "" if "" in counts else max(counts, key=lambda job: (counts[job], newest[job]), default="")
    others = sorted((ending for ending in endings if ending.job != job), key=_age)
    return [ending for ending in endings if ending.job == job], tuple(others)


def _age(ending: Ending) -> tuple[float, float]:
    return ending.wall or 0.0, ending.since_boot or 0.0


def _moments(endings: Sequence[Ending]) -> list[float]:
    """The times of all endings on one clock, oldest first. Empty where one is missing: a gap over it would be wrong."""
    for times in ([ending.wall for ending in endings], [ending.since_boot for ending in endings]):
        known = [moment for moment in times if moment is not None]
        if len(known) == len(endings):
            return sorted(known)
    return []


def _gaps(deaths: Sequence[Ending]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(_moments(deaths))]


def _shared(topic: str, text: str, chance: float) -> Statement:
    chance = min(1.0, chance)
    text += f" (by accident: {chance:.0%})" if chance >= 0.01 else " (by accident: under 1%)"
    return Statement(topic, "tied" if chance < _SURE else "open", text, chance)


def _within(width: float, count: int) -> float:
    """The chance, at most, that ``count`` points, each anywhere in 0..1, lie within ``width`` of each other."""
    return count * width ** (count - 1)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _alike(values: Sequence[float], spread: float = 0.1) -> bool:
    return len(values) >= 2 and max(values) - min(values) <= spread * _middle(values)


def _span(values: Sequence[float], shown: Callable[[float], str]) -> str:
    return format_span(shown(min(values)), shown(max(values)))


def _memory(deaths: Sequence[Ending]) -> Iterator[Statement]:
    known = [death.memory for death in deaths if death.memory is not None]
    grew = [memory.growing for memory in known if memory.growing is not None]
    held = [memory.held for memory in known if memory.held]
    level = f"one level of memory: {_span(held, format_size)}, as at a limit" if _alike(held) else ""
    if len(grew) >= 2 and not any(grew):
        text = f"not a leak that was still growing: memory was constant at {len(grew)} deaths"
        yield Statement("memory growth", "excluded", text)
    elif len(grew) >= 2:
        rate = format_size(_middle([memory.rate for memory in known if memory.growing]) * 3600)
        text = f"memory was growing at {sum(grew)} of {len(grew)} deaths, by {rate} an hour (median)"
        if level and all(grew):
            level, text = "", f"{text}, to {level}; one step or one time follows from that"
        yield Statement("memory", "tied" if all(grew) else "open", text)
    if level:
        yield Statement("memory level", "open", f"all deaths found the job at {level}")
    elif len(held) >= 2 and not _alike(held):
        text = f"not at one level of memory: it held {_span(held, format_size)}"
        yield Statement("memory level", "excluded", text)
    free = [memory.available for memory in known if memory.available is not None]
    if len(free) >= 2 and len(held) == len(free) and min(free) > _AMPLE * max(held):
        text = f"not a full machine: at least {format_size(min(free))} was available at every death"
        near = (memory.headroom is not None and memory.headroom <= _AMPLE * max(held) for memory in known)
        text += "; but the job's own limit was near" if any(near) else ""
        yield Statement("memory shortage", "excluded", text)


def _times(deaths: Sequence[Ending]) -> Iterator[Statement]:
    lasted = [death.uptime for death in deaths if death.uptime is not None and death.uptime > 0]
    if _alike(lasted):
        text = f"all died after about the same time: {_span(lasted, format_duration)}"
        yield _shared("uptime", text, _within(1 - min(lasted) / max(lasted), len(lasted)))
    elif len(lasted) >= 2:
        text = f"not tied to the time since the start: {_span(lasted, format_duration)}"
        yield Statement("uptime", "excluded", text)
    gaps = _gaps(deaths)
    # runs that are started one after the other die as far apart as each of them lasts
    if len(gaps) < 2 or _middle(gaps) <= 2 * max(lasted, default=0.0):
        return
    if _alike(gaps, 0.3):
        text = f"deaths come at a regular interval, every {_days(_middle(gaps))} ({_span(gaps, _days)} apart)"
        yield _shared("days between", text, _within(1 - min(gaps) / max(gaps), len(gaps)))
    else:
        yield Statement("days between", "open", f"no regular interval: {_span(gaps, _days)} apart")


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_duration(seconds)


def _steps(deaths: Sequence[Ending]) -> Iterator[Statement]:
    steps = sorted(death.step for death in deaths if death.step is not None and death.step > 0)
    if len(steps) < 2:
        return
    low, high = steps[0], steps[-1]
    if high - low <= max(1, high // 50):
        of = max([high, *(death.total for death in deaths if death.total)])
        where = f"step {low}" if low == high else f"steps {low} to {high}"
        chance = _within((high - low + 1) / of, len(steps))
        yield _shared("one step", f"{len(steps)} deaths sit at {where} (of {of} seen)", chance)
    else:
        text = f"not at one step: {_listed(steps)}, spread over {high - low} steps"
        yield Statement("one step", "excluded", text)
    intervals: dict[str, int] = {}
    for death in deaths:
        intervals = {**run_settings.intervals(death.settings), **intervals}
    epochs, totals = {death.epoch for death in deaths}, {death.total for death in deaths}
    if len(totals) == 1 and all(epoch is not None and epoch % 1 == 0 for epoch in epochs):
        # a bar beside an epoch's number counts the batches of that epoch
        intervals["epoch"] = totals.pop() or 0
    every = intervals.pop("log", 0)
    intervals = {kind: interval for kind, interval in intervals.items() if interval > 1}
    for kind, interval in intervals.items():
        # the last step printed may be one behind, or as many as the log leaves out
        before = every if every and all(step % every == 0 for step in steps) else int(interval >= 8)
        counted_anew = len(epochs) > 1 and intervals.get("epoch", 0) % interval != 0
        if not counted_anew:
            yield _multiples(_NAMES[kind], interval, steps, before, len(intervals))


def _multiples(name: str, interval: int, steps: Sequence[int], before: int, tries: int) -> Statement:
    after = int(interval >= 8)
    near = [step for step in steps if -step % interval <= before or step % interval <= after]
    share = min(1.0, (before + 1 + after) / interval)
    # the binomial chance of so many or more by accident, counted for each interval that was tried
    ways = (math.comb(len(steps), k) * share**k * (1 - share) ** (len(steps) - k) for k in range(len(near)))
    chance = max(0.0, 1 - sum(ways)) * tries
    if len(near) == len(steps) or chance < _SURE:
        counted = f"{len(near)} of {len(steps)} deaths"
        text = f"{counted} sit at or next to multiples of {interval}, the {name}: {_listed(near)}"
        unless = "; unless the log prints only then" if math.gcd(*steps) % interval == 0 else ""
        return _shared(name, text + unless, chance)
    off = [step for step in steps if step not in near]
    words = "is no multiple" if len(off) == 1 else "are no multiples"
    text = f"not tied to {name}: {_listed(off)} {words} of {interval}"
    return Statement(name, "excluded", text + (f"; at or next to one: {_listed(near)}" if near else ""))


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(steps)))


def _words(topic: str, values: Sequence[str | None]) -> Iterator[Statement]:
    counts = Counter(value for value in values if value is not None)
    listed = ", ".join(f"{value} {count}" for value, count in counts.most_common())
    if len(counts) > 1:
        yield Statement(topic, "excluded", f"not tied to one {topic}: {listed}")
    elif counts.total() > 1:  # runs that lived are not compared: the job may know no other device or phase
        yield Statement(topic, "open", f"one {topic}: {listed}")


def _changes(endings: Sequence[Ending]) -> Iterator[Statement]:
    """One statement for each place in the row of runs where settings or code took a value that no earlier run had."""
    given = [
        {**run.settings, **{_CODE[key]: value[:9] for key, value in run.code.items() if key in _CODE}}
        for run in endings
    ]
    for at in range(1, len(endings)):
        old, new = given[at - 1], given[at]
        changed = [
            f"{key} {old.get(key, '(not given)')} → {new.get(key, '(not given)')}"
            for key in sorted({*old, *new})
            if old and new and all(run.get(key) != new.get(key) for run in given[:at] if run)
        ]
        if not changed:
            continue
        before, after = (sum(run.died for run in part) for part in (endings[:at], endings[at:]))
        verdict = "no death since" if not after else "the deaths began after it"
        if before and after:
            verdict = "the deaths were there before it: it did not begin them"
        counts = f"{before} of {at} runs died before it, {after} of {len(endings) - at} after"
        text = f"between {endings[at - 1].label} and {endings[at].label}: {', '.join(changed)}; {verdict} ({counts})"
        yield Statement("change", "excluded" if before and after else "tied" if after else "open", text)
