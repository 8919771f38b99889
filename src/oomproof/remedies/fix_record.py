"""What of a run a change is judged by, read from its recording; and the changes that wait for such a run."""

from __future__ import annotations

from typing import Any

from oomproof.causes import cause_of
from oomproof.evidence.planned_end import planned_end
from oomproof.leaf.command_lines import command_key
from oomproof.recording.attempt import Attempt
from oomproof.recording.phase_spans import phase_rows, seconds_per_step
from oomproof.recording.run_folders import Run
from oomproof.recording.run_peak import figures_of
from oomproof.remedies.fix_probation import Figures, Standing, figures_from, standing
from oomproof.remedies.fix_store import OFFERED, PROBATION, Fix, list_fixes


def figures_of_attempt(attempt: Attempt) -> tuple[Figures, int]:
    """(its figures, how often it evaluated)"""
    peaks = figures_of(attempt).peaks
    with attempt.recording().series() as series:
        marks = series.phase_marks()
        rows = phase_rows(series)
        end = planned_end(series, marks, marks[-1].t if marks else 0.0)
    entered = sum(row.entered for row in rows if row.name == "eval")
    figures = Figures(
        peaks.use, peaks.gpu, seconds_per_step(marks), end.epoch_steps if end is not None else None
    )
    return figures, entered


def key_of(run: Run) -> str:
    """The same for runs of the same command."""
    return command_key(run.argv, str(run.info.get("cwd") or "")) if run.argv else ""


def waiting_for(run: Run) -> list[Fix]:
    """Changes on probation that this run tells about: the same command, begun after them."""
    key = key_of(run)
    return [
        fix
        for fix in list_fixes()
        if fix.state in (PROBATION, OFFERED)
        and fix.manifest.get("key") == key
        and float(fix.manifest.get("applied") or 0.0) <= float(run.started().get("wall") or 0.0)
    ]


def judge_fix(fix: Fix, run: Run, cause: str | None) -> tuple[Standing, str, Figures, Figures]:
    """(how it stands, the figures in words, before, now). ``cause``: of its end; None while it runs."""
    before = figures_from(_dict(fix.manifest.get("before")))
    now, evaluations = figures_of_attempt(run.attempt)
    kind = cause_of(cause) if cause is not None else None
    stand, words = standing(
        before,
        now,
        ended=kind is not None,
        well=kind is None or kind.good,
        of_memory=kind is not None and kind.memory,
        evaluations=evaluations,
    )
    return stand, words, before, now


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
