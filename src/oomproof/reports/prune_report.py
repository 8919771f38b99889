"""What `runs prune` removed, or would remove."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from oomproof.recording.prune import Stored
from oomproof.units import format_size


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
    rows = [("RUN", "STARTED", "SIZE", "")]
    for stored in going:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.created)) if stored.created else "?"
        why = f"stays: {failed[stored.run.id]}" if stored.run.id in failed else ""
        rows.append((stored.run.name, day, format_size(stored.size), why))
    what = "removed" if done else "would be removed"
    kept = runs - len(going) + len(failed)
    gone = len(going) - len(failed)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    lines.append(f"{gone} of {runs} runs {what}, {format_size(freed)} of {format_size(used)}; {kept} stay")
    if not done:
        lines.append("nothing has been removed yet: the same command with --yes does it")
    return "\n".join(lines)
