"""SIGSEGV: a bad pointer in native code. The kernel's log names the library, if no handler was set."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.crashes import crash_of, crash_of_another
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.verdict import Certainty, Change, Remedy, Victim, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile

_FAULTHANDLER = ("Fatal Python error: Segmentation fault", "Segmentation fault")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is not None and death.failed and death.signal is None:
        return _of_another(case, death)
    if death is None or death.signal != signal.SIGSEGV:
        return []
    fault = case.our_faults[-1] if case.our_faults else None
    cause = "gpf" if fault is not None and fault.kind == "gpf" else "segfault"
    where = f" in {fault.library}" if fault is not None and fault.library else ""
    crash = crash_of(case, signal.SIGSEGV)
    if crash is not None and crash.line is not None:
        where += f" at {crash.line}"
    said = any(line.startswith(_FAULTHANDLER[0]) for line in case.output.lines[-200:])
    certainty: Certainty = "proven" if death.direct or fault is not None or said else "likely"
    kind = "general protection fault" if cause == "gpf" else "segmentation fault"
    why = f"it ended by {death.phrase}: native code used a bad address, which is no lack of memory by itself"
    if fault is not None and fault.null:
        why += "; the address was a null pointer"
    if crash is not None and crash.frames:
        why += f"; the Python line was {crash.where}"
        next_step = f"look at what {crash.line} hands to native code; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt"
    elif said:
        next_step = f"read the Python stack that faulthandler printed at the end of {case.folder}/output.log"
    else:
        next_step = f"get the Python stack of the crash: PYTHONFAULTHANDLER=1 {command(case)}"
    stack = Remedy(
        "let Python print its stack when it crashes",
        change=Change("env", "PYTHONFAULTHANDLER", after="1"),
        command=f"PYTHONFAULTHANDLER=1 {command(case)}",
    )
    return [
        WeightedCause(
            cause,
            odds(cause),
            certainty,
            f"crashed: {kind}{where}, not an OOM kill",
            why,
            next_step,
            evidence=case.evidence_from("exit", "kernel.fault", "output.", "agent.crash", "agent.position"),
            test="the line 'segfault at' in the kernel log; PYTHONFAULTHANDLER=1 shows the Python line",
            victim=Victim(fault.pid, fault.name) if fault is not None else None,
            remedies=(stack,) if crash is None else (),
        )
    ]


def _of_another(case: CaseFile, death: Death) -> list[WeightedCause]:
    """A rank or a child crashed, and whoever started it gave up."""
    crash = crash_of_another(case, signal.SIGSEGV)
    if crash is None:
        return []
    return [
        WeightedCause(
            "segfault",
            odds("segfault"),
            "likely",
            f"a process of the job crashed: segmentation fault at {crash.line or 'an unknown line'}, not an OOM kill",
            f"it ended by {death.phrase} after its process {crash.pid} died of SIGSEGV; the Python line was {crash.where}",
            f"look at what {crash.line} hands to native code; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt",
            evidence=case.evidence_from("exit", "output.", "agent.crash", "agent.position"),
            test="the same command with one process",
            victim=Victim(crash.pid, ""),
        )
    ]
