"""Whether a learned reader's opinion of a post overrules what the rules found in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Protocol

from oomproof.causes import cause_of
from oomproof.diagnosis.text_claims import claims_of_texts
from oomproof.evidence.texts.finding import Finding, JobFacts
from oomproof.evidence.texts.manual_pages import explains
from oomproof.evidence.texts.prose_reader import ToldCause, read_prose
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace

# Set from posts of eight sets, each judged by a reader that had not seen it (docs/accuracy.md). A memory death that never
# happened is the worst answer: such a claim needs a report that is the more probable, and a person who makes it.
_REPORTS_MEMORY = 0.6  # how probable a report must be for the rules' claim of a memory death to stand
_REPORTS = 0.4  # and of any other
_REPORTS_SYSTEM = 0.5  # where the claim rests on the kernel's, a guard's or an engine's own words
_CONFIRMED = 0.7  # a sentence that tells the same, as probable as this, is enough
_REPORTS_TOLD = 0.7  # before a sentence that no rule understood is believed
_TOLD = 0.55
_TOLD_MEMORY = 0.6
_NO_DEATH = "not-a-crash"


class Reading(Protocol):
    @property
    def reports(self) -> float: ...

    @property
    def told(self) -> Sequence[ToldCause]: ...


def second_look(case: TextCase) -> TextCase:
    """The case of a single post as the reader understands it; any other one as it is."""
    reading = read_prose(case.lines) if case.lines else None
    if reading is None or explains(case.lines):  # what manuals name is left out already
        return case
    findings = (*case.system, *case.training)
    cause = claims_of_texts(case)[0].cause
    heard = {finding.job.heard for finding in findings if finding.cause == cause}
    opinion = second_opinion(cause, heard, reading, lambda: _by_a_person(case))
    if opinion is None:
        return case
    if opinion.cause == _NO_DEATH:
        named = next((finding for finding in findings if finding.cause == cause), None)
        talk = tuple(
            replace(finding, job=replace(finding.job, kind="talk", role="noise")) for finding in findings
        )
        progress = replace(case.progress, at_end=False)
        return replace(case, system=(), training=talk, progress=progress, doubted=named)
    return replace(case, training=(*case.training, _finding(case, opinion)))


def _by_a_person(case: TextCase) -> bool:
    from oomproof.evidence.texts.post_deaths import reports_of_a_person  # few texts need its tables

    return reports_of_a_person(case.lines)


def _finding(case: TextCase, told: ToldCause) -> Finding:
    from oomproof.evidence.texts.post_phases import phase_told

    phase = phase_told(case.lines, told.line) or "unknown"
    if told.cause == "nan" and phase in ("unknown", "load"):
        phase = "train"
    facts = JobFacts(heard="told", kind="failure", role="root", phase=phase)
    return Finding(
        told.cause, case.sources[0], told.line, told.sentence[:600], "the post tells of it", 0.45, job=facts
    )


def second_opinion(
    cause: str, heard: Set[str], reading: Reading, by_a_person: Callable[[], bool]
) -> ToldCause | None:
    """``cause`` is the rules', ``heard`` how the text tells it (empty: the kernel or a guard does). None: it stands."""
    if not cause_of(cause).good:
        if reading.reports >= _needed(cause, heard):
            return None
        told = max((told.probability for told in reading.told if told.cause == cause), default=0.0)
        return None if told >= _CONFIRMED else ToldCause(_NO_DEATH, 0, "", 1 - reading.reports)
    if reading.reports < _REPORTS_TOLD:
        return None
    return next((told for told in reading.told if _believed(told, by_a_person)), None)


def _needed(cause: str, heard: Set[str]) -> float:
    if not cause_of(cause).memory:  # an exception's own words are doubted only where they claim the worst
        return 0.0 if heard & {"traceback", "exception"} else _REPORTS
    return _REPORTS_SYSTEM if "" in heard else _REPORTS_MEMORY


def _believed(told: ToldCause, by_a_person: Callable[[], bool]) -> bool:
    if cause_of(told.cause).memory:
        return told.probability > _TOLD_MEMORY and by_a_person()
    return told.probability > _TOLD
