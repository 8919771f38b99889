"""The phases of a run: when it was in which, and what it held meanwhile, exactly: from every sample."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from oomproof.recording.samples import Samples
from oomproof.recording.series import Series
from oomproof.records import dataclass, replace

_MOMENT = 0.1  # seconds in no phase that are not worth a word


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from its first to its last mark; steps where the job told them."""

    begin: float
    end: float
    name: str
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """All spans of one name together; entry and exit are those of the span with the highest peak. Host memory."""

    name: str
    entered: int = 0
    seconds: float = 0.0
    peak: int | None = None
    gpu_peak: int | None = None
    last_step: int | None = None
    entry: int | None = None
    exit: int | None = None
    floor: int | None = None


def spans_of(series: Series, end: float | None = None) -> list[Span]:
    """In the order of time; the last one lasts to the end of the recording."""
    end = end if end is not None else series.end()
    spans: list[Span] = []
    for mark in series.phase_marks() if end is not None else ():
        if spans and mark.name != "unknown" == spans[-1].name and mark.t - spans[-1].begin < _MOMENT:
            spans.pop()  # only the moment between two
        if spans and spans[-1].name == mark.name:
            last = spans[-1]
            first = last.first_step if last.first_step is not None else mark.step
            step = mark.step if mark.step is not None else last.last_step
            spans[-1] = replace(last, first_step=first, last_step=step)
            continue
        if spans:
            last = spans[-1]
            # steps are made in training: what the next phase begins with, this one made
            made = last.name == "train" and mark.step is not None
            step = mark.step if made else last.last_step
            spans[-1] = replace(last, end=mark.t, last_step=step)
        spans.append(Span(mark.t, end or 0.0, mark.name, mark.step, mark.step))
    return spans


def phase_rows(series: Series, spans: list[Span] | None = None) -> list[PhaseRow]:
    """One for each name, in the order in which they were entered first."""
    spans = spans if spans is not None else spans_of(series)
    if not spans:
        return []
    marks = series.phase_marks()
    # what the job itself saw where a phase began: of its main process only, so never too much
    told = _highest(((mark.t, mark.anon) for mark in marks), spans)
    gpu = _highest(((mark.t, mark.gpu) for mark in marks), spans)
    for number, span in enumerate(spans):
        peak = series.gpu_peak(span.begin, span.end if number + 1 < len(spans) else float("inf"))
        if peak is not None:
            gpu[span.name] = max(peak, gpu.get(span.name, -1))
    by_name: dict[str, PhaseRow] = {}
    for span in spans:
        old = by_name.get(span.name, PhaseRow(span.name))
        step = span.last_step if span.last_step is not None else old.last_step
        row = replace(
            old, entered=old.entered + 1, seconds=old.seconds + span.end - span.begin, last_step=step,
            gpu_peak=gpu.get(span.name),
        )  # fmt: skip
        by_name[span.name] = _with_memory(row, series.use, span)
    return [
        replace(
            row,
            peak=max((size for size in (row.peak, told.get(row.name)) if size is not None), default=None),
        )
        for row in by_name.values()
    ]


def _with_memory(row: PhaseRow, samples: Samples, span: Span) -> PhaseRow:
    """The samples of one more span. One that fell between two samples has what stood before and after it."""
    if not samples:
        return row
    entry = samples.at(span.begin)
    low, high = samples.between(span.begin, span.end) or (entry, entry)
    low, high = int(min(low, entry)), int(max(high, entry))
    row = replace(row, floor=low if row.floor is None else min(row.floor, low))
    if row.peak is None or high > row.peak:
        row = replace(row, peak=high, entry=int(entry), exit=int(samples.at(max(span.begin, span.end))))
    return row


def _highest(values: Iterable[tuple[float, int | None]], spans: list[Span]) -> dict[str, int]:
    """The highest value in each phase, by its name."""
    begins = [span.begin for span in spans]
    peaks: dict[str, int] = {}
    for t, value in values:
        at = bisect_right(begins, t) - 1
        if at >= 0 and value is not None and value > peaks.get(spans[at].name, -1):
            peaks[spans[at].name] = value
    return peaks
