"""Nobody saw the end: the keeper is gone, the machine is not, and there is no exit status."""

from __future__ import annotations

from oomproof.diagnosis.advice import command, read_output
from oomproof.diagnosis.verdict import Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(300, "the keeper is gone, the machine is not, and nobody saw the end")


def weigh(case: CaseFile) -> list[WeightedCause]:
    if case.exit.status is not None or case.exit.keeper_alive or case.rebooted or case.exit.started is None:
        return []
    if case.exit.adopted:
        return [_of_adopted_run(case)]
    why = "there is no exit status, its keeper is no longer alive, and the machine was not restarted"
    if any(event.kind == "guard-lost" for event in case.keeper_events):
        why += "; the guard had been lost before that"
    return [
        WeightedCause(
            "guard-lost",
            _WEIGHT,
            "likely",
            "the end was not seen: oomproof's keeper was killed together with the job or before it",
            why,
            steps("read what it printed: ", read_output(case), "; to start it again: ", command(case)),
            evidence=case.evidence_from("keeper.", "sample.", "counter."),
            test="sudo dmesg | grep -i 'killed process' shows whether the kernel took the keeper",
        )
    ]


def _of_adopted_run(case: CaseFile) -> WeightedCause:
    return WeightedCause(
        "guard-lost",
        _WEIGHT,
        "likely",
        "it has ended; how is not known: it was adopted while it ran, and only its parent learns the status",
        "there is no exit status; before Linux 6.15 the kernel tells it only to the parent",
        steps("look at its own output; next time from the start: ", command(case)),
        evidence=case.evidence_from("keeper.", "sample.", "counter."),
        test="sudo dmesg | grep -i 'killed process' shows whether the kernel killed it",
    )
