"""The times at which a run was paused, from what was done to it: for tables, and so that no pause looks like a hang."""

from __future__ import annotations

from oomproof.leaf.action_kinds import KILL, PAUSE, RESUME, TERM
from oomproof.recording.attempt import Attempt
from oomproof.recording.reader import number
from oomproof.records import dataclass

_RESUMES = (RESUME, TERM, KILL)  # SIGTERM and the kill wake a paused job too


@dataclass(frozen=True, slots=True)
class Paused:
    begin: float  # boottime
    end: float | None  # None: it still stands
    by: str  # guard or user


def pauses(attempt: Attempt) -> list[Paused]:
    actions = [
        (at, str(line.get("action") or line.get("event")), str(line.get("by", "keeper")))
        for line in (*attempt.actions(), *attempt.keeper_events())
        if (at := number(line.get("boottime"))) is not None
    ]
    ended = number(attempt.exit().get("boottime"))
    paused: list[Paused] = []
    begin: tuple[float, str] | None = None
    for at, what, by in sorted(actions):
        if what == PAUSE:
            begin = begin or (at, by)
        elif what in _RESUMES and begin is not None:
            paused.append(Paused(begin[0], at, begin[1]))
            begin = None
    if begin is not None:
        paused.append(Paused(begin[0], ended, begin[1]))
    return paused


def seconds(pauses: list[Paused], now: float) -> float:
    return sum((pause.end if pause.end is not None else now) - pause.begin for pause in pauses)
