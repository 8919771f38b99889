"""Which crash that Python saw belongs to a death, and how to see the line of a program that is no Python."""

from __future__ import annotations

import shlex
import signal

from oomproof.evidence.agent_files import Crash
from oomproof.evidence.case_file import CaseFile

_KINDS = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "Aborted",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating point exception",
    signal.SIGILL: "Illegal instruction",
}
_RECENT = 60.0  # seconds before the end


def crash_of(case: CaseFile, number: int) -> Crash | None:
    """The stack that goes with this signal: the leader's own, else that of the last process that died so."""
    kind = _KINDS.get(signal.Signals(number)) if number in set(signal.Signals) else None
    crashes = [crash for crash in case.crashes if crash.kind == kind]
    own = [crash for crash in crashes if crash.pid == case.leader]
    return (own or crashes)[-1] if crashes else None


def crash_of_another(case: CaseFile, number: int) -> Crash | None:
    """The leader only failed because this process of it crashed moments before."""
    end = case.status.wall if case.status is not None else None
    crash = crash_of(case, number)
    if crash is None or crash.pid == case.leader:
        return None
    return crash if end is None or crash.wall is None or 0 <= end - crash.wall + 1 <= _RECENT else None


def native_stack(case: CaseFile) -> str:
    """What to type for the line of a compiled program."""
    return f"get the stack of the crash: gdb -batch -ex run -ex bt --args {shlex.join(case.argv)}"
