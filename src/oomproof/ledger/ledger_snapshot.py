"""Who runs, who waits and what is left, at one moment: what an admission decides by and what `check` shows."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.errors import OomproofError
from oomproof.ledger.admission import AdmissionRequest, Card, Claim, Decision, decide, reserved
from oomproof.ledger.budget import Budget, answer, current_budget
from oomproof.ledger.forecast import RECORD
from oomproof.ledger.ledger_entries import ADMITTED, Entry, is_live, usual_seconds
from oomproof.ledger.ledger_store import Ledger
from oomproof.ledger.live_runs import held_by_all
from oomproof.machine import processes
from oomproof.machine.cgroups import CgroupV1, CgroupV2
from oomproof.machine.clock import boottime
from oomproof.printable import one_line
from oomproof.recording import spill_record
from oomproof.recording.state_files import read_json, runtime_folder
from oomproof.records import dataclass, replace
from oomproof.trend.growth import expected_growth
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:
    from oomproof.machine.gpu import Gpus  # which brings subprocess along

STALE = 5.0  # seconds without a word from the run, after which the reader measures


def claims_of(entries: Iterable[Entry], now: float, proc: str = "/proc") -> list[Claim]:
    """The admitted runs as the arithmetic sees them, by what this user's runs say of themselves."""
    try:
        folder: Path | None = runtime_folder()
    except (OSError, OomproofError):
        folder = None
    held_by_run = held_by_all(folder) if folder is not None else {}
    claims = []
    for entry in entries:
        held, at = held_by_run.get(entry.run, (0, float("-inf")))
        if now - at > STALE:  # its guard is gone, just starting, or another user's
            held = measure(entry, proc)
        need, growth, parked = entry.need, 0, _parked(entry)
        if folder is not None and (need is None or held >= need) and not parked:
            growth = _growth(folder, entry.run, now)
            if entry.cap is not None:
                growth = min(growth, max(0, entry.cap - held))
        gpu_need = entry.gpu_need if entry.gpu is not None else 0
        claims.append(Claim(entry.run, need, held, growth, gpu_need, entry.gpu, parked=parked))
    return claims


def _growth(folder: Path, run: str, now: float) -> int:
    try:
        with open(folder / "forecast" / run, "rb") as file:
            growth, at = RECORD.unpack(file.read(RECORD.size))
    except (OSError, struct.error):
        return 0
    return int(growth) if now - at <= STALE else 0


def _parked(entry: Entry) -> int:
    """What its cards held before they were given back: it lies in the run's host memory now."""
    attempt = entry.attempt
    cards = read_json(attempt.gpu_paused_file).get("cards") if attempt else None
    return sum(size for size in cards.values() if isinstance(size, int)) if isinstance(cards, dict) else 0


def measure(entry: Entry, proc: str = "/proc") -> int:
    """By the reader itself: the cgroup, else the process tree with its shared pages counted once where that may be read."""
    if entry.cgroup and entry.cgroup_version:
        group = (CgroupV2 if entry.cgroup_version == 2 else CgroupV1)(entry.cgroup)
        try:
            memory = group.memory()
        finally:
            group.close()
        if memory is not None:
            return memory.use
    if entry.job_pid is None:
        return 0
    pids = processes.descendants(entry.keeper_pid, proc) if entry.keeper_pid else []
    pids = pids or [entry.job_pid, *processes.descendants(entry.job_pid, proc)]
    total = 0
    for pid in pids:
        process = processes.memory(pid, proc)
        if process is not None:
            share = processes.pss(pid, proc) if len(pids) > 1 and entry.uid == os.getuid() else None
            total += (share[0] if share and share[0] else process.anon + process.shmem) + process.swap
    return total


_NOISE = 32 * MIB  # what unmanaged processes take between two looks and is not worth a word


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """An admitted run: its entry, and its claim as measured now. ``left``: seconds it usually still takes."""

    entry: Entry
    claim: Claim
    left: float | None = None

    @property
    def paused(self) -> bool:
        """Whether it is paused; of another user's run that cannot be seen."""
        attempt = self.entry.attempt
        return bool(self.claim.parked) or (attempt is not None and attempt.paused_file.is_file())

    @property
    def spill(self) -> int:
        """Of what it holds, pinned for its card."""
        attempt = self.entry.attempt
        return spill_record.pinned(attempt) if attempt is not None else 0


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    budget: Budget  # with everything reserved taken off
    running: tuple[LedgerRun, ...] = ()
    waiting: tuple[Entry, ...] = ()  # in the order of their turn
    unmanaged: int = 0  # what processes that are no runs of ours are about to take
    dead: tuple[Entry, ...] = ()  # their holders are gone; the next writer removes them

    @property
    def claims(self) -> list[Claim]:
        return [running.claim for running in self.running]

    def decide(self, mine: AdmissionRequest, cards: Sequence[Card] = ()) -> Decision:
        headroom = self.budget.headroom + self.budget.reserved
        queue = [request_of(entry) for entry in self.waiting]
        return decide(headroom, self.claims, queue, mine, cards, self.unmanaged)

    def without(self, run: str) -> LedgerSnapshot:
        """As the run itself sees it: its own entry is not in its way."""
        claims = [running for running in self.running if running.entry.run != run]
        spoken = reserved((running.claim for running in claims), self.unmanaged)
        return replace(
            self,
            running=tuple(claims),
            waiting=tuple(entry for entry in self.waiting if entry.run != run),
            budget=replace(self.budget, reserved=spoken),
        )

    def seconds_until(self, missing: int) -> float | None:
        """When the ends of running jobs will have given that much back, by how long they usually take; None: unknown."""
        for running in sorted(
            self.running, key=lambda running: running.left if running.left is not None else float("inf")
        ):
            if running.left is None:
                return None
            missing -= running.claim.gives
            if missing <= 0:
                return running.left
        return None


def request_of(entry: Entry) -> AdmissionRequest:
    return AdmissionRequest(
        entry.run, entry.need or 0, entry.gpu_need, entry.gpu, entry.priority, entry.asked
    )


def look(
    ledger: Ledger | None,
    margin: int | None = None,
    unmanaged: int = 0,
    cards_held: dict[tuple[int, int], int] | None = None,
    times: bool = False,
    proc: str = "/proc",
) -> LedgerSnapshot:
    """``cards_held`` are the driver's words: (pid, card) → bytes. ``times`` also asks the history how long runs take."""
    boot, now = processes.boot_id(proc), boottime()
    entries = ledger.entries() if ledger is not None else []
    live = [entry for entry in entries if is_live(entry, boot, proc)]
    alive = {entry.run for entry in live}
    admitted = [entry for entry in live if entry.state == ADMITTED]
    waiting = sorted(
        (entry for entry in live if entry.state != ADMITTED), key=lambda entry: request_of(entry).order
    )
    claims = claims_of(admitted, now, proc=proc)
    if cards_held is not None:
        claims = [
            _with_card(entry, claim, cards_held, proc) for entry, claim in zip(admitted, claims, strict=True)
        ]
    left = [_left(ledger, entry, now) if times else None for entry in admitted]
    spoken = reserved(claims, unmanaged)
    return LedgerSnapshot(
        budget=replace(current_budget(margin, proc), reserved=spoken),
        running=tuple(map(LedgerRun, admitted, claims, left)),
        waiting=tuple(waiting),
        unmanaged=unmanaged,
        dead=tuple(entry for entry in entries if entry.run not in alive),
    )


def _left(ledger: Ledger | None, entry: Entry, now: float) -> float | None:
    if ledger is None or not entry.key or entry.admitted is None:
        return None
    usual = usual_seconds(ledger.peaks(entry.key))
    spent = now - entry.admitted
    return usual - spent if usual is not None and usual > spent else None


def held_on_cards(gpus: Gpus) -> dict[tuple[int, int], int]:
    """(pid, card) → bytes, as the driver says."""
    return {
        (process.pid, card.index): process.used
        for card in gpus.gpus
        for process in card.processes
        if process.used is not None
    }


def _with_card(entry: Entry, claim: Claim, held: dict[tuple[int, int], int], proc: str) -> Claim:
    if not claim.gpu_need or claim.gpu is None or entry.job_pid is None:
        return claim
    pids = pids_of(entry, proc)
    return replace(
        claim, gpu_held=sum(size for (pid, card), size in held.items() if card == claim.gpu and pid in pids)
    )


def pids_of(entry: Entry, proc: str = "/proc") -> set[int]:
    """The processes of a run that was started."""
    if entry.job_pid is None:
        return set()
    return {entry.job_pid, *processes.descendants(entry.keeper_pid or entry.job_pid, proc)}


class UnmanagedGrowth:
    """How much memory processes that are no runs of ours are about to take: from looks at what is left and what we hold."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._looks: deque[tuple[float, int]] = deque(maxlen=90)

    def look(self, running: Sequence[Entry], budget: Budget) -> int:
        """Bytes to expect. One look tells nothing; the longer the looks reach back, the further they carry ahead."""
        # now, not a second ago: our growth is not theirs
        ours = sum(measure(entry, self._proc) for entry in running)
        self._looks.append((boottime(), -(budget.available + budget.swap_free + ours)))
        while self._looks[-1][0] - self._looks[0][0] > 60.0:
            self._looks.popleft()
        if self._looks[-1][1] - self._looks[0][1] < _NOISE:
            return 0
        return expected_growth(self._looks, shortest=1.0)


_SHOWN = 5


def run_text(running: LedgerRun) -> str:
    """ "train holds 12.1 GiB, 4.0 GiB more reserved, about 40 min left"."""
    claim, entry = running.claim, running.entry
    paused = " (paused)" if running.paused else ""
    parked = f" ({format_size(claim.parked)} of it moved here from its GPU)" if claim.parked else ""
    spill = f" ({format_size(running.spill)} of it pinned by --spill)" if running.spill else ""
    parts = [f"{one_line(entry.name)}{paused} holds {format_size(claim.held)}{parked}{spill}"]
    if claim.yet:
        what = "more reserved" if claim.short else "more at its present growth"
        parts.append(f"{format_size(claim.yet)} {what}")
    if claim.gpu_need:
        parts.append(f"{format_size(claim.gpu_need)} on GPU {claim.gpu}")
    if running.left is not None:
        parts.append(f"about {format_duration(running.left)} left")
    return ", ".join(parts)


def waiting_text(
    snapshot: LedgerSnapshot,
    need: int,
    decision: Decision,
    unmanaged: Sequence[str] = (),
    gpu_sentence: str = "",
) -> list[str]:
    """Why it does not start now: the arithmetic, who is in the way, when."""
    lines = []
    if decision.short_by or not decision.gpu_short_by:
        lines.append(answer(snapshot.budget, need).sentence)
    if decision.gpu_short_by and gpu_sentence:
        lines.append(gpu_sentence)
    in_the_way = sorted(snapshot.running, key=lambda running: -running.claim.gives)
    for blocker in in_the_way[:_SHOWN]:
        lines.append(f"  in the way: {run_text(blocker)}")
    if len(in_the_way) > _SHOWN:
        rest = sum(blocker.claim.gives for blocker in in_the_way[_SHOWN:])
        lines.append(f"  and {len(in_the_way) - _SHOWN} more runs with {format_size(rest)}")
    lines += [f"  unmanaged: {text}" for text in unmanaged]
    if snapshot.unmanaged:
        lines.append(f"  other processes grow: {format_size(snapshot.unmanaged)} reserved for them")
    if decision.behind:
        ahead = {entry.run: entry for entry in snapshot.waiting}
        for run in decision.behind[:_SHOWN]:
            if run in ahead:
                lines.append(
                    f"  waits before it: {one_line(ahead[run].name)}, needs {format_size(ahead[run].need)}"
                )
    return lines


def when_text(snapshot: LedgerSnapshot, decision: Decision) -> str:
    if decision.verdict != "short" or decision.gpu_short_by:
        return "when: unknown"
    seconds = snapshot.seconds_until(decision.short_by)
    return (
        "when: unknown"
        if seconds is None
        else f"when: in about {format_duration(seconds)}, if they take as long as before"
    )
