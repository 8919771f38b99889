"""When a run ends by itself: the steps its trainer has planned, or the total of its own progress bar."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from oomproof.recording.series import PhaseMark, Series
from oomproof.records import dataclass

_TAIL = 64 << 10  # bytes of the output's end
_NEAR, _NEAR_SHARE = 3, 0.02  # steps, and share of them, by which a bar may be behind
_OTHER_LOOPS = ("eval", "load", "generate", "save")


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    step: int
    total: int
    seconds: float | None  # from the last sample on, at the pace so far; None: no pace is known
    told_by: str  # "its trainer", "its progress bar", "its command"
    epoch_steps: int | None = None  # steps of an epoch, where its trainer told


def planned_end(
    series: Series,
    marks: Sequence[PhaseMark],
    end: float,
    outputs: Sequence[Path] = (),
    asked: int | None = None,
) -> PlannedEnd | None:
    """None where nothing tells it. ``end``: of the samples. ``outputs``: what the job printed, oldest first. ``asked``: steps that its command
    names, for a job that tells nothing else."""
    steps = [(mark.t, mark.step) for mark in marks if mark.step is not None and mark.t <= end]
    step = steps[-1][1] if steps else None
    seconds_each = _pace(steps)
    plans = [plan for t, plan in series.told_numbers("agent:plan") if t <= end]
    if plans and step is not None:
        total, epoch_steps = plans[-1].get("steps"), plans[-1].get("epoch_steps")
        known = epoch_steps if isinstance(epoch_steps, int) and epoch_steps > 0 else None
        if isinstance(total, int) and total >= step:
            left = (total - step) * seconds_each if seconds_each is not None else None
            return PlannedEnd(step, total, left, "its trainer", known)
    shown = _of_bar(_tail(outputs), step, seconds_each)
    if (
        shown is None
        and asked is not None
        and step is not None
        and seconds_each is not None
        and step <= asked
    ):
        return PlannedEnd(step, asked, (asked - step) * seconds_each, "its command")
    return shown


def _pace(steps: Sequence[tuple[float, int]]) -> float | None:
    """Seconds a step, with all that comes between them, over the last half of what was made."""
    if not steps:
        return None
    (end, last), middle = steps[-1], (steps[0][1] + steps[-1][1]) // 2
    for t, step in steps:
        if step >= middle and last > step and end > t:
            return (end - t) / (last - step)
    return None


def _tail(outputs: Sequence[Path]) -> str:
    for path in reversed(outputs):
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _TAIL))
                text = file.read(_TAIL).decode("utf-8", "replace")
        except OSError:
            continue
        if text.strip():
            return text
    return ""


def _of_bar(text: str, step: int | None, seconds_each: float | None) -> PlannedEnd | None:
    """The newest bar of training whose count is the job's own. One that counts an epoch's batches tells by the number of
    epochs; which of several bars without steps is the run's, nobody knows."""
    if not text:
        return None
    from oomproof.evidence.texts.progress import ANCHORS, read_sign

    lines = [line for line in text.replace("\r", "\n").split("\n") if any(mark in line for mark in ANCHORS)]
    signs = [sign for line in lines if (sign := read_sign(line[-2000:])) is not None]
    bars = [sign for sign in signs if sign.step is not None and sign.total and sign.phase not in _OTHER_LOOPS]
    for sign in reversed(bars):
        done, total = sign.step or 0, sign.total or 0
        if step is None:
            if sign.epoch is not None or len({bar.total for bar in bars}) > 1 or not done or not sign.uptime:
                return None
            return PlannedEnd(done, total, sign.uptime / done * (total - done), "its progress bar")
        counted = [(done, total)]
        if sign.epoch is not None and sign.epochs:  # counted from 0 or from 1
            counted += [
                (int(sign.epoch - first) * total + done, sign.epochs * total)
                for first in (1, 0)
                if sign.epoch >= first
            ]
        for at, planned in counted:
            if abs(at - step) <= max(_NEAR, _NEAR_SHARE * step) and planned >= step:
                # within an epoch, the bar of an epoch looks like the run's
                if planned == total and (sign.epoch is not None or sign.epochs):
                    continue
                left = (planned - step) * seconds_each if seconds_each is not None else None
                return PlannedEnd(step, planned, left, "its progress bar")
    return None
