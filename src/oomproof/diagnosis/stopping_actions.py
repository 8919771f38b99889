"""Which of our own actions ended the job: the last one that could have, near enough to the end."""

from __future__ import annotations

import signal

from oomproof.evidence.case_file import Action, CaseFile, ExitStatus

_SIGNAL_WINDOW = 60.0  # after SIGTERM or SIGKILL a job is gone within its grace time; slow disks take longer
_ASK_WINDOW = 600.0  # saving a large checkpoint takes minutes (100 GB at 200 MB/s: 8)
_KEEPER_WINDOW = 120.0  # the keeper passes a SIGTERM on at once and waits out the grace time
_ENDING = ("ask", "term", "kill")


def _stop(case: CaseFile, by: str) -> Action | None:
    status = case.status
    if status is None or status.boottime is None:
        return None
    grace = case.settings.grace or 0.0
    withdrawn = False
    found: list[Action] = []
    for action in reversed(case.actions):
        withdrawn = withdrawn or (action.by == by and action.action == "withdraw")
        if action.by != by or action.action not in _ENDING or (withdrawn and action.action == "ask"):
            continue
        answered = action.action == "ask" and case.stop_answer != "none"
        window = _ASK_WINDOW + 2 * grace if answered else _SIGNAL_WINDOW + grace
        if status.boottime - window <= action.boottime <= status.boottime + 1.0:
            found.append(action)
    # a SIGKILL that met a job already dying of SIGTERM ended nothing
    return next((action for action in found if _fits(action.action, status)), found[0] if found else None)


def _fits(action: str, status: ExitStatus) -> bool:
    """Whether a job may end so by that action: a signal ends it as itself, or as a shell's 128+N."""
    number = status.signal if status.signal is not None else (status.code or 0) - 128
    if action == "kill" or number == signal.SIGKILL:
        return action == "kill" and number == signal.SIGKILL
    return action == "term" or number != signal.SIGTERM


def ignored_request(case: CaseFile) -> Action | None:
    """The guard's request to stop that the job never looked at: its end, later, was its own."""
    asked = [action for action in case.actions if action.by == "guard" and action.action == "ask"]
    return asked[-1] if asked and case.stop_answer == "none" and guard_stop(case) is None else None


def guard_stop(case: CaseFile) -> Action | None:
    return _stop(case, "guard")


def user_stop(case: CaseFile) -> Action | None:
    return _stop(case, "user")


def passed_on(case: CaseFile, name: str) -> bool:
    """Whether `oomproof run` itself was sent this signal near the end: it hands them to the job."""
    end = case.status.boottime if case.status is not None else None
    window = _SIGNAL_WINDOW + (case.settings.grace or 0.0)
    return any(
        action.action == "signal" and action.why == name and (end is None or end - window <= action.boottime)
        for action in case.actions
    )


def reader_went_away(case: CaseFile) -> bool:
    """Nobody read its output any more (`| head`), and that is what it ended of."""
    if not passed_on(case, "SIGPIPE") or case.status is None or case.kernel_killed:
        return False
    failure = case.output.failure
    broken = failure is None or failure.job.exception == "BrokenPipeError"
    return case.status.signal == signal.SIGPIPE or (case.status.code not in (None, 0) and broken)


def ended_by_us(case: CaseFile) -> bool:
    """Whether guard or user ended it, so that its last error or signal is only how it obeyed."""
    stop = guard_stop(case) or user_stop(case)
    if stop is None or case.kernel_killed:
        return False
    failure = case.output.failure
    if stop.action != "ask" or failure is None:
        return True
    # asked, and it answered with an error: its own story unless the error is the asking itself
    return failure.cause == "interrupted" or _exited_cleanly(case)


def _exited_cleanly(case: CaseFile) -> bool:
    return case.status is not None and case.status.code == 0


def paused(case: CaseFile) -> tuple[float, bool]:
    """(seconds it was paused in all its finished pauses, whether it is paused now): no hang, but our own doing."""
    events = [(action.boottime, action.action) for action in case.actions]
    events += [(event.boottime, event.kind) for event in case.keeper_events if event.boottime is not None]
    total, since = 0.0, None
    for at, what in sorted(events):
        if what == "freeze":
            since = at if since is None else since
        elif what in ("thaw", "term", "kill") and since is not None:
            total, since = total + at - since, None
    return total, since is not None


def keeper_was_asked(case: CaseFile) -> bool:
    """A ``sigterm`` event near the last sign of life."""
    last = case.last_sign
    return any(
        event.kind == "sigterm"
        and (event.boottime is None or last is None or event.boottime >= last - _KEEPER_WINDOW)
        for event in case.keeper_events
    )
