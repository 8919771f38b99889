"""Only numbers get into a chart: a column of SQLite may hold any text, and a page must not trust it."""

from __future__ import annotations

import math
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
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    return all(isinstance(value, str) if name in _TEXTS else _number(value) for name, value in values)


def _number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
