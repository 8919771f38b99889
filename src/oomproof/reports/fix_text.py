"""Changes to a run's files in words: the diff with what each brings, what could not be placed, and how applied changes fare."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.remedies.fix_files import Place
from oomproof.remedies.fix_plan import FixPlan
from oomproof.remedies.fix_store import CONFIRMED, OFFERED, PROBATION, Fix
from oomproof.reports.table_text import folded
from oomproof.units import format_time

_COLOURS = {"-": "31", "+": "32", "@": "36"}


def fix_lines(
    plan: FixPlan,
    texts: Mapping[str, tuple[str, str]],
    shown: Mapping[str, str],
    width: int,
    colour: bool = False,
) -> list[str]:
    """``texts``: (before, after) by path, ``shown``: what people call those paths."""
    lines: list[str] = []
    for path, (before, after) in texts.items():
        name = shown.get(path, path)
        diff = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=1, lineterm="")
        lines += [_painted(line) if colour else line for line in diff]
        for change in plan.changes:
            if change.place.file.path == path:
                head = f"  line {change.place.scalar.line}: {change.place.scalar.key} {change.place.scalar.value} → {change.new}: "
                lines += folded(head, f"{change.effect} [{change.basis}]", width)
        lines.append("")
    if plan.command:
        lines += ["on the command line, which you type:", f"  {plan.command}", ""]
    if plan.nothing and not plan.changes:
        lines += [*folded("", plan.nothing, width), ""]
    for refusal in plan.refused:
        lines += folded("left alone: ", f"{refusal.what}: {refusal.why}", width)
        lines += folded("  hint: ", refusal.hint, width) if refusal.hint else []
    if plan.refused:
        lines.append("")
    if plan.by_hand:
        lines.append("by hand:")
        lines += [line for title in plan.by_hand for line in folded("  - ", title, width)]
        lines.append("")
    return lines


def _painted(line: str) -> str:
    code = _COLOURS.get(line[:1])
    return f"\x1b[{code}m{line}\x1b[0m" if code else line


def change_json(place: Place, new: str, effect: str, saves: int | None, basis: str) -> dict[str, Any]:
    return {
        "file": place.file.path, "line": place.scalar.line, "key": place.scalar.key, "from": place.scalar.value, "to": new,
        "effect": effect, "saves_bytes": saves, "basis": basis,
    }  # fmt: skip


def plan_json(plan: FixPlan) -> dict[str, Any]:
    return {
        "changes": [
            change_json(change.place, change.new, change.effect, change.saves, change.basis)
            for change in plan.changes
        ],
        "command": plan.command,
        "refused": [
            {"what": refusal.what, "why": refusal.why, "hint": refusal.hint} for refusal in plan.refused
        ],
        "by_hand": list(plan.by_hand),
        "nothing": plan.nothing or None,
    }


def changes_text(fix: Fix) -> str:
    """``num_workers 16 → 5 in conf/train.yaml``."""
    changes = fix.manifest.get("changes")
    told = [
        f"{change.get('key')} {change.get('from')} → {change.get('to')} in {str(change.get('file')).rpartition('/')[2]}"
        for change in (changes if isinstance(changes, list) else [])
        if isinstance(change, dict)
    ]
    return ", ".join(told) or "a change"


def standing_text(fix: Fix, stand: str, figures: str, slower: bool) -> str:
    """The sentence at the end of the run that told it."""
    what = f"the change of {format_time(float(fix.manifest.get('applied') or 0.0))} ({changes_text(fix)})"
    undo = f"to take it back: oomproof fix --undo {fix.id}"
    if stand == CONFIRMED:
        return f"{what} is confirmed: {figures}" + (f"; it is slower: {undo}" if slower else "")
    if stand == OFFERED:
        return f"{what}: {figures}; {undo}"
    return f"{what} is on probation: {figures}"


def fix_list(fixes: Sequence[Fix], width: int) -> list[str]:
    """Those that are not over."""
    open_fixes = [fix for fix in fixes if fix.state in (PROBATION, OFFERED)]
    return [
        line
        for fix in open_fixes
        for line in folded(
            f"{fix.id}  {fix.state}: ", f"{changes_text(fix)}; undo: oomproof fix --undo {fix.id}", width
        )
    ]
