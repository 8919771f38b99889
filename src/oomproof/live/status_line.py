"""`oomproof status`: one line for a prompt or a tmux bar, from a few small files: no database, no process, no driver."""

from __future__ import annotations

from typing import Any

from oomproof.ledger import live_runs, paused_jobs
from oomproof.ledger.budget import current_budget, default_floor
from oomproof.ledger.live_runs import Live
from oomproof.live.live_snapshot import STALE
from oomproof.machine.clock import boottime
from oomproof.recording.run_folders import Run, newest_runs, runs_folder
from oomproof.records import dataclass
from oomproof.units import GIB, format_size

SCHEMA = 1
_LOOKED_AT = 50  # folders of the newest runs, for those that wait


@dataclass(frozen=True, slots=True)
class Status:
    total: int
    available: int
    margin: int
    floor: int
    runs: int  # that live, paused ones too
    paused: int
    waiting: int
    held: int | None  # by those runs together; None: not known of one of them
    swap_total: int = 0
    swap_free: int = 0

    @property
    def alert(self) -> str:
        if self.available < self.floor:
            return "below the floor"
        return "below the margin" if self.available < self.margin else ""


def read_status() -> Status:
    budget, now = current_budget(), boottime()
    live: list[Live] = live_runs.everybody()
    fresh = all(now - run.t <= STALE for run in live)
    return Status(
        total=budget.total,
        available=budget.available,
        margin=budget.margin,
        floor=default_floor(budget.total),
        runs=len(live),
        paused=sum(Run(runs_folder() / run.id).paused() for run in live) + len(paused_jobs.read()),
        waiting=sum(run.waits() for run in newest_runs(_LOOKED_AT)),
        held=sum(run.use for run in live) if fresh else None,
        swap_total=budget.swap_total,
        swap_free=budget.swap_free,
    )


def status_text(status: Status) -> str:
    """`RAM 12.1/23.5 GiB · 2 runs 3.4 GiB · 1 paused · 1 waiting`; always at least the RAM, so that a bar does not jump."""
    used = status.total - status.available
    parts = [f"RAM {used / GIB:.1f}/{status.total / GIB:.1f} GiB"]
    if status.alert:
        parts[0] += f" ({status.alert})"
    if status.swap_total:
        parts.append(f"swap {(status.swap_total - status.swap_free) / GIB:.1f}/{status.swap_total / GIB:.1f}")
    if status.runs:
        parts.append(f"{status.runs} run{'' if status.runs == 1 else 's'} {format_size(status.held)}")
    for number, state in ((status.paused, "paused"), (status.waiting, "waiting")):
        if number:
            parts.append(f"{number} {state}")
    return " · ".join(parts)


def status_json(status: Status) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "total_bytes": status.total,
        "available_bytes": status.available,
        "margin_bytes": status.margin,
        "floor_bytes": status.floor,
        "swap_total_bytes": status.swap_total,
        "swap_free_bytes": status.swap_free,
        "alert": status.alert or None,
        "runs": status.runs,
        "paused": status.paused,
        "waiting": status.waiting,
        "runs_bytes": status.held,
    }
