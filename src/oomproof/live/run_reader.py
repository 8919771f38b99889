"""One live run as its own files tell it. Its recording is read again only when it has grown: with twenty runs that is most of the cost."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from oomproof.leaf.action_kinds import (
    KILL,
    PAUSE,
    PAUSE_UNMANAGED,
    REQUEST,
    RESUME,
    RESUME_UNMANAGED,
    SAVE,
    TERM,
    WARN,
    WITHDRAW,
)
from oomproof.ledger.live_runs import Live
from oomproof.live.live_snapshot import PAUSED, STALE, WAITING, JobState
from oomproof.machine.processes import boot_id
from oomproof.printable import one_line
from oomproof.recording import spill_record
from oomproof.recording.attempt import Attempt
from oomproof.recording.position_record import best, read_all
from oomproof.recording.run_folders import Run
from oomproof.recording.secrets import mask_argv
from oomproof.recording.series import GpuRow, HostRow, JobRow, Series, told_kind, told_text
from oomproof.records import dataclass, field
from oomproof.trend.growth import lasting_rate, mean_rate
from oomproof.trend.leaks import UNKNOWN, Range

LOOK_BACK = 60.0  # seconds that a rate is told of
_LEAST_SEEN = 120.0  # seconds of samples before a trend over hours is asked: it takes 20 to 60 ms


def rate_of(points: Sequence[tuple[float, int]], now: float) -> float | None:
    """Bytes a second over the last minute; None before there are two looks five seconds apart."""
    recent = [point for point in points if now - point[0] <= LOOK_BACK]
    if len(recent) < 2 or recent[-1][0] - recent[0][0] < 5.0:
        return None
    return mean_rate(recent)


def headroom_of(job: JobRow | None, hosts: Sequence[HostRow]) -> int | None:
    """What the job can still take: up to its limit, or what the machine has left; as its last samples tell."""
    limits = [job.headroom if job else None, hosts[-1].mem_available if hosts else None]
    return min((size for size in limits if size is not None), default=None)


def soon_full(points: Sequence[tuple[float, int]], headroom: int | None) -> Range | None:
    """Of a run too young for a trend: what its last minutes bring, by their steady rate and by the last one's."""
    steady = lasting_rate(points)
    if steady is None or headroom is None or steady <= 0:
        return None
    latest = max(steady, mean_rate([point for point in points if points[-1][0] - point[0] <= LOOK_BACK]))
    low, high = headroom / latest, headroom / steady
    return Range(low, 2 * headroom / (latest + steady), high)


def trend_full(series: Series) -> tuple[bool, Range | None]:
    """(whether `oomproof trend` has an opinion, its time to full)."""
    use = series.use
    if not use or use.end - use.begin < _LEAST_SEEN:
        return False, None
    from oomproof.evidence.run_trend import run_trend  # only for a job that grows

    trend = run_trend(series)
    if trend is None or trend.trend.kind == UNKNOWN:
        return False, None
    return True, trend.trend.full_in


SPAN = 600.0  # seconds that a chart shows
_TREND_EVERY = 60.0  # seconds
_ROWS = 6000  # samples that are read at first: ten minutes of the fastest
_CARD_ROWS = 32  # of the newest: a row a card
_GROWS = 64 << 10  # bytes a second: 4 MiB a minute; a trend of less is not asked for
# what the guard did or said, as the recording calls it
_MESSAGES = (
    WARN, "alert", REQUEST, WITHDRAW, PAUSE, RESUME, TERM, KILL, SAVE, "saved", "trouble", "leak",
    PAUSE_UNMANAGED, RESUME_UNMANAGED,
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """What one reading of the recording gave."""

    points: tuple[tuple[float, int], ...] = ()  # (boottime, bytes held): the last ten minutes
    swap: int = 0
    processes: int | None = None
    headroom: int | None = None
    phase: str = ""
    step: int | None = None
    gpu: dict[int, int | None] = field(default_factory=dict)  # card → what the job holds there
    cards: dict[int, tuple[int, int]] = field(default_factory=dict)  # card → (used, total)
    gpu_t: float = float("-inf")
    allocated: int | None = None
    gpu_reserved: int | None = None
    message: str = ""
    message_t: float | None = None
    pinned_t: float = float("-inf")  # when --spill had its memory

    def since_pinned(self, points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
        """What it held before that is no measure of its growth."""
        return [point for point in points if point[0] >= self.pinned_t]


class RunReader:
    def __init__(self, run: Run) -> None:
        self._begin(run)

    def _begin(self, run: Run) -> None:
        """Anew for each attempt: it has a command and a recording of its own."""
        self.run = run
        self._number = run.attempt.number
        self.recorded = Recorded()
        self.stamp: object = None  # of the recording as it was read last
        self._place = 0  # of the last row of samples that was read
        self._last: JobRow | None = None
        self._peak: int | None = None
        self._full: tuple[float, Range] | None = None  # when it was told, and in how many seconds from then
        self._is_flat = False  # as its trend said
        self._warm: float | None = None  # when loading was over
        self._next_trend = float("-inf")
        self.pids: tuple[int, ...] = ()  # its first process and its keeper
        self.wants_trend = False
        self._tells_phase = False  # by a small file of the agent's

    def read(self, live: Live | None, now: float, trend: bool = True) -> JobState | None:
        """None when it has ended. ``trend``: whether there is time for one, where it is due."""
        if self.run.attempt.number != self._number:
            self._begin(self.run.at(None))
        run = self.run
        state = run.state(boot_id())
        if state == WAITING:
            return self._waiting()
        if state not in (PAUSED, "running", "unguarded", "starting"):
            return None
        attempt, started, info = run.attempt, run.started(), run.info
        self.pids = tuple(
            pid for who in ("job", "keeper") if isinstance(pid := (started.get(who) or {}).get("pid"), int)
        )
        position = best(read_all(attempt.agent_folder)) if attempt.agent_folder.is_dir() else None
        self._tells_phase = position is not None
        self._look(attempt, now, trend)
        recorded = self.recorded
        use = live.use if live is not None and now - live.t <= STALE else None
        if use is None and recorded.points and now - recorded.points[-1][0] <= STALE:
            use = recorded.points[-1][1]
        points = [*recorded.points, *([(live.t, live.use)] if live is not None and use is not None else [])]
        self._peak = max(
            (size for size in (self._peak, *(size for _, size in recorded.points), use) if size is not None),
            default=None,
        )
        mark = attempt.pause_mark()  # an unguarded run may be paused as well
        since = started.get("boottime")
        gpu = [size for size in recorded.gpu.values() if size is not None]
        return JobState(
            id=run.id,
            name=run.name,
            state=state,
            command=command_text(run.argv),
            uid=os.getuid(),
            pid=self.pids[0] if self.pids else None,
            processes=recorded.processes,
            seconds=max(0.0, now - since) if since is not None else None,
            phase=one_line(position.phase if position else recorded.phase),
            step=position.step if position else recorded.step,
            use=use,
            swap=min(recorded.swap, use or 0),
            gpu_used=sum(gpu) if gpu and now - recorded.gpu_t <= STALE else None,
            gpu_allocated=recorded.allocated,
            gpu_reserved=recorded.gpu_reserved,
            limit=(info.get("settings") or {}).get("limit"),
            cap=run.limit,
            limit_by=run.limit_enforcer(),
            rate=None if state == PAUSED else rate_of(recorded.since_pinned(points), now),
            full_in=None if state == PAUSED else self._full_from(now),
            peak=self._peak,
            spill=spill_record.pinned(attempt),
            protected=bool((info.get("settings") or {}).get("protect")),
            paused_by=str(mark.get("by") or ""),
            paused_until=mark.get("until"),
            gpu_given_back=attempt.gpu_paused_file.exists(),
            reasons=(one_line(str(mark["why"])),) if mark.get("why") else (),
            message=recorded.message,
            message_age=max(0.0, now - recorded.message_t) if recorded.message_t is not None else None,
        )

    @property
    def key(self) -> str:
        """Of its command in the history of needs."""
        return str((self.run.info.get("claim") or {}).get("key") or "")

    def _waiting(self) -> JobState:
        run = self.run
        return JobState(
            id=run.id,
            name=run.name,
            state=WAITING,
            command=command_text(run.argv),
            uid=os.getuid(),
            limit=(run.info.get("settings") or {}).get("limit"),
            reasons=tuple(run.waits_for()),
        )

    def _look(self, attempt: Attempt, now: float, trend: bool) -> None:
        stamp = _stamp(attempt)
        if stamp == self.stamp:
            return
        recording = attempt.recording()
        if self.stamp is None:
            self._peak = recording.figures().peaks.use  # once: a pass over all of it
        with recording.series() as series:
            self.recorded = self._read(series, now)
            self._forecast(series, now, trend)
        self.stamp = stamp

    def _read(self, series: Series, now: float) -> Recorded:
        """Only rows that were not read before: a recording of a week has millions."""
        jobs, self._place = series.after(JobRow, self._place, _ROWS)
        self._last = jobs[-1] if jobs else self._last
        points = [*self.recorded.points, *((row.t, row.use) for row in jobs)]
        newest = {row.idx: row for row in series.after(GpuRow, 0, _CARD_ROWS)[0]}
        phase = series.last_phase() if not self._tells_phase else None  # a look over all steps
        told = series.told_numbers("agent:allocator", last=_CARD_ROWS)
        allocated, reserved = _allocator([numbers for t, numbers in told if t >= told[-1][0] - 30.0])
        messages = series.events(*_MESSAGES, last=1)
        return Recorded(
            points=tuple(point for point in points if now - point[0] <= SPAN),
            swap=(self._last.swap or 0) if self._last else 0,
            processes=self._last.processes if self._last else None,
            headroom=headroom_of(self._last, series.after(HostRow, 0, 1)[0]),
            phase=phase[0] if phase else "",
            step=phase[1] if phase else None,
            gpu={index: row.job_used for index, row in newest.items()},
            cards={index: (row.used, row.total) for index, row in newest.items()},
            gpu_t=max((row.t for row in newest.values()), default=float("-inf")),
            allocated=allocated,
            gpu_reserved=reserved,
            message=f"{told_kind(messages[0].kind)}: {one_line(told_text(messages[0].kind, messages[0].text))}"
            if messages
            else "",
            message_t=messages[0].t if messages else None,
            pinned_t=spill_record.pinned_at(series),
        )

    def _forecast(self, series: Series, now: float, trend: bool) -> None:
        """A trend over the whole run takes tens of milliseconds: asked once a minute, of one that grows."""
        recorded = self.recorded
        points = recorded.since_pinned(recorded.points)
        soon = soon_full(points, recorded.headroom)
        if soon is not None:
            soon = soon_full(self._since_loaded(series), recorded.headroom)
        grows = soon is not None or (rate_of(points, now) or 0.0) > _GROWS
        if not grows:
            self._full, self.wants_trend = None, False
            return
        self.wants_trend = now >= self._next_trend
        if not (self.wants_trend and trend):
            told = self._full_from(now)
            # it grows faster by now; a trend that saw all of it and found none knows better for a while
            if soon is not None and (not self._is_flat if told is None else soon.high < told.low):
                self._full = (now, soon)
            return
        self._next_trend, self.wants_trend = now + _TREND_EVERY, False
        known, full = trend_full(series)
        self._is_flat = known and full is None
        full = full if known else soon
        self._full = (now, full) if full is not None else None
        if not known:
            self._next_trend = now  # cheap as long as it is too young for one

    def _full_from(self, now: float) -> Range | None:
        if self._full is None:
            return None
        t, full = self._full
        return Range(*(max(0.0, seconds - (now - t)) for seconds in (full.low, full.expected, full.high)))

    def _since_loaded(self, series: Series) -> list[tuple[float, int]]:
        """Those after loading and the first steps, where the job tells of them: a model that is loaded is no growth."""
        begin, points = self._warm, self.recorded.points
        if begin is None:
            from oomproof.evidence.heap_growth import warm_since

            begin = max(warm_since(series.phase_marks()), spill_record.pinned_at(series))
            if points and begin <= points[-1][0]:  # until then the next word of the job may change it
                self._warm = begin
        return [point for point in points if point[0] >= begin]


def _stamp(attempt: Attempt) -> tuple[tuple[int, int], ...]:
    """When the recording and its log of writes were last changed."""
    stamps = []
    for name in (os.fspath(attempt.recording_file), f"{os.fspath(attempt.recording_file)}-wal"):
        try:
            status = os.stat(name)
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)


def _allocator(told: Sequence[dict[str, Any]]) -> tuple[int | None, int | None]:
    """What PyTorch last said, of each process and card the newest; together."""
    newest = {(numbers.get("pid"), numbers.get("device")): numbers for numbers in told}
    sums = []
    for name in ("allocated", "reserved"):
        sizes = [size for numbers in newest.values() if isinstance(size := numbers.get(name), int)]
        sums.append(sum(sizes) if sizes else None)
    return sums[0], sums[1]


def command_text(argv: Sequence[str]) -> str:
    return one_line(shlex.join(mask_argv(argv))) if argv else ""
