"""Whether the kernel's kill of one process explains the end of the whole job."""

from __future__ import annotations

import re
import signal

from oomproof.causes import cause_of
from oomproof.diagnosis.stopping_actions import guard_stop, user_stop
from oomproof.evidence.case_file import CaseFile

_RECENT = 60.0  # a worker killed longer before the end than this is only one of two stories
_LOST_WORKER = re.compile(
    r"worker|BrokenProcessPool|terminated abruptly|exit ?code:? -?9\b|SIGKILL|[Kk]illed|EOFError|Broken pipe"
    r"|Connection (?:reset|refused)|ConnectionResetError|BrokenPipeError|ChildProcessError"
)


def told(case: CaseFile) -> str | None:
    """What the job's own process found when its loader failed, in PyTorch's words; None when no worker was lost."""
    end = case.status.boottime if case.status else None
    messages = [message for message in case.told if message.kind == "worker-lost"]
    if not messages or (end is not None and end - messages[-1].t > _RECENT):
        return None
    return messages[0].text


def hung_after_kill(case: CaseFile) -> bool:
    """A person ended a job that made no step since the kernel had killed one of its processes: what waits for that
    one (multiprocessing.Pool) waits for ever."""
    status = case.status
    if not case.may_be_kernel_killed or status is None:
        return False
    if guard_stop(case) is not None or user_stop(case) is not None:
        return False  # the signal was ours
    failure = case.output.failure
    interrupted = failure is not None and failure.cause == "interrupted"
    if status.signal not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) and not interrupted:
        return False
    last_kill = case.our_kills[-1].time if case.our_kills else None
    return last_kill is None or case.step_time is None or case.step_time <= last_kill


def explains_the_end(case: CaseFile) -> bool:
    """For an exit that was not itself a SIGKILL: a kill shortly before, and no error that speaks of
    something else."""
    if not case.may_be_kernel_killed:
        return False
    if hung_after_kill(case):
        return True
    end = case.status.boottime if case.status else None
    if case.our_kills and end is not None and end - case.our_kills[-1].time > _RECENT:
        return False
    failure = case.output.failure
    if failure is None or cause_of(failure.cause).lost_process:
        return True
    if any(kill.pid in failure.pids for kill in case.our_kills):
        return True
    return _LOST_WORKER.search(failure.text) is not None
