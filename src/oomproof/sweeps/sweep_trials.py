"""The trials of a sweep, as its own log tells them: one line an event, folded into what stands now. Pure.

The log is the truth of a sweep: whoever reads it needs neither Optuna nor a process that lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from oomproof.printable import one_line
from oomproof.recording.json_shapes import shaped
from oomproof.records import dataclass, field
from oomproof.sweeps.search_space import Point

State = Literal["waiting", "running", "done", "out-of-memory", "failed", "stopped", "skipped"]
OVER: tuple[State, ...] = ("done", "out-of-memory", "failed", "stopped", "skipped")
ENDS: tuple[State, ...] = ("done", "out-of-memory", "failed", "stopped")

ASKED, STARTING, STOPPING, ENDED, SKIPPED, QUEUED, SETTINGS, SIZED = (
    "asked", "starting", "stopping", "ended", "skipped", "queued", "settings", "sized",
)  # fmt: skip


# a value of another type, as a damaged line has it, counts as absent
_EVENT = {
    "event": str, "wall": float, "trial": int, "try": int, "name": str, "need": int, "run": str, "outcome": str, "again": bool,
    "shrunk": bool, "cause": str, "headline": str, "seconds": float, "peak": int, "gpu_peak": int, "metric_source": str, "where": str,
    "bound": bool, "budget": {...: int}, "beside": int, "why": str, "over": float, "predicted": int, "not_loaded": [str],
}  # fmt: skip


@dataclass
class Try:
    """One run of a trial. A second one has the same values, or a smaller plan of the same effective batch."""

    number: int
    name: str  # of its run
    values: Point  # as it runs: with what was made smaller
    wall: float
    need: int | None = None
    run: str | None = None  # id, once it has ended
    outcome: str = ""  # empty while it runs
    again: bool = False  # its end says nothing of the trial, which waits for another try
    shrunk: bool = False  # ... or was too large, and a smaller plan is left
    cause: str | None = None
    headline: str = ""
    seconds: float | None = None
    peak: int | None = None
    gpu_peak: int | None = None
    metric: float | None = None
    metric_source: str = ""
    where: str = ""  # which memory it died of: host, gpu
    bound: bool = False  # the death was its own doing: a lower bound of what it needs
    not_loaded: tuple[str, ...] = ()  # it died while loading: what none of these kinds of settings changes
    budget: dict[str, int] = field(default_factory=dict)  # what it might hold: host, gpu
    beside: int = 0  # trials that ran at the same time when it ended
    stopping: bool = False  # the sweep has asked it to stop


@dataclass
class Trial:
    number: int  # from 1
    values: Point  # as they were asked for
    state: State = "waiting"
    why: str = ""  # of waiting again, skipped, failed
    predicted: int | None = None  # what it was taken to need, where it was skipped
    over: float | None = None  # by which share it is too large, where it is
    tries: list[Try] = field(default_factory=list)
    wall: float = 0.0

    @property
    def last(self) -> Try | None:
        return self.tries[-1] if self.tries else None

    @property
    def lost(self) -> int:
        """Tries that something outside of it ended, and not the sweep itself."""
        return sum(attempt.again and not (attempt.shrunk or attempt.stopping) for attempt in self.tries)

    @property
    def metric(self) -> float | None:
        return self.last.metric if self.state == "done" and self.last is not None else None


@dataclass
class SweepLog:
    """All that the log says."""

    trials: dict[int, Trial] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # changed since the sweep was made
    sized: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tries(self) -> list[Try]:
        return [attempt for trial in self.trials.values() for attempt in trial.tries]

    def by_state(self, *states: State) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.state in states]

    @property
    def running(self) -> list[Trial]:
        return self.by_state("running")


def fold(events: Iterable[Mapping[str, Any]]) -> SweepLog:
    """What is damaged is left out: a reader shows what there is."""
    log = SweepLog()
    for event in events:
        try:
            take(log, shaped(dict(event), _EVENT))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return log


def take(log: SweepLog, event: Mapping[str, Any]) -> None:
    """One event more. Raises KeyError, TypeError, ValueError or AttributeError for what is none."""
    kind = event["event"]
    if kind == SETTINGS:
        log.settings.update(dict(event["settings"]))
        return
    if kind == SIZED:
        log.sized.append(dict(event))
        return
    number = int(event["trial"])
    if kind == ASKED:
        log.trials[number] = Trial(number, dict(event["values"]), wall=float(event.get("wall", 0.0)))
        return
    trial = log.trials[number]
    if kind == STARTING:
        trial.tries.append(
            Try(
                int(event["try"]),
                str(event["name"]),
                dict(event["values"]),
                float(event.get("wall", 0.0)),
                event.get("need"),
            )
        )
        trial.state, trial.why = "running", ""
    elif kind == STOPPING:
        trial.tries[-1].stopping = True
    elif kind == ENDED:
        _end(trial, event)
    elif kind == SKIPPED:
        trial.state, trial.why = "skipped", one_line(str(event["why"]))
        trial.predicted, trial.over = event.get("predicted"), event.get("over")
    elif kind == QUEUED:
        trial.state, trial.why = "waiting", one_line(str(event.get("why", "")))


def _end(trial: Trial, event: Mapping[str, Any]) -> None:
    attempt = {attempt.number: attempt for attempt in trial.tries}[int(event["try"])]
    for name in (
        "run", "outcome", "again", "shrunk", "cause", "headline", "seconds", "peak", "gpu_peak", "metric_source", "where",
        "bound", "budget", "beside",
    ):  # fmt: skip
        if name in event:
            setattr(attempt, name, event[name])
    attempt.not_loaded = tuple(event.get("not_loaded") or ())
    attempt.metric = _metric(event.get("metric"))
    outcome = attempt.outcome
    if outcome not in ENDS and not attempt.again:
        raise ValueError(outcome)
    trial.state = "waiting" if attempt.again else outcome  # type: ignore[assignment]
    trial.why = one_line(str(event.get("why", "")))
    trial.over = event.get("over")


def _metric(value: object) -> float | None:
    """What is no finite number stands there as text."""
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def best_trial(log: SweepLog, goal: str) -> Trial | None:
    """Of those that are done and have a metric; the earlier one of two alike."""
    known = [
        trial for trial in log.trials.values() if trial.metric is not None and trial.metric == trial.metric
    ]
    if not known:
        return None
    sign = 1.0 if goal == "minimize" else -1.0
    return min(known, key=lambda trial: (sign * (trial.metric or 0.0), trial.number))
