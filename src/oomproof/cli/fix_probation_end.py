"""At the end of a run: changes of `oomproof fix` that waited for it are confirmed, or offered for undo."""

from __future__ import annotations

from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.recording.run_folders import Run, newest_runs
from oomproof.remedies.fix_probation import is_slower, judge_fix, waiting_for
from oomproof.remedies.fix_store import PROBATION
from oomproof.reports.fix_text import standing_text

_LOOKED_AT = 50  # runs, the newest


def note_all_fixes() -> list[str]:
    """Also by runs whose end nobody was there to tell, and by those that have evaluated often enough and still run."""
    sentences = []
    for run in newest_runs(_LOOKED_AT):
        if run.info and waiting_for(run):
            conclusion = conclusion_of(run)
            sentences += note_fixes(run, conclusion.cause if conclusion is not None else None)
    return sentences


def note_fixes(run: Run, cause: str | None) -> list[str]:
    """A sentence for each whose standing it decides; written down with the figures. ``cause``: of its end; None while it runs."""
    sentences = []
    for fix in waiting_for(run):
        stand, figures, before, now = judge_fix(fix, run, cause)
        if stand == PROBATION:
            continue
        fix.note(state=stand, figures=figures, told_by=run.id)
        sentences.append(standing_text(fix, stand, figures, is_slower(before, now)))
    return sentences
