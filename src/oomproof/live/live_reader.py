"""Reads the machine, the cards, the runs and the other jobs into one snapshot. Decides nothing, writes nothing.

What cannot be read is a trouble in words, and the rest is shown: a look never fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from oomproof.errors import OomproofError
from oomproof.ledger import live_runs
from oomproof.ledger.budget import Budget, current_budget, default_floor
from oomproof.ledger.ledger_store import is_there
from oomproof.live.live_snapshot import (
    RUNNING,
    STALE,
    WAITING,
    CardState,
    JobState,
    LiveSnapshot,
    MachineState,
)
from oomproof.live.run_reader import RunReader
from oomproof.live.unmanaged_reader import UnmanagedReader
from oomproof.machine import gpu, nvidia, pressure
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpu, Gpus
from oomproof.printable import one_line
from oomproof.recording.run_folders import Run
from oomproof.records import replace
from oomproof.settings import ledger_setting

if TYPE_CHECKING:
    from oomproof.ledger.ledger_entries import Entry
    from oomproof.ledger.ledger_snapshot import LedgerRun, LedgerSnapshot
    from oomproof.ledger.ledger_store import Ledger


_DEADLINE = 3.0  # seconds: as `check` waits


class CardsOnce:
    """For one look: the helper works while the rest is read."""

    def __init__(self, sys: str = "/sys") -> None:
        self._sys = sys
        self._query = gpu.start_query()

    def read(self) -> gpu.Gpus:
        query, self._query = self._query, None
        return gpu.read(_DEADLINE, query, self._sys)

    def close(self) -> None:
        if self._query is not None:
            self._query.answer(0.0)


class CardsAgain:
    """For a view that stays: never waits; what is older than five seconds is no figure."""

    def __init__(self, every: float = 2.0, sys: str = "/sys") -> None:
        self._sys = sys
        self._feed = None
        self._since = time.monotonic()
        if nvidia.driver_present():
            from oomproof.runner.gpu_feed import GpuFeed

            try:
                self._feed = GpuFeed(every)
            except OSError:
                pass

    def read(self) -> gpu.Gpus:
        cards = self._feed.latest() if self._feed is not None else ()
        silent = self._feed is not None and not cards and time.monotonic() - self._since > _DEADLINE
        problem = "the GPU driver does not answer (try: nvidia-smi)" if silent else None
        return gpu.with_amd(gpu.Gpus(cards, problem), self._sys)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


# Of a core. A trend takes 30 ms for a run of an hour and 3 s for one of a day with 80,000 steps.
_TREND_SHARE = 0.01

Value = TypeVar("Value")


class Cards(Protocol):
    def read(self) -> Gpus: ...
    def close(self) -> None: ...


class LiveReader:
    """One thread's: the reservations are an SQLite connection."""

    def __init__(self, cards: Cards, unmanaged: UnmanagedReader | None = None) -> None:
        self._cards = cards
        self._unmanaged = unmanaged or UnmanagedReader()
        self._runs: dict[str, RunReader] = {}
        self._ledger: Ledger | None = None
        self._before: dict[str, int | None] = {}  # run → the peak of its command's last run
        self._turn = 0  # whose trend may be asked next
        self._next_trend_at = float("-inf")
        self._kept: tuple[object, Any] = (None, None)

    def read(self, all_trends: bool = False) -> LiveSnapshot:
        """``all_trends``: of one look. In a view that stays, one run a look has its trend asked."""
        now, troubles = boottime(), []
        cards = self._cards.read()
        if cards.problem:
            troubles.append(cards.problem)
        reservations, trouble = self._reservations(cards)
        troubles += trouble
        jobs = self._my_runs(reservations, now, all_trends)
        jobs += _of_others(reservations)
        pids = {pid for reader in self._runs.values() for pid in reader.pids}
        pids |= {pid for entry in _entries(reservations) for pid in (entry.job_pid, entry.keeper_pid) if pid}
        jobs += self._unmanaged.read(pids, now, _by_process(cards.gpus))
        if self._unmanaged.problem:
            troubles.append(self._unmanaged.problem)
        budget = reservations.budget if reservations is not None else current_budget()
        return LiveSnapshot(
            wall=time.time(),
            machine=_machine(budget, jobs),
            cards=self._card_states(cards.gpus, reservations, now),
            jobs=tuple(jobs),
            troubles=tuple(one_line(text) for text in troubles),
        )

    def reader_of(self, job: JobState) -> RunReader | None:
        return self._runs.get(job.id)

    def points_of(self, job: JobState) -> tuple[tuple[float, int], ...]:
        reader = self._runs.get(job.id)
        return reader.recorded.points if reader is not None else self._unmanaged.points(job)

    def kept(self, of: object, read: Callable[[], Value]) -> Value:
        """What was read of the same job in the same state; else read now. One is remembered."""
        if self._kept[0] != of:
            self._kept = (of, read())
        value: Value = self._kept[1]
        return value

    def close(self) -> None:
        self._cards.close()
        if self._ledger is not None:
            self._ledger.close()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _my_runs(self, reservations: LedgerSnapshot | None, now: float, all_trends: bool) -> list[JobState]:
        live = {run.id: run for run in live_runs.everybody()}
        claims = {running.entry.run: running for running in reservations.running} if reservations else {}
        waiting = {entry.run: entry for entry in reservations.waiting} if reservations else {}
        self._follow(
            {*live, *(entry.run for entry in _entries(reservations) if _is_mine(entry))}, reservations
        )
        asked = self._next_trend() if now >= self._next_trend_at else ""
        states = []
        for run_id, reader in sorted(self._runs.items()):
            began = time.process_time()
            state = reader.read(live.get(run_id), now, all_trends or run_id == asked)
            if run_id == asked:
                self._next_trend_at = now + (time.process_time() - began) / _TREND_SHARE
            if state is None:  # it has ended since
                continue
            states.append(self._with_claim(state, reader, claims.get(run_id), waiting.get(run_id)))
        return states

    def _follow(self, ids: set[str], reservations: LedgerSnapshot | None) -> None:
        folders = {entry.run: Path(entry.folder) for entry in _entries(reservations) if entry.folder}
        from oomproof.recording.run_folders import runs_folder

        for run_id in ids - set(self._runs):
            self._runs[run_id] = RunReader(Run(folders.get(run_id, runs_folder() / run_id)))
        for run_id in set(self._runs) - ids:
            del self._runs[run_id]

    def _next_trend(self) -> str:
        wanting = [run_id for run_id, reader in sorted(self._runs.items()) if reader.wants_trend]
        self._turn += 1
        return wanting[self._turn % len(wanting)] if wanting else ""

    def _with_claim(
        self, state: JobState, reader: RunReader, running: LedgerRun | None, entry: Entry | None
    ) -> JobState:
        if entry is not None:
            state = replace(state, need=entry.need)
        if running is None:
            return state
        if state.use is None:  # its guard is gone: measured by the look at the reservations
            state = replace(state, use=running.claim.held or None)
        before = self._peak_before(reader)
        return replace(state, need=running.claim.need, reserved=running.claim.yet, peak_before=before)

    def _peak_before(self, reader: RunReader) -> int | None:
        """Read once: it does not change while the run lives."""
        run_id = reader.run.id
        if run_id not in self._before:
            peaks = self._ledger.peaks(reader.key) if self._ledger is not None and reader.key else []
            self._before[run_id] = next((peak.use for peak in peaks if peak.run != run_id), None)
        return self._before[run_id]

    # --- reservations -------------------------------------------------------------------------------------------------

    def _reservations(self, cards: Gpus) -> tuple[LedgerSnapshot | None, list[str]]:
        """A reader makes no file where there is none."""
        from oomproof.ledger.ledger_snapshot import look
        from oomproof.ledger.ledger_store import Busy, open_ledger

        wanted = ledger_setting()
        held = {
            (process.pid, card.index): process.used
            for card in cards.gpus
            for process in card.processes
            if process.used is not None
        }
        try:
            if not is_there(wanted):
                return None, []
            self._ledger = self._ledger or open_ledger(wanted)
            return look(self._ledger, cards_held=held), []
        except (Busy, OSError) as error:
            return None, [str(error)]
        except OomproofError as error:
            return None, [error.message]

    # --- cards --------------------------------------------------------------------------------------------------------

    def _card_states(
        self, cards: tuple[Gpu, ...], reservations: LedgerSnapshot | None, now: float
    ) -> tuple[CardState, ...]:
        fresh = [reader.recorded for reader in self._runs.values() if now - reader.recorded.gpu_t <= STALE]
        reserved: dict[int, int] = {}
        for claim in reservations.claims if reservations is not None else []:
            if claim.gpu is not None:
                reserved[claim.gpu] = reserved.get(claim.gpu, 0) + claim.gpu_yet
        states = [
            CardState(
                index=card.index,
                name=one_line(card.name),
                total=card.total,
                used=card.used,
                runs=_held_on(card.index, [recorded.gpu for recorded in fresh]),
                reserved=min(reserved.get(card.index, 0), card.free or 0),
                note=one_line(card.note or ""),
            )
            for card in cards
        ]
        known = {state.index for state in states}
        for index in sorted({index for recorded in fresh for index in recorded.cards} - known):
            used, total = next(recorded.cards[index] for recorded in fresh if index in recorded.cards)
            runs = _held_on(index, [recorded.gpu for recorded in fresh])
            states.append(CardState(index, "GPU", total, used, runs, note="as the runs recorded it"))
        return tuple(states)


def _held_on(index: int, held: list[dict[int, int | None]]) -> int | None:
    """What the runs hold on a card together; None when the driver does not tell whose it is."""
    sizes = [on_cards[index] for on_cards in held if index in on_cards]
    if any(size is None for size in sizes):
        return None
    return sum(size for size in sizes if size is not None)


def _machine(budget: Budget, jobs: list[JobState]) -> MachineState:
    stalled = pressure.read()
    held = sum(job.ram or 0 for job in jobs if job.managed and job.state != WAITING)
    return MachineState(
        total=budget.total,
        available=budget.available,
        margin=budget.margin,
        floor=default_floor(budget.total),
        swap_total=budget.swap_total,
        swap_free=budget.swap_free,
        zram_total=budget.zram_total,
        limited=budget.limited_by is not None,
        runs=min(held, max(0, budget.total - budget.available)),
        reserved=budget.reserved,
        some_avg10=stalled.some_avg10 if stalled else None,
        full_avg10=stalled.full_avg10 if stalled else None,
    )


def _entries(reservations: LedgerSnapshot | None) -> list[Entry]:
    if reservations is None:
        return []
    return [*(running.entry for running in reservations.running), *reservations.waiting]


def _by_process(cards: Iterable[Gpu]) -> dict[int, int]:
    """Bytes of GPU memory, all cards together."""
    held: dict[int, int] = {}
    for card in cards:
        for process in card.processes:
            if process.used is not None:
                held[process.pid] = held.get(process.pid, 0) + process.used
    return held


def _is_mine(entry: Entry) -> bool:
    return entry.uid == os.getuid() and bool(entry.folder)


def _of_others(reservations: LedgerSnapshot | None) -> list[JobState]:
    """Other users' runs, where the reservations are shared: what may not be read is not known."""
    if reservations is None:
        return []
    states = [
        JobState(
            id=running.entry.run,
            name=one_line(running.entry.name),
            state=RUNNING,
            uid=running.entry.uid,
            mine=False,
            pid=running.entry.job_pid,
            use=running.claim.held or None,
            need=running.claim.need,
            reserved=running.claim.yet,
            limit=running.entry.cap,
        )
        for running in reservations.running
        if not _is_mine(running.entry)
    ]
    for entry in reservations.waiting:
        if not _is_mine(entry):
            name = one_line(entry.name)
            states.append(JobState(entry.run, name, WAITING, uid=entry.uid, mine=False, need=entry.need))
    return states
