"""How soon to look again, and how often to record: as the nearest threshold comes near."""

from __future__ import annotations

from typing import NamedTuple

from oomproof.guard.view import Facts, JobView, Settings, View, headroom
from oomproof.units import MIB

# Python's allocator and the kernel's page faults fill about 2 GiB/s per core here and up to 6 GiB/s on fast desktops
# with several threads (earlyoom measured 6000 MiB/s with `stress -m 4`): the poll must be sooner than that.
FASTEST_FILL = 6000 * MIB
# Under a limit, of a job that has not grown for 15 s: looked at in time unless it then fills 3 GiB/s from the first moment on.
STILL_FILL = 1500 * MIB
POLL_MIN, POLL_MAX = 0.01, 1.0
# Of a job that has not grown for 15 s, where even the fastest fill leaves the time: half the cost of a guard at rest is that
# it wakes up. Under a limit there are glances in between.
POLL_STILL = SAMPLE_STILL = 2.0
# What a glance takes for growth: above the noise of the kernel's own batches (256 KiB a processor), far below any threshold.
GLANCE_LEAST, GLANCE_SHARE = MIB, 64
POLL_FAST = 0.002  # where the present growth reaches the threshold within POLL_MIN
POLL_MIN_CALM = 0.1  # a job that has not grown for 15 s cannot be worth a hundred wake-ups a second

SAMPLE_MAX, SAMPLE_MIN = 1.0, 0.1  # seconds between recorded rows, calm and thin
_SOON_FULL, _SAMPLED_FASTER = (
    60.0,
    30.0,
)  # seconds that the present growth leaves: rows reach the disk at once; come faster


class Glances(NamedTuple):
    """Between two looks: how often the job's own counter is read, and what it may have grown by until the next look comes."""

    every: float
    growth: int


def poll_seconds(
    settings: Settings,
    machine: View | Facts,
    job: JobView | Facts,
    still: bool = False,
    glanced_at: bool = False,
) -> float:
    """Sleep for as long as the fastest possible fill takes to reach the nearest line. ``glanced_at``: its limit is watched
    meanwhile, so that only the machine's headroom counts."""
    available = headroom(settings, machine) - settings.floor
    seconds = available / FASTEST_FILL
    if job.limit_headroom is not None and not glanced_at:
        below = _to_the_limit(settings, job.limit_headroom)
        available, seconds = (
            min(available, below),
            min(seconds, below / (STILL_FILL if still else FASTEST_FILL)),
        )
    quiet = job.sustained == 0 and job.rate <= 0
    least = POLL_MIN_CALM if quiet else POLL_MIN
    if job.rate * POLL_MIN > max(available, MIB):
        least = POLL_FAST
    most = POLL_STILL if still and (job.limit_headroom is None or glanced_at) else POLL_MAX
    return min(most, max(least, seconds))


def glances(settings: Settings, job: JobView) -> Glances | None:
    """For a job that holds the same, far below its limit: as often as it would be looked at, at a tenth of the cost. None: it grows,
    is near its limit, where growth is told from breath by the looks, or has none."""
    if not job.still or job.limit_headroom is None or _share_left(settings, job.limit_headroom) < 1:
        return None
    below = _to_the_limit(settings, job.limit_headroom)
    every = min(POLL_MAX, max(POLL_MIN_CALM, below / STILL_FILL))
    return Glances(every, max(GLANCE_LEAST, below // GLANCE_SHARE))


def _to_the_limit(settings: Settings, limit_headroom: int) -> int:
    """Half: eight threads fill 11 GiB/s, and a small limit is crossed within one poll (bench/guard.py)."""
    return (limit_headroom - settings.limit_floor) // 2


def sampling(
    settings: Settings, available: int, limit_headroom: int | None, rate: float, still: bool
) -> tuple[float, bool]:
    """Seconds to the next row, and whether all is calm: sooner as a line comes near or growth (over two seconds) gets there."""
    left = available - settings.floor
    share = left / max(1, settings.margin)
    if limit_headroom is not None:
        left = min(left, limit_headroom)
        share = min(share, _share_left(settings, limit_headroom))
    seconds = left / rate if rate > 0 else float("inf")
    share = min(share, seconds / _SAMPLED_FASTER)
    longest = SAMPLE_STILL if still else SAMPLE_MAX
    return max(SAMPLE_MIN, min(longest, SAMPLE_MAX * share)), share >= 1 and seconds >= _SOON_FULL


def _share_left(settings: Settings, limit_headroom: int) -> float:
    """Of a quarter of the limit: before less than that is left, nothing is done for the limit's sake."""
    return limit_headroom / (settings.limit / 4) if settings.limit else float("inf")
