"""Which crash that Python saw belongs to a death, and how to see the line of a program that is no Python."""

from __future__ import annotations

import re
import shlex
import signal

from oomproof.diagnosis.advice import command_line
from oomproof.diagnosis.smaller_command import find_argument, with_value
from oomproof.diagnosis.verdict import Change, Command, Remedy, Steps, steps
from oomproof.evidence.agent_files import Crash
from oomproof.evidence.case_file import CaseFile
from oomproof.leaf.command_lines import needs_its_shell, shell_line, shell_words

_KINDS = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "Aborted",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating point exception",
    signal.SIGILL: "Illegal instruction",
}
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([A-Za-z]\w*)[/\\]")
_TYPED = 160  # characters of a command line that is still typed
_RECENT = 60.0  # seconds before the end


def crash_of(case: CaseFile, number: int) -> Crash | None:
    """The stack that goes with this signal: the leader's own, else that of the last process that died so."""
    kind = _KINDS.get(signal.Signals(number)) if number in set(signal.Signals) else None
    crashes = [crash for crash in case.agent.crashes if crash.kind == kind]
    own = [crash for crash in crashes if crash.pid == case.samples.leader]
    return (own or crashes)[-1] if crashes else None


def crash_of_another(case: CaseFile, number: int) -> Crash | None:
    """The leader only failed because this process of it crashed moments before."""
    end = case.exit.status.wall if case.exit.status is not None else None
    crash = crash_of(case, number)
    if crash is None or crash.pid == case.samples.leader:
        return None
    return crash if end is None or crash.wall is None or 0 <= end - crash.wall + 1 <= _RECENT else None


def native_stack(case: CaseFile) -> Steps:
    """What to type for the line of a compiled program."""
    return steps(
        "get the stack of the crash: ", Command(f"gdb -batch -ex run -ex bt --args {shlex.join(case.argv)}")
    )


def crash_remedies(case: CaseFile, crash: Crash | None, own: bool = True) -> tuple[Remedy, ...]:
    """What there is to try on a crash in native code, by what is known of this one. ``own``: it was the leader's."""
    return (
        *_without_preload(case),
        *_other_version(crash),
        *_without_workers(case),
        *(_native_frames(case) if own else ()),
    )


def _without_preload(case: CaseFile) -> tuple[Remedy, ...]:
    preload = case.environment.get("LD_PRELOAD")
    if not preload:
        return ()
    line = command_line(case)
    return (
        Remedy(
            f"without LD_PRELOAD={preload}: it puts that library into every process of the job",
            command=None if line is None else f"env -u LD_PRELOAD {line}",
            change=Change("env", "LD_PRELOAD", before=preload),
        ),
    )


def _other_version(crash: Crash | None) -> tuple[Remedy, ...]:
    """Of the package whose code made the call; of the standard library there is none."""
    package = _PACKAGE.search(crash.frames[0].file) if crash is not None and crash.frames else None
    if package is None:
        return ()
    title = f"another version of {package[1]}, in whose code it crashed; what is built against it must fit it"
    return (Remedy(title, change=Change("system", package[1])),)


def _without_workers(case: CaseFile) -> tuple[Remedy, ...]:
    argument = find_argument(case.argv)
    if (argument is None and case.program.loader is not True) or (
        argument is not None and argument.value == 0
    ):
        return ()
    title = "no loader workers (num_workers=0): if it then lives, something in it does not bear fork()"
    if argument is None:
        return (Remedy(title, change=Change("code", "num_workers", after="0")),)
    change = Change("argument", argument.name, before=str(argument.value), after="0")
    return (
        Remedy(title, command=command_line(case, argv=with_value(case.argv, argument, 0)), change=change),
    )


def _native_frames(case: CaseFile) -> tuple[Remedy, ...]:
    if case.exit.status is not None and case.exit.status.core:
        title = "it left a core dump: gdb PROGRAM CORE, then bt, shows the native function; the file lies where this says"
        return (Remedy(title, command="cat /proc/sys/kernel/core_pattern"),)
    # of a shell it would be the shell
    line = shell_line(case.argv)
    if line is not None and needs_its_shell(line):
        return ()
    words = shlex.join(shell_words(case.argv) or (case.argv if line is None else ()))
    if not words or "\n" in words or len(words) > _TYPED:
        return ()
    title = "see which native function it was in, with a debugger"
    return (Remedy(title, command=f"gdb -batch -ex run -ex bt --args {words}"),)
