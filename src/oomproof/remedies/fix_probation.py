"""How an applied change fares: the next run of the same command, to its first three evaluations or its end, tells. Pure but for what it is handed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from oomproof.records import dataclass
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

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def figures_from(value: Mapping[str, Any]) -> Figures:
    return Figures(**{name: value.get(name) for name in Figures.__dataclass_fields__})


def standing(
    before: Figures, now: Figures, *, ended: bool, well: bool, of_memory: bool, evaluations: int
) -> tuple[Standing, str]:
    """(how it stands, the figures in words). A run that a person or another error ended early tells nothing yet."""
    figures = compared(before, now)
    if of_memory:
        return "offered for undo", f"it ran out of memory all the same; {figures}"
    if not well and evaluations < EVALUATIONS:
        return "probation", figures
    if not ended and evaluations < EVALUATIONS:
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
