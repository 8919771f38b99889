"""All rules in, one verdict out: the heaviest claim speaks, the others are ranked beside it."""

from __future__ import annotations

from oomproof.diagnosis.registry import RULES
from oomproof.diagnosis.verdict import (
    PHASES,
    Cause,
    Certainty,
    Kill,
    Remedy,
    Verdict,
    Victim,
    WeightedCause,
)
from oomproof.diagnosis.weights import odds
from oomproof.evidence.facts import CaseFile, KernelKill

_DIGITS = 4
_CAUSE_OF = {
    "CONSTRAINT_MEMCG": "oom-kill-memcg",
    "CONSTRAINT_CPUSET": "oom-kill-cpuset",
    "CONSTRAINT_MEMORY_POLICY": "oom-kill-mempolicy",
}


def judge(case: CaseFile) -> Verdict:
    if case.elsewhere is not None and case.status is None:
        return _verdict(case, [_on_another_host(case)])
    claims = sorted((claim for weigh in RULES for claim in weigh(case)), key=lambda claim: -claim.weight)
    if not claims:
        claims = [_nothing(case)]
    return _verdict(case, claims)


def _verdict(case: CaseFile, claims: list[WeightedCause]) -> Verdict:
    best = claims[0]
    causes = _ranked(claims)
    probability = next(each.probability for each in causes if each.cause == best.cause)
    offset = None
    if case.started is not None and case.started_wall is not None:
        offset = case.started_wall - case.started
    return Verdict(
        run=case.run,
        attempt=case.attempt,
        cause=best.cause,
        certainty=_capped(best.certainty, probability),
        probability=probability,
        headline=best.headline,
        why=best.why,
        next=best.next,
        phase=best.phase if best.phase in PHASES else _phase(case),
        step=best.step if best.step is not None else _step(case),
        victim=best.victim,
        gpu=best.gpu,
        causes=causes,
        evidence=case.evidence,
        kills=tuple(_kill(kill, offset) for kill in _in_order(case)),
        missing=case.missing,
        remedies=_merged(claims, best.cause),
    )


def _phase(case: CaseFile) -> str:
    """As the agent marked it; else as the output shows it."""
    if case.phase in PHASES and case.phase != "unknown":
        return case.phase
    failure = case.output.failure
    told = failure.job.phase if failure is not None else None
    if told is None and case.output.text is not None:
        told = case.output.text.progress.phase
    return told if told in PHASES else "unknown"


def _step(case: CaseFile) -> int | None:
    text = case.output.text
    return case.step if case.step is not None or text is None else text.progress.step


def _ranked(claims: list[WeightedCause]) -> tuple[Cause, ...]:
    """One entry per cause; several claims of one cause add up. Rounded so that the sum is exactly 1."""
    weights: dict[str, float] = {}
    evidence: dict[str, list[str]] = {}
    tests: dict[str, str] = {}
    for claim in claims:
        weights[claim.cause] = weights.get(claim.cause, 0.0) + claim.weight
        known = evidence.setdefault(claim.cause, [])
        known.extend(id for id in claim.evidence if id not in known)
        tests.setdefault(claim.cause, claim.test)
    total = sum(weights.values())
    ordered = sorted(weights, key=lambda cause: (cause != claims[0].cause, -weights[cause]))
    shares = {cause: round(weights[cause] / total, _DIGITS) for cause in ordered}
    shares[ordered[0]] = round(1.0 - sum(shares[cause] for cause in ordered[1:]), _DIGITS)
    return tuple(Cause(cause, shares[cause], tuple(evidence[cause]), tests[cause]) for cause in ordered)


def _capped(certainty: Certainty, probability: float) -> Certainty:
    """A claim that others seriously dispute is not proven, whatever its rule says."""
    if probability < 0.5:
        return "possible"
    if probability < 0.8 and certainty == "proven":
        return "likely"
    return certainty


def _merged(claims: list[WeightedCause], cause: str) -> tuple[Remedy, ...]:
    """Of the verdict's own cause only: advice against a cause that did not happen costs people days."""
    found: list[Remedy] = []
    for claim in claims:
        if claim.cause == cause:
            found.extend(remedy for remedy in claim.remedies if remedy not in found)
    return tuple(found)


def _in_order(case: CaseFile) -> list[KernelKill]:
    return sorted((*case.our_kills, *case.other_kills), key=lambda kill: kill.time)


def _kill(kill: KernelKill, offset: float | None) -> Kill:
    when = kill.time + offset if offset is not None else None
    return Kill(when, _CAUSE_OF.get(kill.constraint or "", "oom-kill-global"), Victim.of(kill))


def _on_another_host(case: CaseFile) -> WeightedCause:
    return WeightedCause(
        "other-error",
        odds("nothing"),
        "possible",
        f"it is on {case.elsewhere}, not visible from here",
        "another machine that shares this folder started it, and no exit status is written: it may still run there",
        f"ask there: ssh {case.elsewhere}, then: oomproof why {case.run}",
    )


def _nothing(case: CaseFile) -> WeightedCause:
    return WeightedCause(
        "other-error",
        odds("nothing"),
        "possible",
        "how it ended is not known",
        "the run's folder holds no exit status and no start, so nothing can be said about the end",
        f"look into {case.folder or 'the run folder'} and start it again with: oomproof run -- CMD",
    )
