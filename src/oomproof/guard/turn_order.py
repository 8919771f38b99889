"""Whose turn it is when the whole machine runs short: to be paused, to be ended, to resume."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.guard.view import JobView
from oomproof.records import dataclass
from oomproof.units import MIB


@dataclass(frozen=True, slots=True)
class Turns:
    """What the others mean for one job, at one moment."""

    to_end: bool = True  # newest unprotected job whose end would help
    to_pause: bool = False  # the job whose pause would help, newest first
    to_resume: bool = True  # no older job waits to resume
    running: int = 0  # others that are not paused: who can finish and free memory
    waiting: int = 0  # others that their guards have paused: they wait for this one too
    pending: int = 0  # what those that run have yet to take of what is reserved for them
    rate: float = 0.0  # bytes per second that those that run take
    known_rate: float = 0.0  # of that, of those whose need is known and not reached


def turns(me: JobView, others: Sequence[JobView], worth: int, shrink: float, can_push: bool) -> Turns:
    """Newest first, protected last; of those to pause, first the one that reserved nothing.

    A pause stops growth; only with swap to push it out to does it free what a job holds. So without such swap the
    newest *growing* job is the one to pause; with it, or when no job of ours grows, the newest that holds enough.
    """
    grows = max(MIB, shrink / 4)

    def helps(job: JobView) -> bool:
        return job.use >= worth or int(job.rate) >= grows

    def before_me(job: JobView) -> bool:
        """Whose end comes before mine."""
        if job.protected != me.protected:
            return me.protected
        return job.name > me.name

    free = [job for job in (me, *others) if not job.paused and not job.protected]
    growers = [job for job in free if int(job.rate) >= grows]
    holders = [job for job in free if job.use >= worth]
    pool = holders if can_push and holders else growers or holders
    return Turns(
        to_end=not any(helps(job) and before_me(job) for job in others),
        to_pause=bool(pool) and max(pool, key=lambda job: (not job.reserved, job.name)).name == me.name,
        to_resume=not any(job.paused == "guard" and job.name < me.name for job in others),
        running=sum(not job.paused for job in others),
        waiting=sum(job.paused == "guard" for job in others),
        pending=sum(job.pending for job in others if not job.paused),
        rate=sum(max(0.0, job.rate) for job in others if not job.paused),
        known_rate=sum(max(0.0, job.rate) for job in others if not job.paused and job.pending > 0),
    )
