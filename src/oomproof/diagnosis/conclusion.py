"""The verdict of a run: judged and stored when it ends, or by `oomproof why`; everybody else only reads."""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.stored_verdict import stored_verdict
from oomproof.diagnosis.verdict import Verdict
from oomproof.errors import OomproofError
from oomproof.evidence.case_collector import collect
from oomproof.evidence.case_file import CaseFile
from oomproof.ledger import peak_history
from oomproof.machine.host_identity import host_name
from oomproof.recording import run_folders, run_summary, state_files
from oomproof.recording.run_peak import figures_of
from oomproof.records import dataclass

_ACTIVE = (*run_folders.ALIVE, run_folders.ELSEWHERE)


@dataclass(frozen=True)
class Conclusion:
    verdict: Verdict
    stored: bool  # or judged for this reader alone
    case: CaseFile | None = None  # what it was judged from, where it was just now

    @cached_property
    def as_json(self) -> dict[str, Any]:
        return self.verdict.to_json()

    @property
    def cause(self) -> str:
        return self.verdict.cause

    @property
    def died_of_memory(self) -> bool:
        return cause_of(self.cause).memory


def conclude(run: run_folders.Run) -> Conclusion:
    """Judges a run that has ended, and stores the verdict, its peak and its line of the history."""
    case = collect(run.attempt)
    return _store(run, case, judge(case))


def conclude_once(run: run_folders.Run) -> Conclusion:
    """The stored verdict; judged and stored when nobody did, or when a log was closed to whoever did and is open now. Of a
    run that goes on, how it stands now, not stored."""
    stored = conclusion_of(run)
    if stored is None:
        return Conclusion(judge(collect(run.attempt)), stored=False)
    if not stored.stored:
        return conclude(run)
    if any(gap.how_to_grant for gap in stored.verdict.missing):
        case = collect(run.attempt)
        verdict = judge(case)
        if case.elsewhere is None and verdict.knows_more_than(stored.verdict):
            return _store(run, case, verdict)
    return stored


def conclude_again(run: run_folders.Run) -> tuple[Conclusion, tuple[str, ...]]:
    """Judged anew and stored, unless less can be read now than then: (what stands, the sources that are gone)."""
    before = conclusion_of(run)
    case = collect(run.attempt)
    verdict = judge(case)
    if before is not None and before.stored:
        known = {gap.source for gap in before.verdict.missing}
        if gone := tuple(gap.source for gap in verdict.missing if gap.source not in known):
            return before, gone
    if before is None:
        return Conclusion(verdict, stored=False), ()
    return _store(run, case, verdict), ()


def conclusion_of(run: run_folders.Run) -> Conclusion | None:
    """The stored verdict, or one for this reader alone when nobody has judged; None while the run is active."""
    if (verdict := stored_verdict(run.attempt)) is not None:
        return Conclusion(verdict, stored=True)
    if run.state() in _ACTIVE:
        return None
    return Conclusion(judge(collect(run.attempt)), stored=False)


def _store(run: run_folders.Run, case: CaseFile, verdict: Verdict) -> Conclusion:
    conclusion = Conclusion(verdict, stored=False, case=case)
    if case.elsewhere is not None:
        return conclusion  # its own host knows more: nothing said from here is stored
    if case.status is None and not verdict.evidence:
        return conclusion  # made of nothing: on a full disk the status comes home a moment later
    if not run.is_ours():
        return conclusion  # root looks at a user's run: a file of root's there would be in the user's way
    try:
        state_files.write_json(run.attempt.verdict_file, {**conclusion.as_json, "host": host_name()})
    except OomproofError:
        pass  # a full disk: said on the terminal all the same
    figures = figures_of(run.attempt, conclusion.as_json)
    peak_history.keep(run, figures.peaks.use, figures.peaks.gpu, whole=conclusion.cause == "finished")
    with contextlib.suppress(Exception):  # worth less than the verdict: `oomproof runs` makes it otherwise
        run_summary.keep(run, run_summary.make(run, conclusion.as_json, figures))
    return Conclusion(verdict, stored=True, case=case)
