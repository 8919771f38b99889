"""Which runs of oomproof are on a card, whether they are paused, and what they keep there without using it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.errors import OomproofError
from oomproof.guard.card_watch import IDLE, CardHolder
from oomproof.leaf.proc_files import descendants
from oomproof.ledger.live_runs import Live

_LATELY = 60.0  # seconds before the last word: each process tells about once a second while it makes steps


def holders_of(pids: Mapping[int, int], runs: Sequence[Live], proc: str = "/proc") -> dict[int, CardHolder]:
    """pid → the run it belongs to. ``pids``: what each process holds on that card."""
    of_runs: dict[int, CardHolder] = {}
    for run in runs:
        if not run.pid:
            continue
        members = {run.pid, *descendants(run.pid, proc)} & pids.keys()
        if members:
            held = sum(pids[pid] for pid in members)
            idle = min(held, idle_of(run.id)) if run.uid is None else 0
            of_runs |= {pid: CardHolder(run.id, held, bool(run.paused), idle) for pid in members}
    return of_runs


def ask_for_idle(holders: Sequence[CardHolder]) -> list[str]:
    """The runs that were asked for what they keep on the card and do not use: those that run, and keep enough to be worth a wait for
    the card."""
    from oomproof.recording import run_folders

    asked = []
    for holder in holders:
        if holder.paused or holder.idle < IDLE:
            continue
        try:
            run_folders.find(holder.run).attempt.ask_to_release()
        except (OSError, OomproofError):  # it has ended, or its disk takes nothing
            continue
        asked.append(holder.run)
    return asked


def idle_of(run_id: str) -> int:
    """What its processes last said they could give back, on all their cards: a job numbers its cards in its own way.
    0 where they said nothing."""
    from oomproof.recording import run_folders

    try:
        with run_folders.find(run_id).attempt.recording().series() as series:
            told = series.told_numbers("agent:allocator", last=64)
    except (OSError, OomproofError):
        return 0
    return idle_bytes([numbers for t, numbers in told if t >= told[-1][0] - _LATELY])


def idle_bytes(told: Sequence[Mapping[str, Any]]) -> int:
    """Segments that are wholly free: one tensor that lives in a large segment keeps all of it."""
    newest = {(numbers.get("pid"), numbers.get("device")): numbers for numbers in told}
    sizes = [numbers.get("returnable") for numbers in newest.values()]
    return sum(max(0, size) for size in sizes if isinstance(size, int))
