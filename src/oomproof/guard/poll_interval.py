"""How soon to look again, and how often to record: as the nearest threshold comes near."""

from __future__ import annotations

import os

from oomproof.guard.view import JobView, PolicyInput, Settings, View, headroom, is_near
from oomproof.records import dataclass
from oomproof.units import MIB

# Python's allocator and the kernel's page faults fill about 2 GiB/s per core here and up to 6 GiB/s on fast desktops
# with several threads (earlyoom measured 6000 MiB/s with `stress -m 4`): the poll must be sooner than that.
FASTEST_FILL = 6000 * MIB
# Under a limit, of a job that has not grown for 15 s: looked at in time unless it then fills 3 GiB/s from the first moment on.
STILL_FILL = 1500 * MIB
POLL_MIN, POLL_MAX = 0.01, 1.0
# Of a job that has not grown for 15 s, where even the fastest fill leaves the time, and of one that has held the same for a
# minute: what a guard at rest costs is that it wakes up (a look 0.5 ms, a glance a third of it). In between there are glances.
POLL_STILL = SAMPLE_STILL = 2.0
POLL_CALM = SAMPLE_CALM = 10.0
GLANCE_MAX = 4.0  # seconds; readers do not believe what a run said of itself 5 s ago (ledger/run_usage.py)
# One core wrote 3.1 GiB/s into huge pages, eight 11 GiB/s into small ones (bench/guard.py).
CALM_FILL = max(FASTEST_FILL, 3000 * MIB * min(os.cpu_count() or 1, 6))
# What a glance takes for a change: above the noise of the kernel's own batches (256 KiB a processor), far below any threshold.
GLANCE_LEAST, GLANCE_MOST, GLANCE_SHARE = MIB, 16 * MIB, 64
# Of what the machine has above the margin: were it lost in ten seconds, the rest would last for two minutes.
MACHINE_SHARE = 16
STALLS = 0.02  # share of time: where tasks wait for memory at all, each look counts
POLL_FAST = 0.002  # where the present growth reaches the threshold within POLL_MIN
POLL_MIN_CALM = 0.1  # a job that has not grown for 15 s cannot be worth a hundred wake-ups a second

SAMPLE_MAX, SAMPLE_MIN = 1.0, 0.1  # seconds between recorded rows, calm and thin
# seconds that the present growth leaves: rows reach the disk at once; come faster
_SOON_FULL, _SAMPLED_FASTER = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class Glances:
    """Between two looks: how often the job's own counter and the machine's headroom are read, and by how much they may have
    changed until the next look comes at once."""

    every: float
    change: int  # of the job's counter, up or down
    machine_every: float
    shrink: int  # of the machine's headroom


def poll_seconds(
    settings: Settings,
    machine: View | PolicyInput,
    job: JobView | PolicyInput,
    still: bool = False,
    glanced_at: bool = False,
) -> float:
    """Sleep for as long as the fastest possible fill takes to reach the nearest line. ``glanced_at``: job and machine are watched
    meanwhile."""
    if glanced_at:
        return POLL_CALM if isinstance(job, JobView) and job.calm else POLL_STILL
    available = headroom(settings, machine) - settings.floor
    seconds = available / FASTEST_FILL
    if job.limit_headroom is not None:
        below = _to_the_limit(settings, job.limit_headroom)
        available, seconds = (
            min(available, below),
            min(seconds, below / (STILL_FILL if still else FASTEST_FILL)),
        )
    quiet = job.sustained == 0 and job.rate <= 0
    least = POLL_MIN_CALM if quiet else POLL_MIN
    if job.rate * POLL_MIN > max(available, MIB):
        least = POLL_FAST
    most = POLL_STILL if still and job.limit_headroom is None else POLL_MAX
    return min(most, max(least, seconds))


def glances(settings: Settings, machine: View, job: JobView) -> Glances | None:
    """For a job that holds the same, far from its limit and from the machine's: as often as it would be looked at, at a third of
    the cost. None: it grows, is paused or near a limit, where growth is told from breath by the looks, or others matter now."""
    if not job.still or job.paused or machine.unmanaged or machine.searching or machine.stall > STALLS:
        return None
    available = headroom(settings, machine)
    if is_near(settings, machine.available, machine.swap_free):
        return None
    machine_every = _glance_seconds(available - settings.floor, job.calm)
    shrink = max(GLANCE_LEAST, (available - settings.margin) // MACHINE_SHARE)
    if job.limit_headroom is None:
        return Glances(machine_every, GLANCE_MOST, machine_every, shrink)
    if _share_left(settings, job.limit_headroom) < 1:
        return None
    below = _to_the_limit(settings, job.limit_headroom)
    every = min(POLL_MAX, max(POLL_MIN_CALM, below / STILL_FILL))
    change = min(GLANCE_MOST, max(GLANCE_LEAST, below // GLANCE_SHARE))
    return Glances(min(every, machine_every), change, machine_every, shrink)


def _glance_seconds(available: int, calm: bool) -> float:
    """How long the machine's headroom may go unread: as long as all cores together cannot have filled it."""
    seconds = min(POLL_STILL, max(POLL_MIN_CALM, available / FASTEST_FILL))
    return min(GLANCE_MAX, max(seconds, available / CALM_FILL)) if calm else seconds


def _to_the_limit(settings: Settings, limit_headroom: int) -> int:
    """Half: eight threads fill 11 GiB/s, and a small limit is crossed within one poll (bench/guard.py)."""
    return (limit_headroom - settings.limit_floor) // 2


def sampling(
    settings: Settings,
    available: int,
    limit_headroom: int | None,
    rate: float,
    still: bool,
    calm: bool = False,
) -> tuple[float, bool]:
    """Seconds to the next row, and whether all is calm: sooner as a line comes near or growth (over two seconds) gets there."""
    left = available - settings.floor
    share = left / max(1, settings.margin)
    if limit_headroom is not None:
        left = min(left, limit_headroom)
        share = min(share, _share_left(settings, limit_headroom))
    seconds = left / rate if rate > 0 else float("inf")
    share = min(share, seconds / _SAMPLED_FASTER)
    if calm and share >= 1:
        return SAMPLE_CALM, seconds >= _SOON_FULL
    longest = SAMPLE_STILL if still else SAMPLE_MAX
    return max(SAMPLE_MIN, min(longest, SAMPLE_MAX * share)), share >= 1 and seconds >= _SOON_FULL


def _share_left(settings: Settings, limit_headroom: int) -> float:
    """Of a quarter of the limit: before less than that is left, nothing is done for the limit's sake."""
    return limit_headroom / (settings.limit / 4) if settings.limit else float("inf")
