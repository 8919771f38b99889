"""SIGABRT: the program ended itself. What it said before is told by its own words; here, that it said nothing."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.handlers import silence
from oomproof.diagnosis.said import said
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or death.signal != signal.SIGABRT or said(case) is not None:
        return []
    return [
        WeightedCause(
            "abort",
            odds("abort"),
            "proven" if death.direct else "likely",
            "aborted by its own native code, not an OOM kill",
            f"it ended by {death.phrase} and did not say why{silence(case)}",
            f"get the Python stack of the abort: PYTHONFAULTHANDLER=1 {command(case)}",
            evidence=case.evidence_from("exit", "output.", "handler."),
            test="PYTHONFAULTHANDLER=1 shows the Python line that led to the abort",
        )
    ]
