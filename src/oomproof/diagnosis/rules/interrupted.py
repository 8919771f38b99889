"""Ctrl-C: SIGINT, or a KeyboardInterrupt that ended the program."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.deeds import ended_by_us
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not death.failed or ended_by_us(case):
        return []
    error = case.output.errors[-1] if case.output.errors else None
    by_text = error is not None and error.type == "KeyboardInterrupt" and death.signal is None
    if death.signal != signal.SIGINT and not by_text:
        return []
    return [
        WeightedCause(
            "interrupted",
            odds("interrupted"),
            "proven" if death.direct and death.signal == signal.SIGINT else "likely",
            "interrupted with Ctrl-C (SIGINT)",
            f"it ended by {death.phrase}" + ("; Python printed KeyboardInterrupt" if by_text else ""),
            f"to start it again: {command(case)}",
            evidence=case.evidence_from("exit", "output.error"),
            test="the wait status",
        )
    ]
