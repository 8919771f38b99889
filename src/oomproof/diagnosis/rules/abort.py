"""SIGABRT: the program ended itself. What it said before is told by its own words; here, that it said nothing."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.crashes import crash_of, native_stack
from oomproof.diagnosis.death import death_of, silence
from oomproof.diagnosis.output_claims import output_claims
from oomproof.diagnosis.verdict import Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(400, "SIGABRT is the job's own abort()")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or death.signal != signal.SIGABRT or output_claims(case):
        return []
    headline = "aborted by its own native code, not an OOM kill"
    why = f"it {death.phrase}"
    next_step = steps("get the Python stack of the abort: ", command(case, env="PYTHONFAULTHANDLER=1"))
    if case.program.native:
        next_step = native_stack(case)
    crash = crash_of(case, signal.SIGABRT)
    if crash is not None and crash.frames:
        why += f"; the Python line was {crash.where}"
    if crash is not None and crash.line is not None:
        headline = f"aborted by its own native code at {crash.line}, not an OOM kill"
        next_step = steps(
            f"look at what {crash.line} calls; the whole stack: {case.folder}/agent/{crash.pid}-fault.txt"
        )
    else:
        why += " and did not say why"
    return [
        WeightedCause(
            "abort",
            _WEIGHT,
            "proven" if death.direct else "likely",
            headline,
            f"{why}{silence(case)}",
            next_step,
            evidence=case.evidence_from("exit", "output.", "handler.", "agent.crash", "agent.position"),
            test="a debugger shows the line that led to the abort"
            if case.program.native
            else "PYTHONFAULTHANDLER=1 shows the Python line that led to the abort",
        )
    ]
