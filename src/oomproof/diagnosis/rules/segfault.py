"""SIGSEGV: a bad pointer in native code. The kernel's log names the library, if no handler was set."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.verdict import Certainty, Change, Remedy, Victim, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile

_FAULTHANDLER = "Fatal Python error: Segmentation fault"


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or death.signal != signal.SIGSEGV:
        return []
    fault = next((each for each in reversed(case.our_faults) if each.kind in ("segfault", "gpf")), None)
    cause = "gpf" if fault is not None and fault.kind == "gpf" else "segfault"
    where = f" in {fault.library}" if fault is not None and fault.library else ""
    said = _faulthandler(case)
    certainty: Certainty = "proven" if death.direct or fault is not None or said else "likely"
    kind = "general protection fault" if cause == "gpf" else "segmentation fault"
    why = f"it ended by {death.phrase}: native code used a bad address, which is no lack of memory by itself"
    if fault is not None and fault.null:
        why += "; the address was a null pointer"
    if said:
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
            evidence=case.evidence_from("exit", "kernel.fault", "output."),
            test="the line 'segfault at' in the kernel log; PYTHONFAULTHANDLER=1 shows the Python line",
            victim=Victim(fault.pid, fault.name) if fault is not None else None,
            remedies=(stack,),
        )
    ]


def _faulthandler(case: CaseFile) -> bool:
    text = case.output.text
    return text is not None and any(_FAULTHANDLER in each.text for each in text.training)
