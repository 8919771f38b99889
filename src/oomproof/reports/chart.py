"""A small chart for a terminal: memory over time, with a line for the limit."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.units import format_duration, format_size

_BLOCKS = " ▁▂▃▄▅▆▇█"


def columns(samples: Sequence[tuple[float, float]], width: int) -> list[float | None]:
    """The highest value of each of ``width`` equal slices of time: a peak is never averaged away."""
    if not samples:
        return []
    begin, end = samples[0][0], samples[-1][0]
    step = max(end - begin, 1e-9) / width
    highest: list[float | None] = [None] * width
    for t, value in samples:
        slot = min(width - 1, int((t - begin) / step))
        before = highest[slot]
        highest[slot] = value if before is None else max(before, value)
    last: float | None = None
    for index, seen in enumerate(highest):  # sampled slower than drawn: hold the last value
        last = seen if seen is not None else last
        highest[index] = last
    return highest


def draw(
    samples: Sequence[tuple[float, float]], width: int = 60, height: int = 8, limit: float | None = None
) -> str:
    """Rows of blocks, the scale at the left, the time span below; ``┄`` marks the limit."""
    values = columns(samples, width)
    if not values:
        return "  (no samples)"
    top = max([value or 0.0 for value in values] + [1.0])
    if limit is not None and limit < top * 3:
        top = max(top, limit)
    else:
        limit = None
    rows = []
    for row in range(height, 0, -1):
        upper, lower = top * row / height, top * (row - 1) / height
        cells = []
        for value in values:
            filled = ((value or 0.0) - lower) / (upper - lower)
            cells.append(_BLOCKS[max(0, min(8, round(filled * 8)))])
        at_limit = limit is not None and lower < limit <= upper
        line = "".join("┄" if at_limit and cell == " " else cell for cell in cells)
        label = format_size(limit if at_limit else upper) if row == height or at_limit else ""
        rows.append(f"  {label:>9} │{line}{' limit' if at_limit else ''}")
    span = format_duration(samples[-1][0] - samples[0][0])
    rows.append(f"  {'0':>9} └{'─' * width}")
    rows.append(f"  {'':>9}  0{span:>{width - 1}}")
    return "\n".join(rows)
