"""What the rules of one job go by: its moment, and its turn among the others when the whole machine runs short."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.guard.view import JobState, JobView, PolicyInput, Settings, View, is_near
from oomproof.records import replace
from oomproof.units import MIB

DRAIN_SECONDS = 5.0  # what others take counts over this long


def alone(view: View, job: JobView, can_push: bool = False) -> PolicyInput:
    """The input of a job, as if it were the only one."""
    return PolicyInput(
        t=view.t,
        available=view.available,
        swap_free=view.swap_free,
        stall=view.stall,
        use=job.use,
        rate=job.rate,
        sustained=job.sustained,
        shrink=view.shrink,
        limit_headroom=job.limit_headroom,
        peak_headroom=job.peak_headroom,
        limit_rate=job.limit_rate,
        lasting=job.lasting,
        time_to_full=job.time_to_full,
        paused=job.paused,
        swap=job.swap,
        can_push=can_push,
    )


def input_of(settings: Settings, view: View, job: JobView, state: JobState) -> tuple[PolicyInput, JobState]:
    """The input of one job of ours, and what is remembered of the others."""
    facts = alone(view, job, job.can_push and view.swap_free > settings.floor // 8)
    if not job.paused and not is_near(settings, view.available, view.swap_free):
        return facts, state
    others = (*(candidate for candidate in view.jobs if candidate is not job), *view.others)
    facts = with_turn(facts, job, others, settings.floor // 8)
    waiting = facts.waiting + sum(bool(other.paused) for other in view.unmanaged)
    others_changed = waiting > state.waiting or facts.running > state.running
    changed_at = view.t if others_changed else state.others_changed_at
    near = replace(
        facts,
        # what another job took before it was paused, or a run of ours as it started, is no growth to come
        drain=view.drain if view.t - changed_at > DRAIN_SECONDS else 0.0,
        searching=view.searching,
        pauses=state.done.pauses,
        unmanaged_wait=any(other.paused or other.waited or not other.tie for other in view.unmanaged),
        unmanaged_lives=any(not other.paused and not other.tie for other in view.unmanaged),
        unmanaged_runs=any(other.waited and not other.paused for other in view.unmanaged),
        others_idle=view.others_idle and bool(job.paused),
    )
    if (waiting, near.running, changed_at) == (state.waiting, state.running, state.others_changed_at):
        return near, state
    return near, replace(state, waiting=waiting, running=near.running, others_changed_at=changed_at)


def with_turn(facts: PolicyInput, me: JobView, others: Sequence[JobView], worth: int) -> PolicyInput:
    """Whose turn it is to be paused, ended or resumed: newest first, protected last; of those to pause, first the one that
    reserved nothing. ``worth``: bytes that a job must hold for its end to help.

    A pause stops growth; only with swap to push it out to does it free what a job holds. So without such swap the
    newest *growing* job is the one to pause; with it, or when no job of ours grows, the newest that holds enough.
    """
    grows = max(MIB, max(0.0, facts.shrink) / 4)

    def helps(job: JobView) -> bool:
        return job.use >= worth or int(job.rate) >= grows

    def before_me(job: JobView) -> bool:
        """Whether that job is ended before this one."""
        if job.protected != me.protected:
            return me.protected
        return job.name > me.name

    free = [job for job in (me, *others) if not job.paused and not job.protected]
    growers = [job for job in free if int(job.rate) >= grows]
    holders = [job for job in free if job.use >= worth]
    pool = holders if facts.can_push and holders else growers or holders
    running = [job for job in others if not job.paused]
    return replace(
        facts,
        my_turn=not any(helps(job) and before_me(job) for job in others),
        pause_turn=bool(pool) and max(pool, key=lambda job: (not job.reserved, job.name)).name == me.name,
        resume_turn=not any(job.paused == "guard" and job.name < me.name for job in others),
        running=len(running),
        waiting=sum(job.paused == "guard" for job in others),
        pending=sum(job.pending for job in running),
        runs_rate=sum(max(0.0, job.rate) for job in running),
        known_rate=sum(max(0.0, job.rate) for job in running if job.pending > 0),
    )
