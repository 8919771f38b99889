"""Ctrl-C: SIGINT. A KeyboardInterrupt that ended the program with a code is told by its own words."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.lost_worker import hung_after_kill
from oomproof.diagnosis.rule_weights import Weight
from oomproof.diagnosis.stopping_actions import ended_by_us
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(500, "SIGINT or KeyboardInterrupt: Ctrl-C")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or ended_by_us(case):
        return []
    if death.signal != signal.SIGINT or hung_after_kill(case):
        return []
    return [
        WeightedCause(
            "interrupted",
            _WEIGHT,
            "proven" if death.direct else "likely",
            "interrupted with Ctrl-C (SIGINT)",
            f"it {death.phrase}",
            f"to start it again: {command(case)}",
            evidence=case.evidence_from("exit", "output."),
            test="the wait status",
        )
    ]
