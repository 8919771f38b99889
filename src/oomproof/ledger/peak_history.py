"""Keeps what a run held at most, under the key of its command: the need of the next run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from oomproof.errors import OomproofError
from oomproof.leaf.action_kinds import KILL, REQUEST, TERM
from oomproof.ledger.ledger_entries import Peak
from oomproof.ledger.ledger_store import Busy, Ledger, open_ledger
from oomproof.recording import spill_record
from oomproof.recording.run_folders import Run, newest_runs, runs_folder
from oomproof.settings import ledger_setting
from oomproof.units import MIB

# Seconds; with fewer samples the highest of them says little about the peak, unless the kernel counted it.
_SHORTEST = 2.0
_WORTH = 64 * MIB  # a shorter run that held less leaves no mark on any machine
_LOOKED_AT = 50  # runs, the newest: each costs the start of the next one some microseconds
# actions after which an exit code of 0 is not the end the job would have had
_ENDING = (REQUEST, TERM, KILL)


def keep(run: Run, peak: int | None, gpu: int | None, whole: bool) -> None:
    """By the judge of its end. Never fails: it is worth less than the verdict."""
    highest_use = _peak(run, peak, gpu, whole)
    if highest_use is None:
        return
    try:
        ledger = open_ledger(ledger_setting())
        ledger.remember(highest_use)
        ledger.remove([run.id])
        ledger.close()
    except (OSError, OomproofError, Busy):
        pass


def peaks_of(ledger: Ledger, key: str) -> list[Peak]:
    """Of the runs of this command, newest first; also of those that ended when nobody was left to judge them."""
    peaks = ledger.peaks(key)
    known = {peak.run for peak in peaks}
    learnt = False
    for run in _attempts_of(newest_runs(_LOOKED_AT)):
        attempt = run.attempt
        if _id(run) in known or attempt.verdict_file.exists() or not attempt.has_ended():
            continue
        if (run.info.get("claim") or {}).get("key") != key or run.elsewhere() is not None:
            continue
        from oomproof.recording.run_peak import figures_of  # seldom needed, and every start would wait for it

        figures = figures_of(attempt).peaks
        ended_early = any(line.get("action") in _ENDING for line in attempt.actions())
        highest_use = _peak(
            run, figures.use, figures.gpu, attempt.exit().get("code") == 0 and not ended_early
        )
        if highest_use is not None:
            ledger.remember(highest_use)
            learnt = True
    return ledger.peaks(key) if learnt else peaks


def _attempts_of(runs: list[Run]) -> Iterator[Run]:
    """Each with its own command."""
    for run in runs:
        attempts = run.attempts()
        yield from [run] if len(attempts) < 2 else (run.at(attempt.number) for attempt in attempts)


def _id(run: Run) -> str:
    """A row for each attempt: another command, another peak."""
    number = run.attempt.number or 1
    return run.id if number == 1 else f"{run.id}/{number}"


def run_of(peak: Peak) -> Run:
    run_id, _, number = peak.run.partition("/")
    return Run(runs_folder() / run_id, int(number) if number.isdecimal() else 1)


def _peak(run: Run, peak: int | None, gpu: int | None, whole: bool) -> Peak | None:
    """None when it says little, or nobody asked."""
    claim: dict[str, Any] = run.info.get("claim") or {}
    started, ended = run.started(), run.exit()
    if not claim.get("key") or not peak or not started.get("boottime") or not ended.get("boottime"):
        return None
    seconds = float(ended["boottime"]) - float(started["boottime"])
    counters = ended.get("counters") or {}
    counted = counters.get("memcg_peak") is not None or counters.get("largest_rss") is not None
    if seconds < _SHORTEST and not (counted and peak >= _WORTH):
        return None
    wall = float(ended.get("wall") or time.time())
    own = max(0, peak - spill_record.pinned(run.attempt))
    return Peak(_id(run), str(claim["key"]), wall, own, gpu, seconds, whole)
