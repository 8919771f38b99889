"""Predicted beside measured, for a run that was sized before its start."""

from __future__ import annotations

from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.command_lines import short_name
from oomproof.recording import spill_record
from oomproof.recording.run_folders import Run, to_type
from oomproof.recording.run_peak import figures_of
from oomproof.records import dataclass
from oomproof.reports.table_text import table
from oomproof.units import format_size

SCHEMA = 1
_KINDS = {"host": "RAM", "gpu": "GPU"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Bytes; ``measured`` None: not recorded."""

    kind: str
    low: int
    expected: int
    high: int
    measured: int | None

    @property
    def error(self) -> float | None:
        """Of the expected figure: above 0 is too much."""
        return (self.expected - self.measured) / self.measured if self.measured else None

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not recorded"
        if self.measured > self.high:
            return f"above high by {format_size(self.measured - self.high)}"
        if self.measured < self.low:
            return f"below low by {format_size(self.low - self.measured)}"
        return "inside"

    def as_json(self) -> dict[str, Any]:
        return {
            "low_bytes": self.low,
            "expected_bytes": self.expected,
            "high_bytes": self.high,
            "measured_bytes": self.measured,
            "error": None if self.error is None else round(self.error, 4),
            "verdict": self.verdict,
        }


def compare(run: Run) -> list[Comparison]:
    predicted = run.info.get("predicted") or {}
    peaks = figures_of(run.attempt).peaks
    # --spill is no part of it
    own = None if peaks.use is None else max(0, peaks.use - spill_record.pinned(run.attempt))
    measured = {"host": own, "gpu": peaks.gpu}
    rows = []
    for kind in _KINDS:
        figures = predicted.get(kind) or {}
        if all(isinstance(figures.get(name), int) for name in ("low", "expected", "high")):
            rows.append(
                Comparison(kind, figures["low"], figures["expected"], figures["high"], measured[kind])
            )
    if not rows:
        raise OomproofError(
            f"{run.name} was not sized before it started",
            "oomproof run --need auto -- CMD sizes it, and records what it predicted",
            USAGE,
        )
    return rows


def as_json(run: Run, rows: list[Comparison]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": run.id,
        "state": run.state(),
        "host": next((row.as_json() for row in rows if row.kind == "host"), None),
        "gpu": next((row.as_json() for row in rows if row.kind == "gpu"), None),
    }


def lines(run: Run, rows: list[Comparison], width: int) -> list[str]:
    cells = [["", "LOW", "EXPECTED", "HIGH", "MEASURED", "ERROR", ""]]
    for row in rows:
        measured = "–" if row.measured is None else format_size(row.measured)
        error = "" if row.error is None else f"{row.error:+.1%}".replace("%", " %").replace("-", "−")
        sizes = [format_size(size) for size in (row.low, row.expected, row.high)]
        cells.append([_KINDS[row.kind], *sizes, measured, error, row.verdict])
    title = f"{run.name}: {short_name(run.argv)}, predicted and measured{_how_far(run)}"
    return [title, "", *table(cells, width, right=(1, 2, 3, 4, 5), drop=(1, 3))]


def _how_far(run: Run) -> str:
    """What was measured of a run that did not come to its end is only a part."""
    if not run.exit():
        return " so far: it has not ended"
    if run.exit().get("code") != 0:
        return f"; it did not come to its end (oomproof why {to_type(run)})"
    return ""
