"""Who runs, who waits and what is left, at one moment: what an admission decides by and what `check` shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from oomproof.ledger import current_budget
from oomproof.ledger.admission import AdmissionRequest, Card, Claim, Decision, decide, reserved
from oomproof.ledger.budget import Budget
from oomproof.ledger.ledger_entries import ADMITTED, Entry, is_live
from oomproof.ledger.ledger_store import Ledger
from oomproof.ledger.needs import usual_seconds
from oomproof.ledger.run_usage import claims_of, measure
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording import spill_record
from oomproof.records import dataclass, replace
from oomproof.trend.growth import expected_growth
from oomproof.units import MIB

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
        budget=replace(current_budget.read(margin, proc), reserved=spoken),
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
