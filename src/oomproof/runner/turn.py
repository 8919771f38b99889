"""A run's turn: is there room, who comes first, and the wait until it is so. The arithmetic is the ledger's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oomproof.errors import NEVER, NOT_NOW, OomproofError
from oomproof.ledger import room
from oomproof.ledger.admission import Card, Decision
from oomproof.ledger.budget import answer, answer_gpu, default_floor
from oomproof.ledger.entries import ADMITTED, Entry
from oomproof.ledger.needs import declared
from oomproof.ledger.picture import Picture, Strangers, look, wish_of
from oomproof.ledger.store import Busy, Ledger
from oomproof.ledger.words import waiting_words, when_words
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpus, Query, read_amd
from oomproof.machine.nvidia import driver_present
from oomproof.printable import one_line
from oomproof.recording.secrets import mask_argv
from oomproof.records import replace
from oomproof.runner.admission import Question, Ticket, at_once
from oomproof.runner.waiting import Waiting, only_waited
from oomproof.units import format_duration, format_size

_TICK = 1.0  # seconds between looks of one that waits
_LOOK = 1.2  # seconds over which strangers are watched before a large run starts beside them
_GPU_DEADLINE = 5.0
_GPU_EVERY = 5.0  # seconds between questions to the driver while waiting


class Turn:
    def __init__(
        self, mine: Question, ledger: Ledger, say: Callable[[str], None], on_waiting: Callable[[str], None]
    ) -> None:
        self.run, self.asked, self.need, self.entry = mine.run, mine.asked, mine.need, mine.entry
        self.ledger, self.say, self.on_waiting = ledger, say, on_waiting
        self.strangers = Strangers()
        self.place: int | None = None  # in the queue, at the last look; None: not in the ledger
        self.gpus: Gpus | None = None
        self.gpus_at = 0.0

    def take(self, small: bool) -> Ticket:
        """Returns when it may start."""
        if self.entry.gpu_need:
            self._look_at_cards()
            self._fold_unified()
        self._refuse_the_impossible()
        since: float | None = None
        if self.asked.not_before is not None and time.time() < self.asked.not_before:
            since = boottime()
            self._until_the_hour()
        if (small or self.need is None) and not self.entry.gpu_need:
            return at_once(Question(self.run, self.asked, self.need, self.entry), self.ledger)
        picture, decision = self._first_try()
        waits = decision.verdict != "start"
        if waits:
            self._wait(picture, decision, since)
        ticket = self._admitted()
        ticket.waited = waits or since is not None
        return ticket

    def _refuse_the_impossible(self) -> None:
        if self.need is not None:
            found = answer(room.read(self.asked.margin), self.need.high)
            if found.status == "never" and self.asked.need is None:
                # An old peak is no reason to refuse for ever: it ran then, on this machine or another.
                self.need = None
                self.entry = replace(self.entry, need=None, need_low=None, basis="")
            elif found.status == "never":
                raise OomproofError(found.sentence, "make it smaller, or take a larger machine", NEVER)
        if self.entry.gpu_need and not self.asked.gpu_need:
            if (self.gpus or Gpus()).problem or not self._fits_a_card():
                self.entry = replace(self.entry, gpu_need=0, gpu=None)  # as with an old peak of RAM
        elif self.entry.gpu_need:
            found = answer_gpu(self.gpus or Gpus(), self.entry.gpu_need, self.entry.gpu)
            if found.status == "never":
                raise OomproofError(found.sentence, "make it smaller, or take a larger GPU", NEVER)
            if self.gpus is not None and self.gpus.problem and not self.gpus.gpus:
                raise OomproofError(
                    found.sentence, "look at the driver (nvidia-smi), or leave --gpu-need out", NOT_NOW
                )

    def _fits_a_card(self) -> bool:
        cards = self.gpus.gpus if self.gpus is not None else ()
        return any(
            card.index == self.entry.gpu and (card.total or 0) >= self.entry.gpu_need for card in cards
        )

    # --- deciding -------------------------------------------------------------------------------------------------

    def _first_try(self) -> tuple[Picture, Decision]:
        large = (self.need.high if self.need else 0) > room.read(self.asked.margin).headroom // 2
        with contextlib.suppress(Busy):
            if large and self._decide(self._look()).verdict == "start":
                time.sleep(_LOOK)  # somebody else may be filling the very room right now
        return self._try(strangers=large)

    def _look(self, times: bool = False, strangers: bool = True) -> Picture:
        held = _held_on_cards(self.gpus) if self.gpus is not None else None
        picture = look(self.ledger, self.asked.margin, cards_held=held, times=times)
        if strangers:
            growing = self.strangers.look([one.entry for one in picture.running], picture.budget)
            picture = replace(picture, strangers=growing)
        runs = [entry.run for entry in picture.waiting]
        self.place = runs.index(self.entry.run) if self.entry.run in runs else None
        return picture.without(self.entry.run)

    def _decide(self, picture: Picture) -> Decision:
        """Alone, a command that ran here before may go down to the floor: a job that used to run must still run."""
        alone = not picture.running and not picture.waiting
        if alone and self.asked.need is None and self.asked.margin is None:
            budget = picture.budget
            picture = replace(
                picture, budget=replace(budget, margin=min(budget.margin, default_floor(budget.total)))
            )
        return picture.decide(wish_of(self.entry), self._cards())

    def _try(self, strangers: bool = True) -> tuple[Picture, Decision]:
        """One decision under the ledger's lock; the entry is then there, admitted or waiting."""
        picture, decision, entry = Picture(room.read(self.asked.margin)), Decision("behind"), self.entry
        try:
            with self.ledger.decision():
                picture = self._look(strangers=strangers)
                decision = self._decide(picture)
                self.ledger.remove(entry.run for entry in picture.dead)
                if decision.verdict == "start":
                    gpu = decision.gpu if entry.gpu_need else None
                    entry = replace(entry, state=ADMITTED, admitted=boottime(), gpu=gpu)
                self.ledger.put(entry)
        except Busy as error:
            self._note(f"{error}; asking again")
            return picture, Decision("behind")
        except OomproofError as error:
            # Nowhere to write it down. By the arithmetic it may start or not; others just cannot see that it did.
            self._note(f"{error.message}: this run is not reserved, another may be let in beside it")
        self.entry = entry
        _sweep(picture.dead)
        return picture, decision

    def _note(self, text: str) -> None:
        if text not in self.ledger.notes:
            self.ledger.notes.append(text)

    def _admitted(self) -> Ticket:
        told = list(self.ledger.notes)
        if self.need is not None:
            told.append(f"reserved {self.need.sentence}")
        ticket = Ticket(self.entry, self.ledger, told)
        if self.entry.gpu_need and self.entry.gpu is not None:
            told.append(f"reserved {format_size(self.entry.gpu_need)} on GPU {self.entry.gpu}")
            several = self.gpus is not None and len(self.gpus.gpus) > 1
            if several and "CUDA_VISIBLE_DEVICES" not in os.environ:
                # The driver counts cards by their slot; CUDA does so only when told.
                ticket.environment = {
                    "CUDA_VISIBLE_DEVICES": str(self.entry.gpu),
                    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                }
                told.append(f"the job sees GPU {self.entry.gpu} only (CUDA_VISIBLE_DEVICES)")
        return ticket

    # --- cards ----------------------------------------------------------------------------------------------------

    def _look_at_cards(self) -> None:
        found = Query().answer(_GPU_DEADLINE) if driver_present() else Gpus()
        self.gpus = Gpus(found.gpus + read_amd(first_index=len(found.gpus)), found.problem)
        self.gpus_at = boottime()

    def _fold_unified(self) -> None:
        """A GPU without memory of its own takes the machine's."""
        if self.gpus is None or not any(card.unified for card in self.gpus.gpus):
            return
        size = (self.need.high if self.need else 0) + self.entry.gpu_need
        self.need = declared(size)
        self.entry = replace(self.entry, need=size, need_low=size, basis="declared", gpu_need=0, gpu=None)

    def _cards(self) -> list[Card]:
        cards = self.gpus.gpus if self.gpus is not None else ()
        return [
            Card(card.index, card.free or 0, hides=None if card.processes or not card.note else card.used)
            for card in cards
            if not card.unified
        ]

    # --- waiting --------------------------------------------------------------------------------------------------

    def _until_the_hour(self) -> None:
        hour = self.asked.not_before
        assert hour is not None
        clock = time.strftime("%a %H:%M", time.localtime(hour))
        if not self.asked.wait:
            raise OomproofError(f"it is not {clock} yet", "leave --no-wait out to wait for it", NOT_NOW)
        with Waiting(self.run, self.entry, self.ledger, self.say, self.on_waiting) as waiting:
            waiting.tell([f"waits until {clock} (--not-before)"])
            while time.time() < hour:
                waiting.pause(min(_TICK, max(0.01, hour - time.time())), f"until {clock}")

    def _wait(self, picture: Picture, decision: Decision, since: float | None) -> None:
        twin = next((one for one in picture.waiting if self.entry.twin and one.twin == self.entry.twin), None)
        if twin is not None:
            raise OomproofError(
                f"the same job waits already: {twin.name}", "wait for it, or add --allow-twin", NOT_NOW
            )
        if not self.asked.wait:
            lines = [*self.ledger.notes, *self._lines(self._fresh(picture), decision)]
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
                            [f"still no room after {words} (--wait-max)", *self._lines(picture, decision)]
                        ),
                        "raise --wait-max, or start it when the others are done",
                        NOT_NOW,
                    )
                situation = (decision.verdict, decision.behind, *(one.entry.run for one in picture.running))
                if situation != shown:
                    shown = situation
                    picture = self._fresh(picture)
                    waiting.tell([*self._lines(picture, decision), self._when(picture, decision)])
                short = decision.short_by or decision.gpu_short_by
                status = f"short by {format_size(short)}" if short else "others come first"
                # the first few look every second; in a crowd those far behind have time
                pause = _TICK * max(1.0, min(10.0, (self.place or 0) / 5))
                if deadline is not None:
                    pause = max(0.01, min(pause, deadline - boottime()))
                waiting.pause(pause, f"{format_duration(boottime() - begun)}, {status}")
                picture, decision = self._again()
            self.say(f"oomproof: starts now, after {format_duration(boottime() - begun)} of waiting")

    def _fresh(self, picture: Picture) -> Picture:
        """For people: with how long the others usually take."""
        try:
            return self._look(times=True)
        except Busy:
            return picture

    def _again(self) -> tuple[Picture, Decision]:
        """First a look without the lock: many may wait, and most looks change nothing."""
        if self.gpus is not None and boottime() - self.gpus_at > _GPU_EVERY:
            self._look_at_cards()
        try:
            picture = self._look()
        except Busy:  # the next look may go better; what cannot be read is no reason to start
            return Picture(room.read(self.asked.margin)), Decision("behind")
        decision = self._decide(picture)
        # Not in the ledger: it was lost and begun anew. Then we enter ourselves again, at our old place.
        if decision.verdict == "start" or self.place is None:
            return self._try()
        return picture, decision

    def _lines(self, picture: Picture, decision: Decision) -> list[str]:
        gpu_sentence = ""
        if decision.gpu_short_by:
            where = "a GPU" if decision.gpu is None else f"GPU {decision.gpu}"
            gpu_sentence = (
                f"needs {format_size(self.entry.gpu_need)} on {where}: short by {format_size(decision.gpu_short_by)} "
                "of what is free there and promised to nobody"
            )
        return waiting_words(
            picture, self.entry.need or 0, decision, _largest_strangers(picture), gpu_sentence
        )

    def _when(self, picture: Picture, decision: Decision) -> str:
        return f"  {when_words(picture, decision)}; it starts by itself. Ctrl-C gives up"


def _sweep(dead: Sequence[Entry]) -> None:
    """A run of ours that was killed while it waited never was a run."""
    for entry in dead:
        if entry.uid == os.getuid() and only_waited(Path(entry.folder)):
            from oomproof.recording import prune, runs

            prune.remove(runs.Run(Path(entry.folder)))


def _held_on_cards(gpus: Gpus) -> dict[tuple[int, int], int]:
    return {
        (process.pid, card.index): process.used
        for card in gpus.gpus
        for process in card.processes
        if process.used is not None
    }


def _largest_strangers(picture: Picture) -> list[str]:
    """The heaviest jobs that are no runs of ours, by name."""
    from oomproof.machine import jobs, memory

    try:
        now = memory.read()
        found = jobs.heaviest(jobs.scan(), anon_total=now.anon, shmem_total=now.shmem, at_least=256 << 20)
    except OSError:
        return []
    ours = {
        pid
        for one in picture.running
        for pid in (one.entry.job_pid, one.entry.keeper_pid, one.entry.front_pid)
    }
    strangers = [job for job in found if not ours.intersection(job.pids)][:3]
    return [
        f"{_called(job.command)} (pid {job.pid}) holds {format_size(job.use + job.swap)}" for job in strangers
    ]


def _called(command: Sequence[str]) -> str:
    words = [os.path.basename(command[0]), *mask_argv(command)[1:3]]
    return one_line(" ".join(words))[:60]
