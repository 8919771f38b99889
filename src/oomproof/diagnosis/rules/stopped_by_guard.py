"""Our own guard ended it: actions.jsonl says so, and the end came within the time the deed allows."""

from __future__ import annotations

from oomproof.diagnosis.advice import command, neighbours, smaller_job, twin
from oomproof.diagnosis.death import death_of
from oomproof.diagnosis.deeds import ended_by_us, guard_stop
from oomproof.diagnosis.verdict import Certainty, WeightedCause
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import Action, CaseFile

_TOLD = {
    "ask": "asked to save and stop",
    "term": "ended with SIGTERM",
    "kill": "killed with SIGKILL",
}


def weigh(case: CaseFile) -> list[WeightedCause]:
    death, deed = death_of(case), guard_stop(case)
    if death is None or deed is None:
        return []
    weight, certainty = _weight(case, deed)
    headline = f"stopped by oomproof's guard: {_TOLD[deed.action]}"
    if deed.action == "ask" and not death.failed:
        headline = "stopped by oomproof's guard: asked to save and stop, and it did"
    end = case.status.boottime if case.status else None
    later = f"{max(0.0, end - deed.boottime):.1f} s later " if end is not None else ""
    why = f"{deed.why or 'memory was about to run out'}; {later}it ended by {death.phrase}"
    return [
        WeightedCause(
            "stopped-by-guard",
            weight,
            certainty,
            headline,
            why,
            f"see what holds memory: oomproof check; halve batch or workers, then {command(case)}",
            evidence=case.evidence_from("action.", "exit", "counter.memcg_oom_kill", "sample."),
            test="actions.jsonl in the run's folder",
            remedies=(
                *(twin(case) + neighbours(case) if case.settings.limit is None else ()),
                *smaller_job(case),
            ),
        )
    ]


def _weight(case: CaseFile, deed: Action) -> tuple[float, Certainty]:
    if case.kernel_killed:
        return odds("guard.and-kernel"), "possible"
    if not ended_by_us(case):  # asked, and answered with an error of its own, which then tells the story
        return odds("guard.asked-then-failed"), "possible"
    return odds("guard.asked" if deed.action == "ask" else "guard.deed"), "proven"
