"""What `runs prune` removed, or would remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomproof.recording.prune import Stored
from oomproof.reports.table_text import table
from oomproof.units import format_size, format_time


def pruned(
    going: Sequence[Stored],
    failed: Mapping[str, str],
    runs: int,
    used: int,
    freed: int,
    done: bool,
    no_rule: bool,
) -> str:
    """``failed``: run id → why it is still there. ``no_rule``: nothing was said about what may go."""
    if no_rule:
        return (
            f"{runs} runs take {format_size(used)}; nothing is removed without a rule\n"
            "for example: oomproof runs prune --keep 50    or --older-than 30d    or --total 2G"
        )
    if not going:
        return f"nothing to remove: {runs} runs take {format_size(used)}, and all of them stay"
    what = "removed" if done else "would be removed"
    kept = runs - len(going) + len(failed)
    gone = len(going) - len(failed)
    lines = _rows(going, failed)
    lines.append(f"{gone} of {runs} runs {what}, {format_size(freed)} of {format_size(used)}; {kept} stay")
    if not done:
        lines.append("nothing has been removed yet: the same command with --yes does it")
    return "\n".join(lines)


def removed(chosen: Sequence[Stored], failed: Mapping[str, str], done: bool) -> str:
    """What `runs rm` removed, or would remove."""
    gone = [stored for stored in chosen if stored.run.id not in failed]
    what = "removed" if done else "would be removed"
    size = format_size(sum(stored.size for stored in gone))
    return "\n".join([*_rows(chosen, failed), f"{len(gone)} run{'s' * (len(gone) != 1)} {what}, {size}"])


def _rows(going: Sequence[Stored], failed: Mapping[str, str]) -> list[str]:
    rows = [("RUN", "ID", "STARTED", "SIZE", "")]
    for stored in going:
        day = format_time(stored.created) if stored.created else "?"
        why = f"stays: {failed[stored.run.id]}" if stored.run.id in failed else ""
        rows.append((stored.run.name, stored.run.id, day, format_size(stored.size), why))
    return table(rows)
