"""Nobody saw the end: the keeper is gone, the machine is not, and there is no exit status."""

from __future__ import annotations

from oomproof.diagnosis.advice import command, read_output
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile


def weigh(case: CaseFile) -> list[WeightedCause]:
    if case.status is not None or case.keeper_alive or case.rebooted or case.started is None:
        return []
    why = "there is no exit status, its keeper is no longer alive, and the machine was not restarted"
    if any(event.kind == "guard-lost" for event in case.keeper_events):
        why += "; the guard had been lost before that"
    return [
        WeightedCause(
            "guard-lost",
            odds("guard-lost"),
            "likely",
            "nobody saw the end: oomproof's keeper was killed together with the job or before it",
            why,
            f"read what it printed: {read_output(case)}; to start it again: {command(case)}",
            evidence=case.evidence_from("keeper.", "sample.", "counter."),
            test="sudo dmesg | grep -i 'killed process' shows whether the kernel took the keeper",
        )
    ]
