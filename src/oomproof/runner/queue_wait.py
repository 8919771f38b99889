"""A run's turn: is there memory, who comes first, and the wait until it is so. The arithmetic is the ledger's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oomproof.errors import NEVER, NOT_NOW, OomproofError
from oomproof.ledger.admission import Card, Decision
from oomproof.ledger.budget import answer, answer_gpu, current_budget, default_floor
from oomproof.ledger.ledger_entries import ADMITTED, Entry, declared, with_spill
from oomproof.ledger.ledger_snapshot import (
    LedgerSnapshot,
    UnmanagedGrowth,
    held_on_cards,
    look,
    request_of,
    waiting_text,
    when_text,
)
from oomproof.ledger.ledger_store import Busy, Ledger
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpus, read, start_query
from oomproof.printable import one_line
from oomproof.recording.secrets import mask_argv
from oomproof.records import replace
from oomproof.runner.admission_request import Question, Ticket, at_once
from oomproof.runner.waiting_run import Waiting, only_waited
from oomproof.units import format_duration, format_size

_TICK = 1.0  # seconds between looks of one that waits
_LOOK = 1.2  # seconds over which unmanaged processes are watched before a large run starts beside them
_GPU_DEADLINE = 5.0
_GPU_EVERY = 5.0  # seconds between questions to the driver while waiting


class QueueWait:
    def __init__(
        self, mine: Question, ledger: Ledger, say: Callable[[str], None], on_waiting: Callable[[str], None]
    ) -> None:
        self.run, self.asked, self.need, self.entry = mine.run, mine.asked, mine.need, mine.entry
        self.ledger, self.say, self.on_waiting = ledger, say, on_waiting
        self.unmanaged = UnmanagedGrowth()
        self.queue_position: int | None = None  # in the queue, at the last look; None: not in the ledger
        self.gpus: Gpus | None = None
        self.gpus_at = 0.0

    def take(self, small: bool) -> Ticket:
        """Returns when it may start."""
        if self.entry.gpu_need:
            self._look_at_cards()
            self._fold_unified()
        self._refuse_never_fits()
        since: float | None = None
        if self.asked.not_before is not None and time.time() < self.asked.not_before:
            since = boottime()
            self._wait_for_start_time()
        if (small or self.need is None) and not self.entry.gpu_need:
            return at_once(Question(self.run, self.asked, self.need, self.entry), self.ledger)
        snapshot, decision = self._first_try()
        waits = decision.verdict != "start"
        if waits:
            self._wait(snapshot, decision, since)
        ticket = self._admitted()
        ticket.waited = waits or since is not None
        return ticket

    def _refuse_never_fits(self) -> None:
        if self.need is not None:
            budget = current_budget(self.asked.margin)
            verdict = answer(budget, self.need.high)
            alone = answer(budget, self.asked.spill)
            if alone.status == "never":
                raise OomproofError(
                    f"--spill {format_size(self.asked.spill)}: {alone.sentence}",
                    "give a smaller --spill",
                    NEVER,
                )
            if verdict.status == "never" and self.asked.need is None:
                # An old peak is no reason to refuse for ever: it ran then, on this machine or another. Nor is an estimate.
                if self.asked.sized is not None:
                    self._note(f"{verdict.sentence}; the need is only an estimate, so it starts, unreserved")
                self._forget_need()
            elif verdict.status == "never":
                raise OomproofError(verdict.sentence, "make it smaller, or take a larger machine", NEVER)
        if self.entry.gpu_need and not self.asked.gpu_need:
            if (self.gpus or Gpus()).problem or not self._fits_a_card():
                if self.asked.sized is not None:
                    size = format_size(self.entry.gpu_need)
                    self._note(
                        f"{size} do not fit on GPU {self.entry.gpu}; the need is only an estimate, so it starts, unreserved"
                    )
                self.entry = replace(self.entry, gpu_need=0, gpu=None)  # as with an old peak of RAM
        elif self.entry.gpu_need:
            verdict = answer_gpu(self.gpus or Gpus(), self.entry.gpu_need, self.entry.gpu)
            if verdict.status == "never":
                raise OomproofError(verdict.sentence, "make it smaller, or take a larger GPU", NEVER)
            if self.gpus is not None and self.gpus.problem and not self.gpus.gpus:
                raise OomproofError(
                    verdict.sentence, "look at the driver (nvidia-smi), or leave --gpu-need out", NOT_NOW
                )

    def _forget_need(self) -> None:
        """But for what is pinned, whatever the job itself needs."""
        self.need = with_spill(None, self.asked.spill)
        spill, basis = (self.asked.spill, self.need.basis) if self.need is not None else (None, "")
        self.entry = replace(self.entry, need=spill, need_low=spill, basis=basis)

    def _fits_a_card(self) -> bool:
        cards = self.gpus.gpus if self.gpus is not None else ()
        return any(
            card.index == self.entry.gpu and (card.total or 0) >= self.entry.gpu_need for card in cards
        )

    # --- deciding -------------------------------------------------------------------------------------------------

    def _first_try(self) -> tuple[LedgerSnapshot, Decision]:
        large = (self.need.high if self.need else 0) > current_budget(self.asked.margin).headroom // 2
        with contextlib.suppress(Busy):
            if large and self._decide(self._look()).verdict == "start":
                time.sleep(_LOOK)  # somebody else may be filling that memory right now
        return self._try(unmanaged=large)

    def _look(self, times: bool = False, unmanaged: bool = True) -> LedgerSnapshot:
        held = held_on_cards(self.gpus) if self.gpus is not None else None
        snapshot = look(self.ledger, self.asked.margin, cards_held=held, times=times)
        if unmanaged:
            growing = self.unmanaged.look([running.entry for running in snapshot.running], snapshot.budget)
            snapshot = replace(snapshot, unmanaged=growing)
        runs = [entry.run for entry in snapshot.waiting]
        self.queue_position = runs.index(self.entry.run) if self.entry.run in runs else None
        return snapshot.without(self.entry.run)

    def _decide(self, snapshot: LedgerSnapshot) -> Decision:
        """Alone, a command that ran here before may go down to the floor: a job that used to run must still run."""
        alone = not snapshot.running and not snapshot.waiting
        if alone and self.asked.need is None and self.asked.margin is None and not self.asked.spill:
            budget = snapshot.budget
            snapshot = replace(
                snapshot, budget=replace(budget, margin=min(budget.margin, default_floor(budget.total)))
            )
        return snapshot.decide(request_of(self.entry), self._cards())

    def _try(self, unmanaged: bool = True) -> tuple[LedgerSnapshot, Decision]:
        """One decision under the ledger's lock; the entry is then there, admitted or waiting."""
        snapshot, decision, entry = (
            LedgerSnapshot(current_budget(self.asked.margin)),
            Decision("behind"),
            self.entry,
        )
        try:
            with self.ledger.decision():
                snapshot = self._look(unmanaged=unmanaged)
                decision = self._decide(snapshot)
                self.ledger.remove(entry.run for entry in snapshot.dead)
                if decision.verdict == "start":
                    gpu = decision.gpu if entry.gpu_need else None
                    entry = replace(entry, state=ADMITTED, admitted=boottime(), gpu=gpu)
                self.ledger.put(entry)
        except Busy as error:
            self._note(f"{error}; asking again")
            return snapshot, Decision("behind")
        except OomproofError as error:
            # Nowhere to write it down. By the arithmetic it may start or not; others just cannot see that it did.
            self._note(f"{error.message}: nothing is reserved for this run, another may start beside it")
        self.entry = entry
        _sweep(snapshot.dead)
        return snapshot, decision

    def _note(self, text: str) -> None:
        if text not in self.ledger.notes:
            self.ledger.notes.append(text)

    def _admitted(self) -> Ticket:
        details = [f"reserved {self.need.sentence}"] if self.need is not None else []
        ticket = Ticket(self.entry, self.ledger, list(self.ledger.notes), details)
        if self.entry.gpu_need and self.entry.gpu is not None:
            details.append(f"reserved {format_size(self.entry.gpu_need)} on GPU {self.entry.gpu}")
            several = self.gpus is not None and len(self.gpus.gpus) > 1
            if several and "CUDA_VISIBLE_DEVICES" not in os.environ:
                # The driver counts cards by their slot; CUDA does so only when told.
                ticket.environment = {
                    "CUDA_VISIBLE_DEVICES": str(self.entry.gpu),
                    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                }
                details.append(f"the job sees GPU {self.entry.gpu} only (CUDA_VISIBLE_DEVICES)")
        return ticket

    # --- cards ----------------------------------------------------------------------------------------------------

    def _look_at_cards(self) -> None:
        self.gpus = read(_GPU_DEADLINE, start_query())
        self.gpus_at = boottime()

    def _fold_unified(self) -> None:
        """A GPU without memory of its own takes the machine's."""
        if self.gpus is None or not any(card.unified for card in self.gpus.gpus):
            return
        size = (self.need.high if self.need else 0) + self.entry.gpu_need
        self.need = declared(size)
        self.entry = replace(
            self.entry, need=size, need_low=size, basis=self.need.basis, gpu_need=0, gpu=None
        )

    def _cards(self) -> list[Card]:
        cards = self.gpus.gpus if self.gpus is not None else ()
        return [
            Card(card.index, card.free or 0, hides=None if card.processes or not card.note else card.used)
            for card in cards
            if not card.unified
        ]

    # --- waiting --------------------------------------------------------------------------------------------------

    def _wait_for_start_time(self) -> None:
        hour = self.asked.not_before
        assert hour is not None
        clock = time.strftime("%a %H:%M", time.localtime(hour))
        if not self.asked.wait:
            raise OomproofError(f"it is not {clock} yet", "leave --no-wait out to wait for it", NOT_NOW)
        with Waiting(self.run, self.entry, self.ledger, self.say, self.on_waiting) as waiting:
            waiting.tell([f"waits until {clock} (--not-before)"])
            while time.time() < hour:
                waiting.pause(min(_TICK, max(0.01, hour - time.time())), f"until {clock}")

    def _wait(self, snapshot: LedgerSnapshot, decision: Decision, since: float | None) -> None:
        twin = next(
            (
                waiting_run
                for waiting_run in snapshot.waiting
                if self.entry.twin and waiting_run.twin == self.entry.twin
            ),
            None,
        )
        if twin is not None:
            raise OomproofError(
                f"the same job waits already: {twin.name}", "wait for it, or add --allow-twin", NOT_NOW
            )
        if not self.asked.wait:
            lines = [*self.ledger.notes, *self._lines(self._fresh(snapshot), decision)]
            raise OomproofError("\n".join(lines), "leave --no-wait out to wait for its turn", NOT_NOW)
        begun = boottime() if since is None else since
        deadline = None if self.asked.wait_max is None else begun + self.asked.wait_max
        with Waiting(self.run, self.entry, self.ledger, self.say, self.on_waiting) as waiting:
            shown: object = None
            while decision.verdict != "start":
                if deadline is not None and boottime() >= deadline:
                    words = format_duration(self.asked.wait_max)
                    raise OomproofError(
                        "\n".join(
                            [
                                f"still not enough memory after {words} (--wait-max)",
                                *self._lines(snapshot, decision),
                            ]
                        ),
                        "raise --wait-max, or start it when the others are done",
                        NOT_NOW,
                    )
                situation = (
                    decision.verdict,
                    decision.behind,
                    *(running.entry.run for running in snapshot.running),
                )
                if situation != shown:
                    shown = situation
                    snapshot = self._fresh(snapshot)
                    waiting.tell(self._lines(snapshot, decision), self._when(snapshot, decision))
                short = decision.short_by or decision.gpu_short_by
                status = f"short by {format_size(short)}" if short else "others come first"
                # the first few look every second; in a crowd those far behind have time
                pause = _TICK * max(1.0, min(10.0, (self.queue_position or 0) / 5))
                if deadline is not None:
                    pause = max(0.01, min(pause, deadline - boottime()))
                waiting.pause(pause, f"{format_duration(boottime() - begun)}, {status}")
                snapshot, decision = self._again()
            self.say(f"oomproof: starts now, after {format_duration(boottime() - begun)} of waiting")

    def _fresh(self, snapshot: LedgerSnapshot) -> LedgerSnapshot:
        """For people: with how long the others usually take."""
        try:
            return self._look(times=True)
        except Busy:
            return snapshot

    def _again(self) -> tuple[LedgerSnapshot, Decision]:
        """First a look without the lock: many may wait, and most looks change nothing."""
        if self.gpus is not None and boottime() - self.gpus_at > _GPU_EVERY:
            self._look_at_cards()
        try:
            snapshot = self._look()
        except Busy:  # the next look may go better; what cannot be read is no reason to start
            return LedgerSnapshot(current_budget(self.asked.margin)), Decision("behind")
        decision = self._decide(snapshot)
        # Not in the ledger: it was lost and begun anew. Then we enter ourselves again, at our old place.
        if decision.verdict == "start" or self.queue_position is None:
            return self._try()
        return snapshot, decision

    def _lines(self, snapshot: LedgerSnapshot, decision: Decision) -> list[str]:
        gpu_sentence = ""
        if decision.gpu_short_by:
            where = "a GPU" if decision.gpu is None else f"GPU {decision.gpu}"
            gpu_sentence = (
                f"needs {format_size(self.entry.gpu_need)} on {where}: short by {format_size(decision.gpu_short_by)} "
                "of what is free there and not reserved"
            )
        return waiting_text(
            snapshot, self.entry.need or 0, decision, _largest_unmanaged(snapshot), gpu_sentence
        )

    def _when(self, snapshot: LedgerSnapshot, decision: Decision) -> str:
        return f"  {when_text(snapshot, decision)}; it starts by itself. Ctrl-C gives up"


def _sweep(dead: Sequence[Entry]) -> None:
    """A run of ours that was killed while it waited never was a run."""
    for entry in dead:
        if entry.uid == os.getuid() and only_waited(Path(entry.folder)):
            from oomproof.recording import prune, run_folders

            prune.remove(run_folders.Run(Path(entry.folder)))


def _largest_unmanaged(snapshot: LedgerSnapshot) -> list[str]:
    """The heaviest jobs that are no runs of ours, by name."""
    from oomproof.machine import cgroup_limits, jobs

    limit = cgroup_limits.machine_here()
    inside = limit.path if limit else None
    try:
        anon, shmem = jobs.totals(inside=inside)
        heaviest = jobs.heaviest(
            jobs.scan(inside=inside), anon_total=anon, shmem_total=shmem, at_least=256 << 20
        )
    except OSError:
        return []
    ours = {
        pid
        for running in snapshot.running
        for pid in (running.entry.job_pid, running.entry.keeper_pid, running.entry.front_pid)
    }
    unmanaged = [job for job in heaviest if not ours.intersection(job.pids)][:3]
    return [
        f"{_called(job.command)} (pid {job.pid}) holds {format_size(job.use + job.swap)}" for job in unmanaged
    ]


def _called(command: Sequence[str]) -> str:
    words = [os.path.basename(command[0]), *mask_argv(command)[1:3]]
    return one_line(" ".join(words))[:60]
