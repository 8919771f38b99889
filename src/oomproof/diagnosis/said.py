"""What the job's own output says of its end: the verdict that ``oomproof why output.log`` would give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.facts import CaseFile

if TYPE_CHECKING:
    from oomproof.evidence.texts.collect import TextCase
    from oomproof.evidence.texts.finding import Finding

_NO_DEATH = ("not-a-crash", "finished")
_KERNELS = ("segfault", "gpf", "xid")


def said(case: CaseFile) -> Verdict | None:
    """None where the output tells of no failure, or was not read."""
    if case.output.text is None:
        return None
    from oomproof.diagnosis.from_texts import judge_texts

    verdict = judge_texts(_of_this_job(case, case.output.text))
    return None if verdict.cause in _NO_DEATH else verdict


def _of_this_job(case: CaseFile, text: TextCase) -> TextCase:
    """A job may print the machine's log: kills and faults of other processes are not its own end."""
    return replace(text, system=tuple(each for each in text.system if _may_be_ours(case, each)))


def _may_be_ours(case: CaseFile, finding: Finding) -> bool:
    kill = finding.cause.startswith("oom-kill-")
    if kill and case.moved.vmstat_oom_kill == 0:
        return False  # the kernel killed nobody while this job ran
    pid = finding.victim.pid if finding.victim is not None else None
    if pid is None or not (kill or finding.cause in _KERNELS):
        return True
    return pid == case.leader or pid in case.processes
