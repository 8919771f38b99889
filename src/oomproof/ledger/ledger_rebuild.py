"""The entries of what runs now, read off the runs themselves: for a ledger that was lost."""

from __future__ import annotations

import os

from oomproof.ledger.ledger_entries import ADMITTED, Entry, with_started
from oomproof.machine import processes
from oomproof.recording import run_folders


def live_entries() -> list[Entry]:
    """This user's live runs. Those that wait enter themselves again at their next look."""
    entries = []
    boot = processes.boot_id()
    for run in run_folders.list_runs():
        started = run.started()
        of_now = boot in (run.info.get("boot_id"), started.get("boot_id"))  # either file may be damaged
        if not of_now or not run.keeper_lives():
            continue
        entry = with_started(from_info(run, boot, float(started.get("boottime") or 0.0)), started)
        if entry.keeper_pid is not None:
            entries.append(entry)
    return entries


def from_info(run: run_folders.Run, boot: str, since: float) -> Entry:
    kept = run.info.get("claim") or {}
    return Entry(
        run=run.id,
        uid=os.getuid(),
        name=run.name,
        key=str(kept.get("key") or ""),
        state=ADMITTED,
        boot=boot,
        asked=float(kept.get("asked") or since),
        admitted=since,
        front_pid=0,
        front_start=0,
        folder=str(run.folder),
        priority=int(kept.get("priority") or 0),
        need_low=kept.get("need_low"),
        need=kept.get("need"),
        basis=str(kept.get("basis") or ""),
        gpu_need=int(kept.get("gpu_need") or 0),
        gpu=kept.get("gpu"),
        cap=kept.get("cap"),
        twin=str(kept.get("twin") or ""),
    )
