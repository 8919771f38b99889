"""Which of our own actions ended the job: the last one that could have, near enough to the end."""

from __future__ import annotations

import re
import signal

from oomproof.causes import cause_of
from oomproof.evidence.case_file import Action, CaseFile, ExitStatus
from oomproof.leaf.action_kinds import (
    INTERRUPT,
    KILL,
    OUTPUT_LOST,
    PAUSE,
    REQUEST,
    RESUME,
    SIGNAL,
    TERM,
    WITHDRAW,
)

_SIGNAL_WINDOW = 60.0  # after SIGTERM or SIGKILL a job is gone within its grace time; slow disks take longer
_ASK_WINDOW = 600.0  # saving a large checkpoint takes minutes (100 GB at 200 MB/s: 8)
_LEAVING = 5.0  # from the last line of a program to its exit status
_KEEPER_WINDOW = 120.0  # the keeper passes a SIGTERM on at once and waits out the grace time
_ENDING = (REQUEST, TERM, KILL)


def _stop(case: CaseFile, by: str) -> Action | None:
    status = case.exit.status
    if status is None or status.boottime is None:
        return None
    grace = case.limits.settings.grace or 0.0
    withdrawn = False
    found: list[Action] = []
    for action in reversed(case.actions):
        withdrawn = withdrawn or (action.by == by and action.action == WITHDRAW)
        if action.by != by or action.action not in _ENDING or (withdrawn and action.action == REQUEST):
            continue
        if action.action == REQUEST and by == "guard" and case.stop_answer == "none":
            continue  # nothing in it listens: a whole result must not be taken for half a one
        if status.code == 0 and (action.action == KILL or action.uncaught):
            continue  # it was on its way when the job had finished: such a signal leaves no exit code
        window = _ask_window(case, grace) if action.action == REQUEST else _SIGNAL_WINDOW + grace
        if status.boottime - window <= action.boottime <= status.boottime + 1.0:
            found.append(action)
    # a SIGKILL that met a job already dying of SIGTERM ended nothing
    return next((action for action in found if _fits(action.action, status)), found[0] if found else None)


def _fits(action: str, status: ExitStatus) -> bool:
    """Whether a job may end so by that action: a signal ends it as itself, or as a shell's 128+N."""
    number = status.signal if status.signal is not None else (status.code or 0) - 128
    if action == KILL or number == signal.SIGKILL:
        return action == KILL and number == signal.SIGKILL
    return action == TERM or number != signal.SIGTERM


def _ask_window(case: CaseFile, grace: float) -> float:
    """How long after the request an end may be its answer. Where nobody knows whether it listens, its time to save."""
    if case.stop_answer in ("heard", "may"):
        return _ASK_WINDOW + 2 * grace
    return grace + _LEAVING if case.stop_answer == "unknown" else _SIGNAL_WINDOW + grace


def ignored_request(case: CaseFile) -> Action | None:
    """The guard's request to stop that the job never looked at: its end, later, was its own."""
    asked = [action for action in case.actions if action.by == "guard" and action.action == REQUEST]
    return asked[-1] if asked and case.stop_answer == "none" and guard_stop(case) is None else None


def guard_stop(case: CaseFile) -> Action | None:
    return _stop(case, "guard")


def user_stop(case: CaseFile) -> Action | None:
    return _stop(case, "user")


def passed_on(case: CaseFile, name: str) -> bool:
    """Whether `oomproof run` itself was sent this signal near the end: it hands them to the job."""
    end = case.exit.status.boottime if case.exit.status is not None else None
    window = _SIGNAL_WINDOW + (case.limits.settings.grace or 0.0)
    return any(
        action.action == SIGNAL
        and action.why == name
        and (end is None or end - window <= action.boottime <= end)
        for action in case.actions
    )


def interrupted(case: CaseFile) -> bool:
    """Whether somebody pressed Ctrl-C near the end: `oomproof run` hands it to the job."""
    end = case.exit.status.boottime if case.exit.status is not None else None
    window = _SIGNAL_WINDOW + (case.limits.settings.grace or 0.0)
    return any(
        action.action == INTERRUPT and (end is None or end - window <= action.boottime <= end)
        for action in case.actions
    )


def output_lost(case: CaseFile) -> Action | None:
    """What our own write of its output failed of (`| head`, a full disk), where that is what the job ended of."""
    return _closed(case) if _met_a_closed_pipe(case) else None


def output_lost_before(case: CaseFile) -> Action | None:
    """The same for a job that failed later without a word: many a program meets a closed pipe so, and many another end."""
    failed = case.exit.status is not None and case.exit.status.code not in (None, 0)
    return _closed(case) if failed and case.output.failure is None and not case.kernel_killed else None


def _closed(case: CaseFile) -> Action | None:
    end = case.exit.status.boottime if case.exit.status is not None else None
    window = _SIGNAL_WINDOW + (case.limits.settings.grace or 0.0)
    for action in reversed(case.actions):
        reader_gone = action.action == SIGNAL and action.why == "SIGPIPE"
        if (reader_gone or action.action == OUTPUT_LOST) and (end is None or end - window <= action.boottime):
            return action
    return None


def _met_a_closed_pipe(case: CaseFile) -> bool:
    """By its signal, also as a shell hands it on, or by its own words."""
    status, failure = case.exit.status, case.output.failure
    if status is None or case.kernel_killed:
        return False
    if status.signal == signal.SIGPIPE or status.code == 128 + signal.SIGPIPE:
        return True
    if status.code in (None, 0):
        return False
    if failure is not None:
        return failure.job.exception == "BrokenPipeError"
    return case.output.last_line.endswith("Broken pipe")


def ended_by_us(case: CaseFile) -> bool:
    """Whether guard or user ended it, so that its last error or signal is only how it obeyed."""
    stop = guard_stop(case) or user_stop(case)
    if stop is None or case.kernel_killed:
        return False
    failure = case.output.failure
    if stop.action != REQUEST or failure is None:
        return True
    # asked, and it answered with an error: its own story unless the error is the asking itself
    return failure.cause == "interrupted" or _exited_cleanly(case)


def _exited_cleanly(case: CaseFile) -> bool:
    return case.exit.status is not None and case.exit.status.code == 0


def paused(case: CaseFile) -> tuple[float, bool]:
    """(seconds it was paused in all its finished pauses, whether it is paused now): no hang, but our own doing."""
    events = [(action.boottime, action.action) for action in case.actions]
    events += [(event.boottime, event.kind) for event in case.keeper_events if event.boottime is not None]
    total, since = 0.0, None
    for at, what in sorted(events):
        if what == PAUSE:
            since = at if since is None else since
        elif what in (RESUME, TERM, KILL) and since is not None:
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


_RECENT = 60.0  # a worker killed longer before the end than this is only one of two stories
_LOST_WORKER = re.compile(
    r"worker|BrokenProcessPool|terminated abruptly|exit ?code:? -?9\b|SIGKILL|[Kk]illed|EOFError|Broken pipe"
    r"|Connection (?:reset|refused)|ConnectionResetError|BrokenPipeError|ChildProcessError"
)


def told(case: CaseFile) -> str | None:
    """What the job's own process found when its loader failed, in PyTorch's words; None when no worker was lost."""
    end = case.exit.status.boottime if case.exit.status else None
    messages = [message for message in case.agent.told if message.kind == "worker-lost"]
    if not messages or (end is not None and end - messages[-1].t > _RECENT):
        return None
    return messages[0].text


def hung_after_kill(case: CaseFile) -> bool:
    """A person ended a job that made no step since the kernel had killed one of its processes: what waits for that
    one (multiprocessing.Pool) waits for ever."""
    status = case.exit.status
    if not case.may_be_kernel_killed or status is None:
        return False
    if guard_stop(case) is not None or user_stop(case) is not None:
        return False  # the signal was ours
    failure = case.output.failure
    interrupted = failure is not None and failure.cause == "interrupted"
    if status.signal not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and not interrupted:
        return False
    last_kill = case.kernel.our_kills[-1].time if case.kernel.our_kills else None
    return last_kill is None or case.agent.step_time is None or case.agent.step_time <= last_kill


def explains_the_end(case: CaseFile) -> bool:
    """For an exit that was not itself a SIGKILL: a kill shortly before, and no error that speaks of
    something else."""
    if not case.may_be_kernel_killed:
        return False
    if hung_after_kill(case):
        return True
    end = case.exit.status.boottime if case.exit.status else None
    if case.kernel.our_kills and end is not None and end - case.kernel.our_kills[-1].time > _RECENT:
        return False
    failure = case.output.failure
    if failure is None or cause_of(failure.cause).lost_process:
        return True
    if any(kill.pid in failure.pids for kill in case.kernel.our_kills):
        return True
    return _LOST_WORKER.search(failure.text) is not None
