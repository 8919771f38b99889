"""When the job is asked what is alive in it: one question at a time, repeated where nobody answers, and by the clock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oomproof.machine.clock import boottime
from oomproof.units import MIB

_LARGE = 64 * MIB  # of a job: below, nobody asks what it holds
_LEVELS = (2, 8)  # full by half, and all but an eighth: two, because what grew between them is what grows
_APART = 10.0  # seconds between two looks at the counters, as in a training
# of new height, or a share of what is held: from 100 MiB to 60 GiB a hundred looks
_HIGHER, _HIGHER_SHARE = 16 * MIB, 16
_TRACED = 180.0  # seconds from a request: two windows, the second a deeper one


class UnaskedLooks:
    def __init__(self) -> None:
        self._reached = 0  # levels of which a census was asked for
        self._highest = 0  # bytes at the last look at the counters
        self._next = 0.0
        self._traced_until = 0.0

    def fills(self, use: int, headroom: int) -> bool:
        """Whether it has filled up to the next level since it was asked last: then a census is due."""
        if use < _LARGE:
            return False
        reached = sum(use + headroom >= headroom * level for level in _LEVELS)
        due, self._reached = reached > self._reached, max(reached, self._reached)
        return due

    def grows(self, t: float, use: int) -> bool:
        """Whether a job that makes no steps is to look at its counters now; while a tracer is wanted, with each look of ours."""
        if t < self._traced_until:
            return True
        if t < self._next or use < self._highest + max(_HIGHER, self._highest // _HIGHER_SHARE):
            return False
        self._highest, self._next = use, t + _APART
        return True

    def trace(self, t: float) -> None:
        self._traced_until = t + _TRACED

    def traced(self) -> None:
        self._traced_until = 0.0

    def is_tracing(self, t: float) -> bool:
        return t < self._traced_until


# Why a census was taken.
AT_WARNING, AT_STOP, BY_TIME = "at the warning", "when it was asked to save and stop", "by time"
AS_IT_FILLS = "as memory filled"

_AGAIN, _TRIES = 2.0, 10  # seconds between two signals for one census, and how many
_FAR_MORE, _MUCH = 1.5, 64 << 20  # loader workers share what their parent holds, and hold about as much
_JUST_TAKEN = 5.0  # seconds: what was told so lately answers the next question too


def whom_to_ask(held: Mapping[int, int], speaker: int | None) -> int | None:
    """``held``: bytes of each process that would answer. The one that trains, unless another holds far more: of two ranks it is
    the one that leaks who has something to tell."""
    if not held:
        return None
    most = max(held, key=lambda pid: (held[pid], -pid))
    if (
        speaker is not None
        and speaker in held
        and held[most] <= max(_FAR_MORE * held[speaker], held[speaker] + _MUCH)
    ):
        return speaker
    return most


class CensusWatch:
    def __init__(self, folder: Path, every: float | None) -> None:
        """``every``: seconds between two that are taken by the clock."""
        self._folder, self._every = folder, every
        self._next = boottime() + (every or 0.0)
        self._asked: tuple[int, float, int] | None = None  # (pid, when, signals sent)
        self._silent = False  # the one that was asked for last is told to nobody
        self._taken: float | None = None

    def ask(self, now: float, why: str, speaker: int | None) -> bool:
        """``speaker``: the process that trains. The answer comes later, if at all."""
        told = why in (AT_WARNING, AT_STOP)
        if not (told and self._silent) and (
            self._asked is not None or (self._taken is not None and now - self._taken < _JUST_TAKEN)
        ):
            return False
        from oomproof.runner import census_request  # most runs need none

        held = {pid: census_request.held_by(pid) for pid in census_request.able(self._folder)}
        pid = whom_to_ask(held, speaker)
        if pid is None or not census_request.ask(self._folder, pid, f"{now:.6f}", why):
            return False
        self._asked, self._silent = (pid, now, 1), not told
        return True

    def tick(self, t: float) -> bool:
        """Asks again where nobody has answered: a step that was waited for may be the last. Whether the clock asks for another."""
        if self._asked is not None:
            pid, asked, tries = self._asked
            if tries >= _TRIES or not os.path.exists(f"/proc/{pid}"):
                self._asked = None
            elif t - asked >= _AGAIN * tries:
                from oomproof.runner import census_request

                census_request.ask_again(self._folder, pid)
                self._asked = (pid, asked, tries + 1)
        if self._every is None or t < self._next:
            return False
        self._next = t + self._every
        return True

    def came(self, pid: int, t: float) -> tuple[str, str] | None:
        """(why it was taken, what it says in a line); None where its file is not there."""
        from oomproof.recording import census_record

        self._asked, self._taken = None, t
        taken = [census for census in census_record.read_all(self._folder, pid) if census.t <= t]
        return (taken[-1].why, census_record.summary(taken)) if taken else None
