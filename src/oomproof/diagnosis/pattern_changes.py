"""What changed between the runs, and whether the deaths began before or after it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomproof.diagnosis.coincidence import more_after
from oomproof.diagnosis.pattern_facts import Ending, Statement, excluded, tied
from oomproof.diagnosis.pattern_steps import percent

_CODE = {"script_sha256": "the script", "git_commit": "the commit", "git_diff_sha256": "uncommitted changes"}
_MOST = 6  # of one step from run to run; a rewrite of everything is told as such


def changes(endings: Sequence[Ending]) -> list[Statement]:
    """One statement for each place in the row of runs where something changed; what changed together there
    cannot be told apart."""
    changed = []
    for at in range(1, len(endings)):
        told = _difference(endings[at - 1], endings[at], endings[: at - 1])
        if told:
            changed.append(_weighed(told, endings[:at], endings[at:]))
    return changed


def _difference(before: Ending, after: Ending, earlier: Sequence[Ending]) -> str:
    words = []
    for key in sorted({*before.settings, *after.settings}):
        old, new = before.settings.get(key), after.settings.get(key)
        # a log that says nothing of its settings says nothing of a change
        if old == new or not before.settings or not after.settings:
            continue
        # going back to what was there before tells nothing that the first change did not
        if all(ending.settings.get(key) != new or not ending.settings for ending in earlier):
            words.append(f"{key} {_cut(old)} → {_cut(new)}")
    words += [
        f"{name} changed"
        for key, name in _CODE.items()
        if _differs(before.code, after.code, key)
        and all(ending.code.get(key) != after.code.get(key) for ending in earlier)
    ]
    if len(words) > _MOST:
        return f"{', '.join(words[:_MOST])} and {len(words) - _MOST} more"
    return ", ".join(words)


def _differs(before: Mapping[str, str], after: Mapping[str, str], key: str) -> bool:
    old, new = before.get(key), after.get(key)
    return old is not None and new is not None and old != new


def _cut(value: str | None) -> str:
    if value is None:
        return "(not given)"
    return value if len(value) <= 40 else value[:39] + "…"


def _weighed(told: str, before: Sequence[Ending], after: Sequence[Ending]) -> Statement:
    died_before, died_after = sum(ending.died for ending in before), sum(ending.died for ending in after)
    counts = f"{died_before} of {len(before)} runs died before it, {died_after} of {len(after)} after"
    where = f"between {before[-1].label} and {after[0].label}: {told}"
    if died_before == 0 and died_after:
        chance = more_after(died_before, len(before), died_after, len(after))
        lived = next(number for number, ending in enumerate(after) if ending.died)
        if lived:  # then something else came between
            counts += f", the first {lived} of which lived"
        text = f"{where}; the deaths began after it ({counts}; by accident: {percent(chance)})"
        return tied("change", text, chance)
    if died_before and died_after:
        text = f"{where}; the deaths were there before it: it did not begin them ({counts})"
        return excluded("change", text, died_before)
    chance = more_after(died_after, len(after), died_before, len(before))
    text = f"{where}; no death since ({counts}; by accident: {percent(chance)})"
    return Statement("change", "open", text, chance)
