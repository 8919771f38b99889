"""Ctrl-C: SIGINT. A KeyboardInterrupt that ended the program with a code is told by its own words."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.stopping_actions import ended_by_us, hung_after_kill, interrupted
from oomproof.diagnosis.verdict import Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile

_WEIGHT = Weight(500, "SIGINT or KeyboardInterrupt: Ctrl-C")


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or ended_by_us(case):
        return []
    if hung_after_kill(case):
        return []
    if death.signal != signal.SIGINT:
        return _by_code(case, death)
    return [
        WeightedCause(
            "interrupted",
            _WEIGHT,
            "proven" if death.direct else "likely",
            "interrupted with Ctrl-C (SIGINT)",
            f"it {death.phrase}",
            steps("to start it again: ", command(case)),
            evidence=case.evidence_from("exit", "output."),
            test="the wait status",
        )
    ]


def _by_code(case: CaseFile, death: Death) -> list[WeightedCause]:
    """A launcher, or a handler of the job's own, turns Ctrl-C into an exit code; whatever else it prints is how it stopped."""
    failure = case.output.failure
    if death.signal is not None or not interrupted(case):
        return []
    if failure is not None and failure.cause != "interrupted":
        return []
    return [
        WeightedCause(
            "interrupted",
            _WEIGHT,
            "proven",
            "interrupted with Ctrl-C (SIGINT)",
            f"oomproof run was interrupted and passed it on; it {death.phrase}",
            steps("to start it again: ", command(case)),
            evidence=case.evidence_from("exit", "action.", "output."),
            test="what oomproof passed on: oomproof runs show",
        )
    ]
