"""The phases of a run: when it was in which, and what it held meanwhile, exactly: from every sample."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from oomproof.recording.position_record import best, read_all
from oomproof.recording.samples import Samples
from oomproof.recording.series import GpuRow, JobRow, PhaseMark, Series
from oomproof.records import dataclass, field, replace

_MOMENT = 0.1  # seconds in no phase that are not worth a word
_RISEN = 1.02  # contexts and libraries grow by less
_SHORT = 30.0  # seconds: of spans shorter than that the samples are read for many at once
_AHEAD = 600.0  # seconds of samples that are read at once


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


def spans_of(series: Series, end: float | None = None, newest: int | None = None) -> list[Span]:
    """In the order of time; the last one lasts to the end of the recording. ``newest``: of so many marks only."""
    end = end if end is not None else series.end()
    spans: list[Span] = []
    for mark in series.phase_marks(newest) if end is not None else ():
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


def with_last_step(rows: list[PhaseRow], agent_folder: Path) -> list[PhaseRow]:
    """The agent's own file is exact to the step; the recording has that of a second before, or none of a short run."""
    now = best(read_all(agent_folder))
    if now is None or now.step is None:
        return rows
    return [replace(row, last_step=now.step) if row.name == now.phase else row for row in rows]


def phase_rows(series: Series) -> list[PhaseRow]:
    """One for each name, in the order in which they were entered first."""
    spans = spans_of(series)
    if not spans:
        return []
    marks = series.phase_marks()
    # what the job itself saw where a phase began: of its main process only, so never too much
    near = _NearSamples(series)
    told: dict[str, int] = {}
    for span, visited in zip(spans, _by_span(marks, spans), strict=True):
        for mark in visited:
            if mark.anon is not None:
                told[span.name] = max(mark.anon, told.get(span.name, 0))
    gpu = _gpu_peaks(series, near, spans, marks)
    by_name: dict[str, PhaseRow] = {}
    for span in spans:
        old = by_name.get(span.name, PhaseRow(span.name))
        step = span.last_step if span.last_step is not None else old.last_step
        row = replace(
            old, entered=old.entered + 1, seconds=old.seconds + span.end - span.begin, last_step=step,
            gpu_peak=gpu.get(span.name),
        )  # fmt: skip
        samples = near if span.end - span.begin < _SHORT else series.use
        by_name[span.name] = _with_memory(row, samples, span) if series.use else row
    return [
        replace(
            row,
            peak=max((size for size in (row.peak, told.get(row.name)) if size is not None), default=None),
        )
        for row in by_name.values()
    ]


class _NearSamples:
    """Answers for short spans that follow each other, from samples read ahead: of ten thousand spans, three queries each
    took two seconds."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._job = _Block()
        self._gpu = _Block()

    def at(self, t: float) -> float:
        block = self._job_block(t, t)
        number = bisect_right(block.times, t)
        return block.values[number - 1] if number else self._series.use.at(t)

    def between(self, begin: float, end: float) -> tuple[float, float] | None:
        block = self._job_block(begin, end)
        inside = block.values[bisect_left(block.times, begin) : bisect_right(block.times, end)]
        return (min(inside), max(inside)) if inside else None

    def gpu_bound(self, begin: float, end: float) -> int | None:
        return self.gpu_peak(begin, end)

    def gpu_peak(self, begin: float, end: float) -> int | None:
        block = self._gpu_block(begin, end)
        inside = block.values[bisect_left(block.times, begin) : bisect_left(block.times, end)]
        return max(inside, default=None)

    def gpu_before(self, t: float) -> int | None:
        block = self._gpu_block(t, t)
        number = bisect_left(block.times, t)
        return block.values[number - 1] if number else self._series.gpu_before(t)

    def _gpu_block(self, begin: float, end: float) -> _Block:
        if not self._gpu.covers(begin, end):
            looks: dict[float, int] = {}
            for row in self._series.between(GpuRow, begin - _SHORT, begin + _AHEAD):
                if row.job_used is not None:
                    looks[row.t] = looks.get(row.t, 0) + row.job_used
            self._gpu = _Block(begin - _SHORT, begin + _AHEAD, list(looks), list(looks.values()))
        return self._gpu

    def _job_block(self, begin: float, end: float) -> _Block:
        if not self._job.covers(begin, end):
            rows = self._series.between(JobRow, begin - _SHORT, begin + _AHEAD)
            self._job = _Block(
                begin - _SHORT, begin + _AHEAD, [row.t for row in rows], [row.use for row in rows]
            )
        return self._job


@dataclass(frozen=True, slots=True)
class _Block:
    begin: float = 0.0
    end: float = 0.0
    times: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def covers(self, begin: float, end: float) -> bool:
        return self.begin <= begin and end < self.end


def _with_memory(row: PhaseRow, samples: Samples | _NearSamples, span: Span) -> PhaseRow:
    """The samples of one more span. One that fell between two samples has what stood before and after it; to another, what
    the phase before had reached is no peak: it was gone by its first sample."""
    entry = samples.at(span.begin)
    low, high = samples.between(span.begin, span.end) or (entry, entry)
    entry = min(entry, high)
    low, high = int(min(low, entry)), int(high)
    row = replace(row, floor=low if row.floor is None else min(row.floor, low))
    if row.peak is None or high > row.peak:
        row = replace(row, peak=high, entry=int(entry), exit=int(samples.at(max(span.begin, span.end))))
    return row


def _gpu_peaks(
    series: Series, near: _NearSamples, spans: list[Span], marks: list[PhaseMark]
) -> dict[str, int]:
    """What each phase reached on the GPU itself. What it found there does not count: after a generate() that filled the
    card, the allocator keeps it reserved, and a dying exception keeps it alive. Only a phase that never rose above what
    it found has that, at its lowest."""
    reached: dict[str, int] = {}
    found: dict[str, int] = {}
    for number, (span, visited) in enumerate(zip(spans, _by_span(marks, spans), strict=True)):
        end = span.end if number + 1 < len(spans) else float("inf")
        looks = near if end - span.begin < _SHORT else series
        bound = looks.gpu_bound(span.begin, end)
        told = [mark.gpu for mark in visited]
        levels = [
            (told[0] if told else None, max((level for level in told if level is not None), default=None))
        ]
        if bound is not None and bound > reached.get(span.name, -1):  # else it can change nothing
            entry = looks.gpu_before(span.begin) if number else None
            levels.append((entry, looks.gpu_peak(span.begin, end)))
        for entry, highest in levels:
            if highest is None:
                continue
            if entry is None or highest > entry * _RISEN:
                reached[span.name] = max(highest, reached.get(span.name, 0))
            else:
                found[span.name] = min(highest, found.get(span.name, highest))
    return {**found, **reached}


def _by_span(marks: list[PhaseMark], spans: list[Span]) -> list[list[PhaseMark]]:
    begins = [span.begin for span in spans]
    visited: list[list[PhaseMark]] = [[] for _ in spans]
    for mark in marks:
        at = bisect_right(begins, mark.t) - 1
        if at >= 0:
            visited[at].append(mark)
    return visited


def seconds_per_step(marks: Sequence[PhaseMark]) -> float | None:
    """In training alone: an evaluation between two steps is no slower step. None where no step was told."""
    seconds, count = 0.0, 0
    for mark, after in pairwise(marks):
        if mark.name == after.name == "train" and (mark.step is not None and after.step is not None):
            made = max(0, after.step - mark.step)
            seconds += after.t - mark.t if made else 0.0
            count += made
    return seconds / count if count else None
