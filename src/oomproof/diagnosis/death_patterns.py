"""Several deaths of one job in, what they have in common and what that rules out. Pure; says its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from oomproof.diagnosis.coincidence import none_of
from oomproof.diagnosis.pattern_changes import changes
from oomproof.diagnosis.pattern_facts import Ending, Gaps, MemoryAtEnd, Patterns, Statement, moments
from oomproof.diagnosis.pattern_states import state_patterns
from oomproof.diagnosis.pattern_steps import gaps, step_patterns
from oomproof.evidence import run_settings

__all__ = ["Ending", "Gaps", "MemoryAtEnd", "Patterns", "Statement", "find_patterns"]


def find_patterns(endings: Sequence[Ending], given: Mapping[str, int] | None = None) -> Patterns:
    """``given``: intervals the user names (``{"eval": 50}``); they win over those found in the settings."""
    endings, others = _of_one_job(endings)
    dated = bool(moments(endings))
    ordered = tuple(endings)
    if dated:
        ordered = tuple(sorted(endings, key=lambda ending: (ending.wall or 0.0, ending.since_boot or 0.0)))
    deaths = [ending for ending in ordered if ending.died]
    intervals: dict[str, int] = {}
    for death in deaths:
        for kind, number in run_settings.intervals(death.settings).items():
            intervals.setdefault(kind, number)
    intervals.update({kind: number for kind, number in (given or {}).items() if number > 1})
    if len(deaths) < 2:
        told = "only one death" if deaths else "no death"
        caution = f"{told}: a pattern needs at least two"
        return Patterns(ordered, intervals=intervals, caution=caution, others=others)
    untested: list[tuple[str, str]] = []
    statements = [*step_patterns(deaths, intervals, untested), *state_patterns(deaths, untested)]
    order = {"tied": 0, "excluded": 1, "open": 2}
    return Patterns(
        ordered,
        tuple(sorted(statements, key=lambda statement: order[statement.found])),
        tuple(changes(ordered)),
        gaps(deaths, intervals),
        intervals,
        tuple(untested),
        _caution(len(deaths), dated),
        others,
    )


def _of_one_job(endings: Sequence[Ending]) -> tuple[list[Ending], tuple[Ending, ...]]:
    """(endings of the job in question, those of others): runs' own logs before what a system's log tells; there the
    program that died most often, and of those the one that died last."""
    counts = Counter(ending.job for ending in endings)
    newest = {ending.job: (ending.wall or 0.0, at) for at, ending in enumerate(endings)}
    job = "" if "" in counts else max(counts, key=lambda job: (counts[job], newest[job]), default="")
    others = [ending for ending in endings if ending.job != job]
    return (
        [ending for ending in endings if ending.job == job],
        tuple(sorted(others, key=lambda ending: (ending.wall or 0.0, ending.since_boot or 0.0))),
    )


def _caution(deaths: int, dated: bool) -> str:
    text = ""
    if deaths < 10:
        missed = none_of(deaths, 1 / 3)
        text = (
            f"with {deaths} deaths little is certain: a cause behind one death in three would show in none of "
            f"them {missed:.0%} of the time, and deaths need not all have one cause"
        )
    if not dated:
        text += ("; " if text else "") + "not every ending has a date, so they stand in the order given"
    return text
