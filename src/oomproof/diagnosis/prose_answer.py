"""Whether a learned reader's opinion of a post overrules what the rules found in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from oomproof.causes import cause_of
from oomproof.diagnosis.text_claims import claims_of_texts
from oomproof.evidence.texts.finding import Finding, JobFacts
from oomproof.evidence.texts.manual_pages import explains
from oomproof.evidence.texts.post_deaths import TITLE, names_a_full_gpu
from oomproof.evidence.texts.prose_reader import ToldCause, read_prose
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace

# Set from posts of eleven sets, each judged by a reader that had not seen it (docs/accuracy.md). A memory death that never
# happened is the worst answer: the reader doubts such claims, and only such, and makes none.
_REPORTS = 0.6  # how probable a report must be for the rules' claim of a memory death to stand
_REPORTS_SYSTEM = 0.5  # where it rests on the kernel's, a guard's or an engine's own words
_CONFIRMED = 0.7  # a sentence that tells the same, as probable as this, is enough
_REPORTS_TOLD = 0.7  # before a sentence that no rule understood is believed
_TOLD = 0.55
_NO_DEATH = "not-a-crash"


class Reading(Protocol):
    @property
    def reports(self) -> float: ...

    @property
    def told(self) -> Sequence[ToldCause]: ...


class Claim(NamedTuple):
    """The rules'. ``system``: the kernel, a guard or an engine says it; ``figures``: in numbers, which no reader doubts."""

    cause: str
    system: bool = False
    figures: bool = False


def second_look(case: TextCase) -> TextCase:
    """The case of a single post as the reader understands it; any other one as it is."""
    reading = read_prose(case.lines) if case.lines else None
    if reading is None or explains(case.lines):  # what manuals name is left out already
        return case
    findings = (*case.system, *case.training)
    cause = claims_of_texts(case)[0].cause
    same = [finding for finding in findings if finding.cause == cause]
    claim = Claim(cause, any(not finding.job.heard for finding in same), any(map(_has_figures, same)))
    opinion = second_opinion(claim, reading)
    if opinion is None:
        return case
    if opinion.cause == _NO_DEATH and not case.of_change and _titled_by_it(case, cause):
        return case
    if opinion.cause == _NO_DEATH:
        talk = tuple(
            replace(finding, job=replace(finding.job, kind="talk", role="noise")) for finding in findings
        )
        progress = replace(case.progress, at_end=False)
        return replace(case, system=(), training=talk, progress=progress, doubted=next(iter(same), None))
    if case.of_change or any(finding.cause == _NO_DEATH for finding in case.system):
        return case  # a change speaks of others' deaths, and the kernel says itself that it only waited
    return replace(case, training=(*case.training, _finding(case, opinion)))


def _titled_by_it(case: TextCase, cause: str) -> bool:
    """Nobody calls a post "CUDA out of memory" without having met it."""
    title = case.lines[0][1]
    return cause_of(cause).gpu and title.startswith(TITLE) and names_a_full_gpu(title[len(TITLE) :])


def _has_figures(finding: Finding) -> bool:
    held = finding.victim is not None and finding.victim.anon_rss is not None
    return held or finding.gpu is not None or finding.job.requested is not None


def _finding(case: TextCase, told: ToldCause) -> Finding:
    from oomproof.evidence.texts.post_phases import phase_told

    phase = phase_told(case.lines, told.line) or "unknown"
    if told.cause == "nan" and phase in ("unknown", "load"):
        phase = "train"
    facts = JobFacts(heard="told", kind="failure", role="root", phase=phase)
    return Finding(
        told.cause,
        case.sources[0],
        told.line,
        told.sentence[:600],
        "the post tells of a failure",
        0.45,
        job=facts,
    )


def second_opinion(claim: Claim, reading: Reading) -> ToldCause | None:
    """What to say in place of the rules' claim. None: it stands."""
    cause = cause_of(claim.cause)
    if not cause.good:
        needed = _REPORTS_SYSTEM if claim.system else _REPORTS
        if not cause.memory or claim.figures or reading.reports >= needed:
            return None
        told = max((told.probability for told in reading.told if told.cause == claim.cause), default=0.0)
        return None if told >= _CONFIRMED else ToldCause(_NO_DEATH, 0, "", 1 - reading.reports)
    if reading.reports < _REPORTS_TOLD or not reading.told:
        return None
    told_cause = reading.told[0]
    believed = told_cause.probability > _TOLD and not cause_of(told_cause.cause).memory
    return told_cause if believed else None
