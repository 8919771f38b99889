"""How fast a job grows and when its memory is full, for a look that is repeated: cheap, and `oomproof trend`'s figures where it has any."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.recording.series import HostRow, JobRow, Series
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
