"""The reader of the job's output went away, as after `| head`: a closed pipe, and nothing wrong with the job."""

from __future__ import annotations

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.rule_weights import Weight
from oomproof.diagnosis.stopping_actions import ended_by_us, reader_went_away
from oomproof.diagnosis.verdict import WeightedCause
from oomproof.evidence.case_file import CaseFile

_CLOSED = Weight(
    800, "our own write failed because nobody read any more, and the job then met the closed pipe"
)


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or not reader_went_away(case) or ended_by_us(case):
        return []
    return [
        WeightedCause(
            "interrupted",
            _CLOSED,
            "proven",
            "the reader of its output went away (as `| head` does when it has enough)",
            f"nobody read the pipe that `oomproof run` writes to; the job met the closed pipe and {death.phrase}",
            f"if it should go on without a reader, send its output to a file: {command(case)} > out.log",
            evidence=case.evidence_from("exit", "action.", "output."),
            test="the other end of the pipe",
        )
    ]
