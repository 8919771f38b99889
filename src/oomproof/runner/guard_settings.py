"""What a guard goes by, from what the user chose and what the machine has: one place for `run`, `watch`, `adopt` and `guard`."""

from __future__ import annotations

from typing import Any

from oomproof.guard.detect_limit import default_limit_floor
from oomproof.guard.host_view import HostView
from oomproof.guard.view import Settings
from oomproof.ledger.budget import default_floor, default_margin
from oomproof.ledger.ledger_entries import AT_LEAST, SPILL_ONLY
from oomproof.runner.run_flags import RunSettings
from oomproof.units import MIB


def guard_settings(chosen: RunSettings, host: HostView, claim: dict[str, Any] | None = None) -> Settings:
    """What the guard goes by: of a run that starts, of a process that is adopted, of a run that is guarded again."""
    margin = chosen.margin if chosen.margin is not None else default_margin(host.ram)
    usual = max(32 * MIB, host.ram * 4 // 100) if host.inside_a_limit else default_floor(host.ram)
    floor = chosen.floor if chosen.floor is not None else min(usual, margin)
    return Settings(
        margin=max(margin, floor),
        floor=floor,
        grace=chosen.grace,
        limit=chosen.limit,
        limit_floor=default_limit_floor(chosen.limit) if chosen.limit else 0,
        watch_only=chosen.watch_only,
        protected=chosen.protect,
        pause_max=chosen.pause_max,
        need=known_need(claim),
        usual_peak=usual_peak(claim),
        pause_unmanaged=not chosen.leave_unmanaged,
    )


def known_need(claim: dict[str, Any] | None) -> int | None:
    """What the run will hold at most, declared or from its history: a pause then ends when that much is available."""
    need = (claim or {}).get("need")
    return need if isinstance(need, int) and (claim or {}).get("basis") != SPILL_ONLY else None


def usual_peak(claim: dict[str, Any] | None) -> int | None:
    """The same, unless all that is known of it is where it was ended before."""
    return None if str((claim or {}).get("basis")).startswith(AT_LEAST) else known_need(claim)
