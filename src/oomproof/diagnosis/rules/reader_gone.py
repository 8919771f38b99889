"""What its output goes to took no more: a reader that went away, as after `| head`, or a full disk. The job met a closed pipe."""

from __future__ import annotations

import errno
import os

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import Death, death_of
from oomproof.diagnosis.stopping_actions import ended_by_us, output_lost, output_lost_before
from oomproof.diagnosis.verdict import Certainty, Weight, WeightedCause, steps
from oomproof.evidence.case_file import Action, CaseFile
from oomproof.leaf.action_kinds import SIGNAL

_CLOSED = Weight(800, "our own write failed, and the job then met the closed pipe")
_SOON = Weight(40, "its output could not be written seconds before, and the job failed without a word")
_BEFORE = Weight(
    15, "its output could not be written some time before: what prints meets the pipe at its next line"
)
_SECONDS = 5.0  # a training prints a line in that time
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None or ended_by_us(case):
        return []
    if (closed := output_lost(case)) is not None:
        return [_claim(case, death, closed, _CLOSED, "proven")]
    if (closed := output_lost_before(case)) is None:
        return []
    end = case.exit.status.boottime if case.exit.status is not None else None
    soon = end is not None and end - closed.boottime <= _SECONDS
    return [_claim(case, death, closed, _SOON if soon else _BEFORE, "possible")]


def _claim(
    case: CaseFile, death: Death, closed: Action, weight: Weight, certainty: Certainty
) -> WeightedCause:
    met = (
        "the job wrote into the closed pipe"
        if certainty == "proven"
        else "the job may have failed because of it"
    )
    evidence = case.evidence_from("exit", "action.", "output.")
    perhaps = "" if certainty == "proven" else "perhaps "
    if closed.action == SIGNAL:
        return WeightedCause(
            "interrupted",
            weight,
            certainty,
            f"{perhaps}the reader of its output went away (as `| head` does when it has enough)",
            f"nobody read the pipe that `oomproof run` writes to; {met} and {death.phrase}",
            steps(
                "if it should continue without a reader, send its output to a file: ",
                command(case, output="out.log"),
            ),
            evidence=evidence,
            test="the other end of the pipe",
        )
    return WeightedCause(
        "disk-full" if closed.why in _FULL else "other-error",
        weight,
        certainty,
        f"{perhaps}its output could not be written: {closed.why}",
        f"what it printed could not be written ({closed.why}); {met} and {death.phrase}",
        steps("free space where its output goes, or send it elsewhere: ", command(case, output="out.log")),
        evidence=evidence,
        test="df -h, and df -i, of the file its output goes to",
    )
