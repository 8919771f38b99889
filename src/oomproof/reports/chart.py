"""A small chart for a terminal: memory over time, with a line for the limit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from oomproof.records import dataclass
from oomproof.units import format_duration, format_size, format_time, format_zone

_APART = 6 * 3600.0  # seconds: no zone changes twice within them
_LOOKS = 2000  # at most: a clock that is years off must not hold the page up
_CROWDED = 0.6  # of a step: nearer ticks cover each other
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClockSpan:
    """A time in which the local clock kept its distance from UTC. ``begin`` is in seconds before the end, as in a chart."""

    begin: float
    offset: int
    zone: str


@dataclass(frozen=True, slots=True)
class Tick:
    t: float
    text: str
    zone: str  # what has to stand beside the first one of each span, where there are several; else empty


def clock_spans(end_wall: float, begin: float) -> tuple[ClockSpan, ...]:
    """The spans of the time from ``begin`` to the end, oldest first: one, unless the clocks were changed meanwhile."""
    looks = min(_LOOKS, math.ceil(-begin / _APART))
    edges = [begin, *(-number * _APART for number in range(looks - 1, -1, -1))]
    spans = [_span(end_wall, begin)]
    for before, after in pairwise(edges):
        if _offset(end_wall + after) != spans[-1].offset:
            spans.append(_span(end_wall, _changed(end_wall, before, after)))
    return tuple(spans)


def ticks(end_wall: float, begin: float) -> list[Tick]:
    """At round times of the local clock. An hour that the clock shows twice has two ticks, each with its zone; one that it
    leaps over has none."""
    step = next((interval for interval in STEPS if -begin / interval <= 6), STEPS[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%d %b"
    spans = clock_spans(end_wall, begin)
    placed: list[Tick] = []
    for span, until in zip(spans, [*(later.begin for later in spans[1:]), math.inf], strict=True):
        local, zone = end_wall + span.offset, span.zone if len(spans) > 1 else ""
        t = math.ceil((local + span.begin) / step) * step - local
        while t <= 1e-6 and t < until - 1e-6:
            while placed and t - placed[-1].t < _CROWDED * step:
                placed.pop()
            # of the shifted clock, as the script does it
            text = time.strftime(form, time.gmtime(local + t + 1e-3))
            placed.append(Tick(t, text + (f"{(local + t) % 1:.1f}"[1:] if step < 1 else ""), zone))
            zone, t = "", t + step
    return placed


def clock_text(end_wall: float | None, begin: float = 0.0) -> str:
    """The zone of all times, and where it changed."""
    if not end_wall:
        return format_zone(None)
    spans = clock_spans(end_wall, begin)
    changes = (
        f", from {format_time(end_wall + span.begin, zone=False)} on {span.zone}" for span in spans[1:]
    )
    return spans[0].zone + "".join(changes)


def _span(end_wall: float, begin: float) -> ClockSpan:
    wall = end_wall + begin
    return ClockSpan(begin, _offset(wall), format_zone(wall))


def _changed(end_wall: float, before: float, after: float) -> float:
    """The first second of the new offset."""
    old = _offset(end_wall + before)
    while after - before > 0.5:
        middle = (before + after) / 2
        before, after = (middle, after) if _offset(end_wall + middle) == old else (before, middle)
    return math.floor(end_wall + after) - end_wall


def _offset(wall: float) -> int:
    return time.localtime(wall).tm_gmtoff or 0


_BLOCKS = " ▁▂▃▄▅▆▇█"


def columns(
    samples: Sequence[tuple[float, float]], width: int, begin: float | None = None, end: float | None = None
) -> list[float | None]:
    """The highest value of each of ``width`` equal slices of time: a peak is never averaged away. A slice without a
    sample holds the value before it."""
    if not samples:
        return []
    begin, end = samples[0][0] if begin is None else begin, samples[-1][0] if end is None else end
    step = max(end - begin, 1e-9) / width
    highest: list[float | None] = [None] * width
    last: float | None = None
    for t, value in samples:
        if t < begin:
            last = value
            continue
        slot = min(width - 1, int((t - begin) / step))
        before = highest[slot]
        highest[slot] = value if before is None else max(before, value)
    for index, seen in enumerate(highest):
        last = seen if seen is not None else last
        highest[index] = last
    return highest


def rows_of_blocks(
    values: Sequence[float | None], height: int, limit: float | None
) -> Iterator[tuple[str, str, bool]]:
    """(size or nothing, blocks, whether it is the limit's row), from the top. A limit within three times of the highest
    value is the top of the scale and a line; otherwise the highest value is the top."""
    top = max([value or 0.0 for value in values] + [1.0])
    if limit is not None and limit < top * 3:
        top = max(top, limit)
    else:
        limit = None
    for row in range(height, 0, -1):
        upper, lower = top * row / height, top * (row - 1) / height
        filled = (((value or 0.0) - lower) / (upper - lower) for value in values)
        cells = "".join(_BLOCKS[max(0, min(8, round(share * 8)))] for share in filled)
        at_limit = limit is not None and lower < limit <= upper
        label = format_size(limit if at_limit else upper) if row == height or at_limit else ""
        yield label, cells.replace(" ", "┄") if at_limit else cells, at_limit


def draw(
    samples: Sequence[tuple[float, float]], width: int = 60, height: int = 8, limit: float | None = None
) -> str:
    """Rows of blocks, the scale at the left, the time span below; ``┄`` marks the limit."""
    values = columns(samples, width)
    if not values:
        return "  (no samples)"
    rows = [
        f"  {label:>9} │{cells}{' limit' if at_limit else ''}"
        for label, cells, at_limit in rows_of_blocks(values, height, limit)
    ]
    span = format_duration(samples[-1][0] - samples[0][0])
    rows.append(f"  {'0':>9} └{'─' * width}")
    rows.append(f"  {'':>9}  0{span:>{width - 1}}")
    return "\n".join(rows)
