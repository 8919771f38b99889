"""A person ended it: through oomproof, or by asking the keeper to end (a logout, kill, systemctl stop)."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.stopping_actions import guard_stop, keeper_was_asked, user_stop
from oomproof.diagnosis.verdict import Certainty, Weight, WeightedCause, steps
from oomproof.evidence.case_file import CaseFile
from oomproof.leaf.action_kinds import REQUEST, TERM

_OOMPROOF_STOP = Weight(800, "the record of oomproof stop, and the job ended within the grace time")
_KEEPER_SIGTERM = Weight(300, "the keeper was asked to end and passed it on")

_ENDED = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT)


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None:
        return []
    stop = user_stop(case)
    if stop is not None:
        why = f"you ran {stop.why or 'oomproof stop'}; it {death.phrase}"
        # one that handles SIGTERM, or that nobody saw listen, may have been at its end anyhow
        unseen = stop.action == TERM or (stop.action == REQUEST and case.stop_answer != "heard")
        sure: Certainty = "likely" if unseen and death.code == 0 else "proven"
        return [_claim(case, _OOMPROOF_STOP, sure, "stopped by you", why)]
    if (
        guard_stop(case) is None
        and death.signal in _ENDED
        and keeper_was_asked(case)
        and not case.exit.shutdown_wall
        and not case.exit.going_down
    ):
        why = f"the keeper was sent SIGTERM (kill, a logout, systemctl stop) and passed it on: the job {death.phrase}"
        if case.rebooted:
            why += "; the machine has booted since, so it may have been a shutdown"
        headline = "stopped from outside: somebody asked oomproof's keeper to end"
        return [_claim(case, _KEEPER_SIGTERM, "likely", headline, why)]
    return []


def _claim(case: CaseFile, weight: Weight, certainty: Certainty, headline: str, why: str) -> WeightedCause:
    return WeightedCause(
        "stopped-by-user",
        weight,
        certainty,
        headline,
        why,
        steps("to start it again: ", command(case)),
        evidence=case.evidence_from("action.", "keeper.", "exit"),
        test="actions.jsonl and keeper.jsonl in the run's folder",
    )
