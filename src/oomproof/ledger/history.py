"""Keeps what a run held at most, under the key of its command: the need of the next run."""

from __future__ import annotations

import time
from typing import Any

from oomproof.errors import OomproofError
from oomproof.ledger.entries import Peak
from oomproof.ledger.store import Busy, open_ledger
from oomproof.recording.runs import Run
from oomproof.settings import ledger_setting

_SHORTEST = 2.0  # seconds; with fewer samples the highest of them says little about the peak


def keep(run: Run, peak: int | None, gpu: int | None, whole: bool) -> None:
    """Once per run: the first judge of its end writes it. Never fails: it is worth less than the verdict."""
    claim: dict[str, Any] = run.info.get("claim") or {}
    started, ended = run.started(), run.exit()
    if not claim.get("key") or not peak or not started.get("boottime"):
        return
    seconds = float(ended["boottime"]) - float(started["boottime"]) if ended.get("boottime") else None
    if seconds is None or seconds < _SHORTEST:
        return
    try:
        ledger = open_ledger(ledger_setting())
        ledger.remember(
            Peak(
                run.id, str(claim["key"]), float(ended.get("wall") or time.time()), peak, gpu, seconds, whole
            )
        )
        ledger.remove([run.id])
        ledger.close()
    except (OSError, OomproofError, Busy):
        pass
