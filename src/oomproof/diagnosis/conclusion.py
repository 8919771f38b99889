"""The verdict of a run: judged and stored when it ends, or by `oomproof why`; everybody else only reads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from oomproof.causes import cause_of
from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.errors import OomproofError
from oomproof.evidence.case_collector import collect
from oomproof.evidence.case_file import CaseFile
from oomproof.ledger import peak_history
from oomproof.machine.host_identity import host_name
from oomproof.recording import run_folders, run_summary, state_files
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.recording.run_peak import figures_of
from oomproof.records import dataclass


def verdict_of(attempt: Attempt) -> Verdict:
    return stored_verdict(attempt) or judge(collect(attempt))


def stored_verdict(attempt: Attempt) -> Verdict | None:
    """None where nobody has judged, or what was written down is damaged, of another version or mistaken."""
    kept = attempt.verdict()
    if not _is_whole(kept.get("verdict")) or _is_mistaken(kept, attempt):
        return None
    try:
        return from_json(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_mistaken(kept: Mapping[str, Any], attempt: Attempt) -> bool:
    """Whether another host than the run's wrote down that its machine went down: that only its own can know."""
    head = kept.get("verdict")
    if not isinstance(head, dict) or head.get("cause") != "machine-down":
        return False
    run = Run(attempt.run_folder)
    return run.elsewhere() is not None and kept.get("host") != run.info.get("host")


def _is_whole(verdict: object) -> bool:
    """What the tables show of a stored verdict is there; a damaged one is judged anew."""
    if not isinstance(verdict, dict):
        return False
    victim = verdict.get("victim")
    sizes = (
        [value for name, value in victim.items() if name.endswith("_bytes")]
        if isinstance(victim, dict)
        else []
    )
    return (
        all(isinstance(verdict.get(name), str) for name in ("cause", "headline", "why"))
        and (victim is None or isinstance(victim, dict))
        and all(size is None or isinstance(size, int) for size in sizes)
    )


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
        if case.exit.elsewhere is None and verdict.knows_more_than(stored.verdict):
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
    if case.exit.elsewhere is not None:
        return conclusion  # its own host knows more: nothing said from here is stored
    if case.exit.status is None and not verdict.evidence:
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
