"""Applied changes on probation: the next run of the same command, to its first three evaluations or its end, decides how each fares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from oomproof.causes import cause_of
from oomproof.evidence.planned_end import planned_end
from oomproof.leaf.command_lines import command_key
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import phase_rows, seconds_per_step
from oomproof.recording.run_folders import Run
from oomproof.recording.run_peak import figures_of
from oomproof.records import dataclass
from oomproof.remedies.fix_store import OFFERED, PROBATION, Fix, list_fixes
from oomproof.units import format_duration, format_size

EVALUATIONS = 3
_SLOWER = 1.2  # times: a shared machine alone makes a tenth
Standing = Literal["probation", "confirmed", "offered for undo"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one attempt; None where nobody knows."""

    peak: int | None = None
    gpu_peak: int | None = None
    step_seconds: float | None = None
    epoch_steps: int | None = None


def figures_from(value: Mapping[str, Any]) -> Figures:
    return Figures(**{name: value.get(name) for name in Figures.__dataclass_fields__})


def standing(
    before: Figures, now: Figures, *, ended: bool, well: bool, of_memory: bool, evaluations: int
) -> tuple[Standing, str]:
    """(how it stands, the figures in words). A run that a person or another error ended early tells nothing yet."""
    figures = compared(before, now)
    if of_memory:
        return "offered for undo", f"it ran out of memory all the same; {figures}"
    if evaluations < EVALUATIONS and not (well and ended):
        return "probation", figures
    return "confirmed", figures


def is_slower(before: Figures, now: Figures) -> bool:
    """By enough to be worth a word."""
    if before.step_seconds is None or now.step_seconds is None:
        return False
    return now.step_seconds > _SLOWER * before.step_seconds


def compared(before: Figures, now: Figures) -> str:
    told = [
        f"{name} {format_size(first)} → {format_size(second)}"
        for name, first, second in (
            ("peak", before.peak, now.peak),
            ("GPU peak", before.gpu_peak, now.gpu_peak),
        )
        if first is not None and second is not None
    ]
    if before.step_seconds is not None and now.step_seconds is not None:
        told.append(f"{_step(before.step_seconds)} → {_step(now.step_seconds)} a step")
        if before.epoch_steps and now.epoch_steps:
            epochs = (before.step_seconds * before.epoch_steps, now.step_seconds * now.epoch_steps)
            told.append(f"{format_duration(epochs[0])} → {format_duration(epochs[1])} an epoch")
    return ", ".join(told) or "no figures to compare"


def pace_text(figures: Figures) -> str:
    """``400 ms a step, 7 min an epoch``; empty where the job tells no steps."""
    if figures.step_seconds is None:
        return ""
    text = f"{_step(figures.step_seconds)} a step"
    if figures.epoch_steps:
        text += f", {format_duration(figures.step_seconds * figures.epoch_steps)} an epoch"
    return text


def _step(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)


def figures_of_attempt(attempt: Attempt) -> tuple[Figures, int]:
    """(its figures, how often it evaluated)"""
    peaks = figures_of(attempt).peaks
    with attempt.recording().series() as series:
        marks = series.phase_marks()
        rows = phase_rows(series)
        end = planned_end(series, marks, marks[-1].t if marks else 0.0)
    entered = sum(row.entered for row in rows if row.name == "eval")
    figures = Figures(
        peaks.use, peaks.gpu, seconds_per_step(marks), end.epoch_steps if end is not None else None
    )
    return figures, entered


def key_of(run: Run) -> str:
    """The same for runs of the same command."""
    return command_key(run.argv, str(run.info.get("cwd") or "")) if run.argv else ""


def waiting_for(run: Run) -> list[Fix]:
    """Changes on probation that this run tells about: the same command, begun after them."""
    key = key_of(run)
    return [
        fix
        for fix in list_fixes()
        if fix.state in (PROBATION, OFFERED)
        and fix.manifest.get("key") == key
        and float(fix.manifest.get("applied") or 0.0) <= float(run.started().get("wall") or 0.0)
    ]


def judge_fix(fix: Fix, run: Run, cause: str | None) -> tuple[Standing, str, Figures, Figures]:
    """(how it stands, the figures in words, before, now). ``cause``: of its end; None while it runs."""
    before = figures_from(_dict(fix.manifest.get("before")))
    now, evaluations = figures_of_attempt(run.attempt)
    kind = cause_of(cause) if cause is not None else None
    stand, words = standing(
        before,
        now,
        ended=kind is not None,
        well=kind is None or kind.good,
        of_memory=kind is not None and kind.memory,
        evaluations=evaluations,
    )
    return stand, words, before, now


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
