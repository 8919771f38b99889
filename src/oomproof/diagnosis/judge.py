"""All evidence in, one verdict out: every rule makes its claims, the heaviest speaks, the others are ranked beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.causes import cause_of, kernel_kill
from oomproof.diagnosis import rules
from oomproof.diagnosis.verdict import (
    PHASES,
    Certainty,
    Command,
    Kill,
    RankedCause,
    Remedy,
    Verdict,
    Victim,
    Weight,
    WeightedCause,
    steps,
)
from oomproof.evidence.case_file import CaseFile, Evidence, KernelKill
from oomproof.records import replace

if TYPE_CHECKING:
    from oomproof.evidence.texts.text_case import TextCase

Rule = Callable[[CaseFile], list[WeightedCause]]

_DIGITS = 4
_UNKNOWN = "other-error"
# A claim that no other disputes is still no more probable than its own word says: "likely" is no 100 %.
_AT_MOST: dict[Certainty, float] = {"proven": 1.0, "likely": 0.95, "possible": 0.8}
_NOTHING = Weight(1, "so that there is always a verdict")


@cache
def all_rules() -> tuple[Rule, ...]:
    """``weigh`` of every file in ``rules/``, by name: of equal weights the first one speaks."""
    names = sorted(file.stem for folder in rules.__path__ for file in Path(folder).glob("[a-z]*.py"))
    return tuple(import_module(f"{rules.__name__}.{name}").weigh for name in names)


def judge(case: CaseFile) -> Verdict:
    """Over the facts of a run, or over texts that have none behind them."""
    if case.exit.elsewhere is not None and case.exit.status is None:
        return _verdict(case, [_on_another_host(case)])
    claims = sorted(
        (claim for weigh in all_rules() for claim in weigh(case)), key=lambda claim: -claim.weight
    )
    return _verdict(case, claims or [_nothing(case)])


def judge_texts(texts: TextCase) -> Verdict:
    """Texts without a run, as ``oomproof why FILE`` reads them. ``not-a-crash`` when none tells of a death."""
    from oomproof.diagnosis.text_claims import claims_of_texts, evidence_of_texts

    claims = sorted(claims_of_texts(texts), key=lambda claim: -claim.weight)
    return _verdict(CaseFile(texts=texts, evidence=evidence_of_texts(texts), missing=texts.missing), claims)


def _verdict(case: CaseFile, claims: list[WeightedCause]) -> Verdict:
    best = claims[0]
    causes = _ranked(claims)
    if case.texts is None:  # of texts the shares are measured ones
        causes = _with_doubt(causes, _AT_MOST[best.certainty])
    probability = causes[0].probability
    return Verdict(
        run=case.run,
        attempt=case.attempt,
        cause=best.cause,
        certainty=_capped(best.certainty, probability),
        probability=probability,
        headline=best.headline,
        why=best.why + _slowed(case, best),
        next_steps=steps(best.next, _checkpoint(case, best)),
        phase=best.phase if best.phase in PHASES else _phase(case),
        step=best.step if best.step is not None else _step(case),
        victim=best.victim,
        gpu=best.gpu,
        causes=best.readings or causes,
        evidence=(*case.evidence, *_corrected_beliefs(case, best)),
        kills=_kills(case),
        missing=case.missing,
        remedies=_merged(claims, best.cause),
        growth=case.samples.growth if cause_of(best.cause).memory and best.culprit is None else None,
        culprit=best.culprit,
    )


def _corrected_beliefs(case: CaseFile, best: WeightedCause) -> list[Evidence]:
    names = case.texts.beliefs if case.texts is not None else case.program.beliefs
    where = "the text" if case.texts is not None else "the script or the kernel's log"
    victim, gpu = best.victim, best.gpu
    held = victim.anon_rss_bytes + (victim.shmem_rss_bytes or 0) if victim and victim.anon_rss_bytes else None
    total_vm = victim.total_vm_bytes if victim else None
    spare, alive = (gpu.reserved_unallocated_bytes, gpu.allocated_bytes) if gpu else (None, None)
    if not names and not total_vm:
        return []
    from oomproof.evidence.texts.beliefs import corrections  # not for a run that ended well

    said = corrections(names, cause_of(best.cause), held, total_vm, spare, alive)
    return [Evidence(f"belief.{at}", where, None, *words) for at, words in enumerate(said, 1)]


def _slowed(case: CaseFile, best: WeightedCause) -> str:
    """Where it died of memory, that is the news, and its limit is spoken of anyhow."""
    return f"; {case.slowed}" if case.slowed and not cause_of(best.cause).memory else ""


def _checkpoint(case: CaseFile, best: WeightedCause) -> str:
    """From where to go on, when the job wrote one: "; resume from out/ckpt.pt at step 40"."""
    saved = [message.text for message in case.agent.told if message.kind == "saved"]
    if cause_of(best.cause).good:
        return ""
    if not saved:
        return f"; resume from {case.agent.checkpoint}" if case.agent.checkpoint else ""
    return f"; resume from {saved[-1].removeprefix('saved ').removesuffix(' at step None')}"


def _phase(case: CaseFile) -> str:
    """As the agent marked it; else as the output shows it."""
    if case.agent.phase in PHASES and case.agent.phase != "unknown":
        return case.agent.phase
    failure = case.output.failure
    told = failure.job.phase if failure is not None else None
    if told is None and case.output.text is not None:
        told = case.output.text.progress.phase
    return told if told in PHASES else "unknown"


def _step(case: CaseFile) -> int | None:
    text = case.output.text
    return case.agent.step if case.agent.step is not None or text is None else text.progress.training_step


def _ranked(claims: list[WeightedCause]) -> tuple[RankedCause, ...]:
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
    return tuple(RankedCause(cause, shares[cause], tuple(evidence[cause]), tests[cause]) for cause in ordered)


def _with_doubt(causes: tuple[RankedCause, ...], most: float) -> tuple[RankedCause, ...]:
    """The first cause at most so probable; the rest is for what nobody thought of."""
    first, rest = causes[0], round(causes[0].probability - most, _DIGITS)
    if rest <= 0 or first.cause == _UNKNOWN:
        return causes
    known = {cause.cause: cause.probability for cause in causes[1:]}
    unknown = RankedCause(_UNKNOWN, round(rest + known.get(_UNKNOWN, 0.0), _DIGITS), (), "")
    others = [cause for cause in causes[1:] if cause.cause != _UNKNOWN]
    return (replace(first, probability=most), *others, unknown)


def _capped(certainty: Certainty, probability: float) -> Certainty:
    """A claim that others seriously dispute is not proven, whatever its rule says."""
    if probability < 0.5:
        return "possible"
    if probability < 0.8 and certainty == "proven":
        return "likely"
    return certainty


def _merged(claims: list[WeightedCause], cause: str) -> tuple[Remedy, ...]:
    """Of the verdict's own cause only: advice against a cause that did not happen costs people days."""
    remedies: list[Remedy] = []
    for claim in claims:
        if claim.cause == cause:
            remedies.extend(remedy for remedy in claim.remedies if remedy not in remedies)
    return tuple(remedies)


def _kills(case: CaseFile) -> tuple[Kill, ...]:
    if case.texts is not None:
        from oomproof.diagnosis.text_claims import kills_in_texts

        return kills_in_texts(case.texts)
    offset = None
    if case.exit.started is not None and case.exit.started_wall is not None:
        offset = case.exit.started_wall - case.exit.started
    sure = [kill for kill in case.kernel.our_kills if kill.sure]
    return tuple(_kill(kill, offset) for kill in sorted(sure, key=lambda kill: kill.time))


def _kill(kill: KernelKill, offset: float | None) -> Kill:
    when = kill.time + offset if offset is not None else None
    return Kill(when, kernel_kill(kill.constraint) or "oom-kill-global", Victim.of(kill))


def _on_another_host(case: CaseFile) -> WeightedCause:
    return WeightedCause(
        "other-error",
        _NOTHING,
        "possible",
        f"it is on {case.exit.elsewhere}, not visible from here",
        "another machine that shares this folder started it, and no exit status is written: it may still run there",
        steps(f"ask there: ssh {case.exit.elsewhere}, then: ", Command(f"oomproof why {case.called}")),
    )


def _nothing(case: CaseFile) -> WeightedCause:
    return WeightedCause(
        "other-error",
        _NOTHING,
        "possible",
        "how it ended is not known",
        "the run's folder has no exit status and no start, so nothing can be said about the end",
        f"look into {case.folder or 'the run folder'} and start it again with: oomproof run -- CMD",
    )
