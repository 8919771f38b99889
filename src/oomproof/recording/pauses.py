"""The times at which a run stood still, from what was done to it: for tables, and so that no pause looks like a hang."""

from __future__ import annotations

from oomproof.recording.attempt import Attempt
from oomproof.recording.reader import number
from oomproof.records import dataclass

_GOES_ON = ("thaw", "term", "kill")  # SIGTERM and the kill wake a frozen job too


@dataclass(frozen=True, slots=True)
class Paused:
    begin: float  # boottime
    end: float | None  # None: it still stands
    by: str  # guard or user


def pauses(attempt: Attempt) -> list[Paused]:
    deeds = [
        (at, str(line.get("action") or line.get("event")), str(line.get("by", "keeper")))
        for line in (*attempt.actions(), *attempt.keeper_events())
        if (at := number(line.get("boottime"))) is not None
    ]
    ended = number(attempt.exit().get("boottime"))
    found: list[Paused] = []
    begin: tuple[float, str] | None = None
    for at, what, by in sorted(deeds):
        if what == "freeze":
            begin = begin or (at, by)
        elif what in _GOES_ON and begin is not None:
            found.append(Paused(begin[0], at, begin[1]))
            begin = None
    if begin is not None:
        found.append(Paused(begin[0], ended, begin[1]))
    return found


def seconds(found: list[Paused], now: float) -> float:
    return sum((one.end if one.end is not None else now) - one.begin for one in found)
