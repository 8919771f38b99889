"""What the job's own output says of its end: the claims that ``oomproof why output.log`` would rest on."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from oomproof.causes import cause_of
from oomproof.diagnosis.advice import died_loading
from oomproof.diagnosis.crashes import crash_of
from oomproof.diagnosis.verdict import PHASES, WeightedCause
from oomproof.evidence.case_file import CaseFile
from oomproof.records import replace

if TYPE_CHECKING:
    from oomproof.evidence.texts.finding import Finding
    from oomproof.evidence.texts.text_case import TextCase


_ABORTED = re.compile(r"(?:\S+: line \d+: +\d+ +)?Aborted\b")


def output_claims(case: CaseFile) -> list[WeightedCause]:
    """The best first; none where the output tells of no failure, or was not read."""
    if case.output.text is None or _is_shells_word(case):
        return []
    from oomproof.diagnosis.text_claims import claims_of_texts

    known = case.agent.phase if case.agent.phase in PHASES and case.agent.phase != "unknown" else None
    if known == "load" and not died_loading(case):
        known = None  # nobody saw its batches
    claims = claims_of_texts(_of_this_job(case, case.output.text), known)
    # output that merely stops says nothing here: how the job ended is known
    return [] if cause_of(claims[0].cause).good or claims[0].cause == "silent-end" else claims


def _is_shells_word(case: CaseFile) -> bool:
    """That it was aborted is known; the line of the crash, as its Python saw it, says more."""
    failure = case.output.failure
    said = failure is not None and _ABORTED.match(failure.text.strip())
    return bool(said) and crash_of(case, signal.SIGABRT) is not None


def _of_this_job(case: CaseFile, text: TextCase) -> TextCase:
    """A job may print the machine's log: kills and faults of other processes are not its own end."""
    text = replace(text, system=tuple(finding for finding in text.system if _may_be_ours(case, finding)))
    if case.agent.step is not None and case.agent.step != text.progress.step:
        # what is printed every tenth step lags behind the agent's record of the same loop
        text = replace(text, progress=replace(text.progress, step=None))
    return text


def _may_be_ours(case: CaseFile, finding: Finding) -> bool:
    cause = cause_of(finding.cause)
    if cause.kernel_kill and case.moved.vmstat_oom_kill == 0:
        return False  # the kernel killed nobody while this job ran
    pid = finding.victim.pid if finding.victim is not None else None
    if pid is None or not (cause.kernel_kill or cause.kernel_fault):
        return True
    return pid == case.samples.leader or pid in case.samples.processes
