"""An unmanaged job that fills the machine: it is paused before a run of ours is touched for its sake, and resumed after.

A pause is undone, a death is not. The rules are those of a run's own pause (detect_pause, detect_resume); it is ended only
where its user allowed that.
"""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.guard.detect_pause import PARTS, PAUSE_STALLED, after_pause, pause_is_due, turn_floor
from oomproof.guard.detect_resume import (
    HEADROOM_SECONDS,
    RESUME_INTERVAL,
    SETTLE,
    SOON,
    after_resume,
    update_pause,
    while_paused,
)
from oomproof.guard.policy_input import alone
from oomproof.guard.view import (
    NONE,
    STALLED,
    Action,
    ActionHistory,
    Figures,
    JobKey,
    JobView,
    PolicyInput,
    Settings,
    UnmanagedView,
    View,
    headroom,
    shortage,
)
from oomproof.leaf.action_kinds import (
    KILL,
    KILL_UNMANAGED,
    LAST_TURN,
    NOTHING,
    OWN_GROWTH,
    PAUSE_UNKNOWN,
    PAUSE_UNMANAGED,
    RESUME,
    RESUME_UNMANAGED,
    TERM,
    TERM_UNMANAGED,
    TURN,
)
from oomproof.records import replace

_OTHERS_FIRST = 60.0  # seconds; a run is resumed five seconds after the one before it
_LONG_WAIT = 30.0  # seconds
_NEXT_LOOK = 1.0  # seconds until a job that has just begun to grow is seen again, at the latest
# Seconds that nobody runs before one has its turn, twice as long before each next turn: where several are paused, and where only this one is and
# somebody who holds and does not grow may end
_TURN_WAIT, _TURN_WAIT_ALONE = 5.0, 15.0
_MOST_DOUBLINGS = 6
_KINDS = {RESUME: RESUME_UNMANAGED, TERM: TERM_UNMANAGED, KILL: KILL_UNMANAGED}

Pauses = Mapping[JobKey, ActionHistory]


def decide(
    settings: Settings, view: View, pauses: Pauses
) -> tuple[list[Action], dict[JobKey, ActionHistory]]:
    """Settings are those of the guard that looks. One job is paused at a time, the one that grows most; they resume oldest
    first, one after the other."""
    settings = replace(settings, pause_max=longest(settings), need=None, protected=False)
    actions: list[Action] = []
    remembered: dict[JobKey, ActionHistory] = {}
    for job in sorted(view.unmanaged, key=_age, reverse=True):  # the oldest runs longest
        done = pauses.get(job.key, ActionHistory())
        facts = _input(settings, view, job, done)
        action = NONE
        if job.paused == "guard" or done.paused_at is not None:
            bar = done.resume_headroom
            done = update_pause(settings, facts, _after_a_while(settings, view.t, done), None)
            # without a run unmanaged jobs may need the rest among themselves: see _may_try
            done = replace(done, for_ours=done.for_ours and bool(facts.running), for_unmanaged=False)
            if done.paused_at is not None:
                action = while_paused(settings, facts, done)
                if action.kind == NOTHING and _may_try(settings, view, facts, job, pauses):
                    stuck = _is_stuck(settings, view, done)
                    waited: Figures = {"waited": view.t - done.paused_at}
                    action = Action(RESUME, LAST_TURN if stuck else TURN, waited, "machine", gave_up=stuck)
            elif job.paused == "guard":  # a pause that was made and not noted: nobody would end it
                action = Action(RESUME, PAUSE_UNKNOWN, scope="machine", gave_up=True)
            done = replace(done, resume_headroom=bar)
        elif may_pause(settings, view, job, done):
            if pause_is_due(_last_one(settings, view, facts, job, done), facts):
                action = Action(PAUSE_UNMANAGED, OWN_GROWTH, _growth(facts), "machine")
                view = _with_pause(view, job)
        else:
            action = _end(settings, view, facts, job, done)
        since = (done.paused_elsewhere or view.t) if job.paused == "other" else None
        if since != done.paused_elsewhere:
            done = replace(done, paused_elsewhere=since)
        if action.kind != NOTHING:
            kind = _KINDS.get(action.kind, action.kind)
            actions.append(replace(action, kind=kind, unmanaged=job, facts=facts))
        remembered[job.key] = done
    gave_up = {key: done for key, done in pauses.items() if done.gave_up and key not in remembered}
    return actions, {**gave_up, **remembered}


def _after_a_while(settings: Settings, t: float, done: ActionHistory) -> ActionHistory:
    """Nobody may ever give back what it asks for: those who hold it may be paused too. Then a third of what is above the floor
    is enough, about a second of its growth; it is paused again at the same threshold."""
    if done.paused_at is None or t - done.paused_at < _LONG_WAIT:
        return done
    above = max(0, done.resume_headroom - settings.floor)
    return replace(done, resume_headroom=settings.floor + above // 3)


def _may_try(settings: Settings, view: View, facts: PolicyInput, job: UnmanagedView, pauses: Pauses) -> bool:
    """Whether a paused job is let run although its headroom is not there: no run and nobody who was let run like this is left
    to free any; runs that are paused too wait for the same. It may have loaded all it needs; if it grows on, it is paused again and waits twice as
    long."""
    done = pauses.get(job.key, ActionHistory())
    if done.paused_at is None or facts.running or not _is_oldest(view, job) or settings.watch_only:
        return False
    if done.headroom_since is not None and not facts.resume_turn:
        return False  # a paused run is about to have it
    if any(not other.paused and pauses.get(other.key, ActionHistory()).pauses for other in view.unmanaged):
        return False
    stuck = _is_stuck(settings, view, done)
    if (view.available <= settings.floor / PARTS[-1] and not stuck) or view.stall > PAUSE_STALLED:
        return False
    doublings = min(_MOST_DOUBLINGS, max(0, done.pauses - 1))
    paused = sum(bool(other.paused) for other in view.unmanaged) + sum(
        bool(run.paused) for run in view.others
    )
    turn: float = (_TURN_WAIT if paused > 1 else _TURN_WAIT_ALONE) * 2**doublings
    wait = max(turn, _LONG_WAIT) if stuck else turn
    return done.alone_since is not None and view.t - done.alone_since >= wait


def _is_stuck(settings: Settings, view: View, done: ActionHistory) -> bool:
    """All wait for each other, and the first has had its turns, or nothing is left for one: a pause would only keep them all for an hour. A run of
    ours is no part of it, unless its end would free next to nothing: then nobody ends it either (detect_resume.STUCK_SECONDS)."""
    had_its_turns = done.pauses > len(PARTS) or view.available <= settings.floor / PARTS[-1]
    hold_nothing = all(run.paused and run.use < settings.floor / 8 for run in (*view.jobs, *view.others))
    return hold_nothing and had_its_turns


def longest(settings: Settings) -> float:
    """Seconds that such a pause may last."""
    return min(settings.pause_max, settings.unmanaged_pause_max)


def carried_out(settings: Settings, action: Action, pauses: Pauses) -> dict[JobKey, ActionHistory]:
    """What is remembered after an action."""
    assert action.unmanaged is not None and action.facts is not None
    key, facts = action.unmanaged.key, action.facts
    done = pauses.get(key, ActionHistory())
    if action.kind == PAUSE_UNMANAGED:
        done = after_pause(replace(settings, pause_max=longest(settings), need=None), facts, done)
    else:
        done = after_resume(done, action.gave_up or action.kind != RESUME_UNMANAGED)
    if action.kind == TERM_UNMANAGED:
        done = replace(done, term_at=facts.t)
    elif action.kind == KILL_UNMANAGED:
        done = replace(done, killed_at=facts.t)
    others = {other: state for other, state in pauses.items() if other != key}
    if action.kind == RESUME_UNMANAGED:  # the next must see what this one takes
        since = facts.t + RESUME_INTERVAL - HEADROOM_SECONDS
        others = {
            other: state if state.headroom_since is None else replace(state, headroom_since=since)
            for other, state in others.items()
        }
    return {**others, key: done}


def failed(action: Action, pauses: Pauses) -> dict[JobKey, ActionHistory]:
    """It could not be paused: then it is left alone, and the ladder of our own jobs continues."""
    assert action.unmanaged is not None
    key = action.unmanaged.key
    return {**pauses, key: replace(pauses.get(key, ActionHistory()), gave_up=True)}


def may_pause(settings: Settings, view: View, job: UnmanagedView, done: ActionHistory) -> bool:
    if settings.watch_only or settings.pause_max <= 0 or not settings.pause_unmanaged:
        return False
    if job.tie or job.paused or done.gave_up:
        return False
    will_hold = job.use + job.rate * _NEXT_LOOK
    return job.rate > 0 and job.rate >= view.shrink / 4 and will_hold >= settings.floor / 8


def spares_ours(settings: Settings, view: View, pauses: Pauses) -> bool:
    """Whether our own jobs are left alone for now: the one that fills the machine is being looked for, can still be paused,
    was paused a moment ago, or is paused and nothing fills the machine any more."""
    left = headroom(settings, view)
    can_wait = left > settings.floor / 2  # below, it should have been paused and was not
    if can_wait and view.searching and settings.pause_unmanaged and settings.pause_max > 0:
        return True
    if can_wait and any(
        may_pause(settings, view, job, pauses.get(job.key, ActionHistory())) for job in view.unmanaged
    ):
        return True
    return paused_elsewhere_now(view, pauses) or pause_is_enough(settings, view, pauses)


def paused_elsewhere_now(view: View, pauses: Pauses) -> bool:
    """Whether another guard paused an unmanaged job a moment ago: the effect is still to be seen."""
    paused = (pauses.get(job.key, ActionHistory()).paused_elsewhere for job in view.unmanaged)
    return any(since is not None and view.t - since < SETTLE for since in paused)


def pause_is_enough(settings: Settings, view: View, pauses: Pauses) -> bool:
    """Whether an unmanaged job was paused a moment ago, or is paused and nothing fills the machine any more."""
    for job in view.unmanaged:
        paused_at = pauses.get(job.key, ActionHistory()).paused_at
        just_now = paused_at is not None and view.t - paused_at < SETTLE
        if job.paused and (just_now or not _is_pressing(settings, view, headroom(settings, view))):
            return True
    return False


def _is_pressing(settings: Settings, view: View, left: int) -> bool:
    """Whether the pause was not enough: next to nothing is left, the machine does nothing but swap, or somebody else
    still fills it. A shell that starts a program, a few MiB in a moment, does not."""
    if left <= settings.floor / 8 or (view.stall > STALLED and view.available <= settings.floor):
        return True
    lasting = min(view.shrink, view.drain)
    return lasting > 0 and left - lasting * SOON <= settings.floor / 4


def _end(
    settings: Settings, view: View, facts: PolicyInput, job: UnmanagedView, done: ActionHistory
) -> Action:
    """One that could not be paused, or whose pause did not help, and that fills the machine. Only where that is allowed."""
    if (
        not settings.may_end_unmanaged
        or settings.watch_only
        or job.tie
        or job.paused
        or done.killed_at is not None
    ):
        return NONE
    left = headroom(settings, view)
    if view.shrink <= 0 or job.rate < view.shrink / 4 or left > settings.floor / 2:
        return NONE
    unanswered = done.term_at is not None and view.t - done.term_at >= settings.grace
    if unanswered or left <= settings.floor / 4:
        return Action(KILL, OWN_GROWTH, _growth(facts), "machine")
    return Action(TERM, OWN_GROWTH, _growth(facts), "machine") if done.term_at is None else NONE


def _input(settings: Settings, view: View, job: UnmanagedView, done: ActionHistory) -> PolicyInput:
    runs = (*view.jobs, *view.others)
    paused = "guard" if job.paused == "guard" else ""
    seen = JobView(job.name, job.use, job.rate, paused, sustained=job.rate, swap=job.swap)
    return replace(
        alone(view, seen),
        drain=view.drain,
        my_turn=settings.may_end_unmanaged,
        resume_turn=not _waits_for_runs(view, job, done) and _is_oldest(view, job),
        running=sum(not run.paused for run in runs),
        pending=sum(run.pending for run in runs if not run.paused),
        others_idle=view.others_idle if job.uid is None else job.uid in view.idle_users,
    )


def _last_one(
    settings: Settings, view: View, facts: PolicyInput, job: UnmanagedView, done: ActionHistory
) -> Settings:
    """One that runs alone while all others wait for it may take half of the floor, and more at each turn: it may be nearly done, and if nobody may go
    on, one of them has to die."""
    others = [other for other in view.unmanaged if other.key != job.key]
    is_alone = not any(other.rate > 0 and not other.paused for other in others)
    is_first = any(other.paused for other in others) and _is_oldest(view, job)
    if facts.running or not is_alone or not (is_first or done.pauses):
        return settings
    return replace(settings, floor=turn_floor(settings.floor, done.pauses))


def _with_pause(view: View, job: UnmanagedView) -> View:
    """As it will be when that job is paused."""
    unmanaged = tuple(replace(other, paused="guard") if other is job else other for other in view.unmanaged)
    return replace(view, unmanaged=unmanaged)


def _is_oldest(view: View, job: UnmanagedView) -> bool:
    """Of those that this guard has paused."""
    return not any(other.paused == "guard" and _age(other) < _age(job) for other in view.unmanaged)


def _age(job: UnmanagedView) -> tuple[int, int]:
    pid, start = job.key
    return start, pid


def _waits_for_runs(view: View, job: UnmanagedView, done: ActionHistory) -> bool:
    """Runs that their guards paused are resumed first: they were there before. Those of other users have a minute for it from
    when there is headroom: what they say of themselves is theirs to say, and must not keep somebody else waiting."""
    paused = [run for run in (*view.jobs, *view.others) if run.paused == "guard"]
    if any(run.uid is None or run.uid == job.uid for run in paused):
        return True
    return bool(paused) and done.headroom_since is not None and view.t - done.headroom_since < _OTHERS_FIRST


def _growth(facts: PolicyInput) -> Figures:
    return {**shortage(facts), "rate": facts.rate}
