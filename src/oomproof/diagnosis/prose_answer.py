"""Whether a learned reader's opinion of a post overrules what the rules found in it."""

from __future__ import annotations

from collections.abc import Set

from oomproof.causes import cause_of
from oomproof.diagnosis.text_claims import claims_of_texts
from oomproof.evidence.texts.finding import Finding, JobFacts
from oomproof.evidence.texts.post_phases import phase_told
from oomproof.evidence.texts.prose_reader import ProseReading, ToldCause, read_prose
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace

# Set from posts of seven sets, each judged by a reader that had not seen it (docs/accuracy.md): how probable a report must
# be for a claim to stand. A memory death that never happened is the worst answer, so it needs the most.
_REPORTS_MEMORY = 0.6
_REPORTS = 0.4
_REPORTS_TRACEBACK = 0.6  # the claim rests on an exception's own words
_REPORTS_SYSTEM = 0.5  # or on the kernel's, a guard's, an engine's
_REPORTS_TOLD = 0.5  # before a sentence that no rule understood is believed
_TOLD = 0.55
_TOLD_MEMORY = 0.6
_NO_DEATH = "not-a-crash"


def second_look(case: TextCase) -> TextCase:
    """The case of a single post as the reader understands it; any other one as it is."""
    reading = read_prose(case.lines) if case.lines else None
    if reading is None:
        return case
    findings = (*case.system, *case.training)
    cause = claims_of_texts(case)[0].cause
    heard = {finding.job.heard for finding in findings if finding.cause == cause}
    opinion = second_opinion(cause, heard, reading)
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


def _finding(case: TextCase, told: ToldCause) -> Finding:
    phase = phase_told(case.lines, told.line) or "unknown"
    if told.cause == "nan" and phase in ("unknown", "load"):
        phase = "train"
    facts = JobFacts(heard="told", kind="failure", role="root", phase=phase)
    return Finding(
        told.cause, case.sources[0], told.line, told.sentence[:600], "the post tells of it", 0.45, job=facts
    )


def second_opinion(cause: str, heard: Set[str], reading: ProseReading) -> ToldCause | None:
    """``cause`` is the rules', ``heard`` how the text tells it (empty: the kernel or a guard does). None: it stands."""
    if not cause_of(cause).good:
        doubted = reading.reports < _needed(cause, heard)
        return ToldCause(_NO_DEATH, 0, "", 1 - reading.reports) if doubted else None
    if reading.reports < _REPORTS_TOLD:
        return None
    return next((told for told in reading.told if told.probability > _told(told.cause)), None)


def _needed(cause: str, heard: Set[str]) -> float:
    needed = _REPORTS_MEMORY if cause_of(cause).memory else _REPORTS
    if "" in heard:
        needed = min(needed, _REPORTS_SYSTEM)
    if heard & {"traceback", "exception"}:
        needed = min(needed, _REPORTS_TRACEBACK)
    return needed


def _told(cause: str) -> float:
    return _TOLD_MEMORY if cause_of(cause).memory else _TOLD
