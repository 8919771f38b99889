"""Only numbers get into a chart: a column of SQLite may hold any text, and a page must not trust it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from oomproof.recording.attempt import Attempt
from oomproof.records import fields
from oomproof.reports.timeline import Timeline, load

_PROBLEM = "it holds values that are no numbers"
_TEXTS = ("name", "role", "kind", "text")


def load_numbers(attempt: Attempt) -> Timeline:
    """The attempt's recording to draw; empty with its ``problem`` where it holds something else than numbers."""
    try:
        timeline = load(attempt)
    except (TypeError, ValueError, OverflowError):  # a text that was to be added up
        return Timeline(problem=_PROBLEM)
    return timeline if _only_numbers(timeline) else Timeline(problem=_PROBLEM)


def _only_numbers(timeline: Timeline) -> bool:
    series = (
        timeline.host,
        timeline.machine,
        timeline.phases,
        timeline.phase_rows,
        timeline.events,
        timeline.holders,
    )
    records: list[Any] = [record for records in (*series, *timeline.gpus.values()) for record in records]
    return all(map(_number, (timeline.begin, timeline.end_wall, *timeline.gpus))) and all(
        map(_is_of_numbers, records)
    )


def _is_of_numbers(record: Any) -> bool:
    kind: Any = type(record)
    texts, figures = _fields_of(kind)
    return all(isinstance(getattr(record, name), str) for name in texts) and all(
        _number(getattr(record, name)) for name in figures
    )


@cache
def _fields_of(kind: Any) -> tuple[list[str], list[str]]:
    """(Those that are texts, the others): thousands of records are of a few kinds."""
    names = [field.name for field in fields(kind)]
    return [name for name in names if name in _TEXTS], [name for name in names if name not in _TEXTS]


def _number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
