"""A person ended it: through oomproof, or by asking the keeper to end (a logout, kill, systemctl stop)."""

from __future__ import annotations

import signal

from oomproof.diagnosis.advice import command
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.deeds import guard_stop, keeper_was_asked, user_stop
from oomproof.diagnosis.verdict import Certainty, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile

_ENDED = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT)


def weigh(case: CaseFile) -> list[WeightedCause]:
    death = death_of(case)
    if death is None:
        return []
    deed = user_stop(case)
    if deed is not None:
        why = f"you ran {deed.why or 'oomproof stop'}; it ended by {death.phrase}"
        return [_claim(case, "user.deed", "proven", "stopped by you", why)]
    if (
        guard_stop(case) is None
        and death.signal in _ENDED
        and keeper_was_asked(case)
        and not case.shutdown_wall
        and not case.going_down
    ):
        why = (
            f"the keeper was sent SIGTERM (kill, a logout, systemctl stop) and ended the job: {death.phrase}"
        )
        if case.rebooted:
            why += "; the machine has booted since, so it may have been a shutdown"
        headline = "stopped from outside: somebody asked oomproof's keeper to end"
        return [_claim(case, "keeper.sigterm", "likely", headline, why)]
    return []


def _claim(case: CaseFile, weight: str, certainty: Certainty, headline: str, why: str) -> WeightedCause:
    return WeightedCause(
        "stopped-by-user",
        odds(weight),
        certainty,
        headline,
        why,
        f"to start it again: {command(case)}",
        evidence=case.evidence_from("action.", "keeper.", "exit"),
        test="actions.jsonl and keeper.jsonl in the run's folder",
    )
