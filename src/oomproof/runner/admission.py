"""A run's way in: what it needs, whether there is room, and the wait for its turn. The arithmetic is the ledger's."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.errors import NEVER, NOT_NOW, USAGE, OomproofError
from oomproof.ledger import room
from oomproof.ledger.admission import Card, Decision
from oomproof.ledger.budget import answer
from oomproof.ledger.entries import ADMITTED, WAITING, Entry, with_started
from oomproof.ledger.needs import NEGLIGIBLE, Need, declared, from_history
from oomproof.ledger.picture import Picture, Strangers, look, wish_of
from oomproof.ledger.store import Busy, Ledger, open_ledger
from oomproof.machine import processes
from oomproof.machine.arguments import command_key
from oomproof.machine.clock import boottime
from oomproof.recording import runs
from oomproof.recording.secrets import mask_argv
from oomproof.units import format_duration, format_size

if TYPE_CHECKING:
    from oomproof.machine.gpu import Gpus

_TICK = 1.0  # seconds between looks of one that waits
_LOOK = 1.2  # seconds over which strangers are watched before a large run starts beside them
_GPU_DEADLINE = 5.0
_GPU_EVERY = 5.0  # seconds between questions to the driver while waiting
_WORTH_A_CARD = 256 << 20  # of GPU memory in the history, below which the card is not asked


@dataclass
class Asked:
    """What the user said about room and time."""

    need: int | None = None
    gpu_need: int | None = None
    gpu: int | None = None
    priority: int = 0
    wait: bool = True
    wait_max: float | None = None  # seconds
    not_before: float | None = None  # wall clock
    margin: int | None = None
    limit: int | None = None
    ledger: str | None = None  # folder


class Cancelled(Exception):
    """Told to end while waiting; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class Ticket:
    """The run's entry in the ledger, from the moment it may start."""

    entry: Entry
    ledger: Ledger | None
    told: list[str] = field(default_factory=list)  # lines for the user, at the start
    environment: dict[str, str] = field(default_factory=dict)

    def started(self, started: dict[str, Any]) -> None:
        """Off the path of the start: from now on the entry lives as long as the keeper or the job."""
        if self.ledger is None:
            return
        try:
            with self.ledger.decision():
                self.ledger.put(with_started(self.entry, started))
        except (Busy, OomproofError):
            pass  # then the entry lives as long as the front, and a reader finds the keeper in the run's folder
        finally:
            self.ledger.close()
            self.ledger = None

    def drop(self) -> None:
        """The job could not be started."""
        if self.ledger is not None:
            with contextlib.suppress(Busy):
                self.ledger.remove([self.entry.run])
            self.ledger.close()
            self.ledger = None

    def as_json(self) -> dict[str, Any]:
        """For run.json: what a lost ledger is rebuilt from, and the key under which the peak is kept."""
        entry = self.entry
        return {
            "key": entry.key,
            "need": entry.need,
            "need_low": entry.need_low,
            "basis": entry.basis,
            "gpu_need": entry.gpu_need,
            "gpu": entry.gpu,
            "priority": entry.priority,
            "asked": entry.asked,
            "cap": entry.cap,
            "twin": entry.twin,
        }


def ask(
    run: runs.Run,
    argv: Sequence[str],
    name: str | None,
    asked: Asked,
    folder: str,
    say: Callable[[str], None],
    on_waiting: Callable[[str], None],
) -> Ticket:
    """Returns when the run may start. Raises 69 when it can never, 75 when not now and it shall not wait."""
    ledger = open_ledger(asked.ledger)
    assert ledger is not None
    try:
        return _Admission(run, argv, name, asked, folder, say, on_waiting, ledger).go()
    except BaseException:
        with contextlib.suppress(Exception):
            ledger.remove([run.id])
        ledger.close()
        raise


class _Admission:
    def __init__(
        self,
        run: runs.Run,
        argv: Sequence[str],
        name: str | None,
        asked: Asked,
        folder: str,
        say: Callable[[str], None],
        on_waiting: Callable[[str], None],
        ledger: Ledger,
    ) -> None:
        self.run, self.asked, self.ledger = run, asked, ledger
        self.say, self.on_waiting = say, on_waiting
        me = os.getpid()
        key = command_key(mask_argv(argv), folder)
        self.need = self._need(key)
        self.strangers = Strangers()
        self.gpus: Gpus | None = None
        self.gpus_at = 0.0
        self.entry = Entry(
            run=run.id,
            uid=os.getuid(),
            name=name or run.id,
            key=key,
            state=WAITING,
            boot=processes.boot_id(),
            asked=boottime(),
            front_pid=me,
            front_start=processes.start_time(me),
            folder=str(run.folder),
            priority=asked.priority,
            need_low=self.need.low if self.need else None,
            need=self.need.high if self.need else None,
            basis=self.need.basis if self.need else "",
            gpu_need=asked.gpu_need or 0,
            gpu=asked.gpu,
            cap=asked.limit,
        )

    # --- what it needs --------------------------------------------------------------------------------------------

    def _need(self, key: str) -> Need | None:
        asked = self.asked
        need = declared(asked.need) if asked.need is not None else from_history(self.ledger.peaks(key))
        if need is not None and asked.limit is not None and need.high > asked.limit:
            if asked.need is not None:
                raise OomproofError(
                    f"--need {format_size(asked.need)} is more than --limit {format_size(asked.limit)} lets it have",
                    "raise --limit, or lower --need",
                    USAGE,
                )
            need = replace(need, low=min(need.low, asked.limit), high=asked.limit)
        return need

    def go(self) -> Ticket:
        if self.asked.gpu_need:
            self._look_at_cards()
            self._fold_unified()
        self._refuse_the_impossible()
        started_waiting: float | None = None
        if self.asked.not_before is not None and time.time() < self.asked.not_before:
            started_waiting = boottime()
            self._until_the_hour()
        small = self.asked.need is None and (self.need is None or self.need.high < NEGLIGIBLE)
        if small and not self.entry.gpu_need:
            return self._at_once()
        picture, decision = self._first_try()
        if decision.verdict != "start":
            self._wait(picture, decision, started_waiting)
        return self._admitted()

    def _at_once(self) -> Ticket:
        """Nothing to weigh: it starts, and stands in the ledger a moment later (see Ticket.started)."""
        self.entry = replace(self.entry, state=ADMITTED, admitted=boottime())
        told = list(self.ledger.notes)
        if self.need is None:
            told.append(
                "need unknown: starts at once, with what it holds and ten minutes of its growth reserved, and is the first to be "
                "paused (--need SIZE changes that)"
            )
        return Ticket(self.entry, self.ledger, told)

    def _refuse_the_impossible(self) -> None:
        if self.need is not None:
            found = answer(room.read(self.asked.margin), self.need.high)
            if found.status == "never" and self.asked.need is None:
                # An old peak is no reason to refuse for ever: it ran then, on this machine or another.
                self.need = None
                self.entry = replace(self.entry, need=None, need_low=None, basis="")
            elif found.status == "never":
                raise OomproofError(found.sentence, "make it smaller, or take a larger machine", NEVER)
        if self.entry.gpu_need:
            from oomproof.ledger.budget import answer_gpu

            found = answer_gpu(self.gpus or _no_gpus(), self.entry.gpu_need, self.entry.gpu)
            if found.status == "never":
                raise OomproofError(found.sentence, "make it smaller, or take a larger GPU", NEVER)
            if self.gpus is not None and self.gpus.problem and not self.gpus.gpus:
                raise OomproofError(
                    found.sentence, "look at the driver (nvidia-smi), or leave --gpu-need out", NOT_NOW
                )

    # --- deciding -------------------------------------------------------------------------------------------------

    def _first_try(self) -> tuple[Picture, Decision]:
        picture = self._look()
        decision = picture.decide(wish_of(self.entry), self._cards())
        if decision.verdict == "start" and self._large(picture):
            time.sleep(_LOOK)  # somebody else may be filling the very room right now
        return self._try()

    def _large(self, picture: Picture) -> bool:
        return (self.need.high if self.need else 0) > picture.budget.headroom // 2

    def _look(self, times: bool = False) -> Picture:
        held = _held_on_cards(self.gpus) if self.gpus is not None else None
        picture = look(self.ledger, self.asked.margin, cards_held=held, times=times)
        growing = self.strangers.look([one.entry for one in picture.running], picture.budget)
        picture = replace(picture, strangers=growing)
        return picture.without(self.entry.run)

    def _try(self) -> tuple[Picture, Decision]:
        """One decision under the ledger's lock; the entry is then there, admitted or waiting."""
        picture, decision = Picture(room.read(self.asked.margin)), Decision("behind")
        try:
            with self.ledger.decision():
                picture = self._look()
                decision = picture.decide(wish_of(self.entry), self._cards())
                self.ledger.remove(entry.run for entry in picture.dead)
                if decision.verdict == "start":
                    self.entry = replace(
                        self.entry,
                        state=ADMITTED,
                        admitted=boottime(),
                        gpu=decision.gpu if self.entry.gpu_need else None,
                    )
                self.ledger.put(self.entry)
        except Busy as error:
            self._note(f"{error}; asking again")
            return picture, Decision("behind")
        except OomproofError as error:
            # Nowhere to write it down. By the arithmetic it may start or not; others just cannot see that it did.
            self._note(f"{error.message}: this run is not reserved, another may be let in beside it")
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
        from oomproof.machine import gpu  # it brings subprocess along

        found = gpu.Query().answer(_GPU_DEADLINE) if gpu.driver_present() else gpu.Gpus()
        self.gpus = gpu.Gpus(found.gpus + gpu.read_amd(first_index=len(found.gpus)), found.problem)
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
        with _Waiting(self) as waiting:
            waiting.tell([f"waits until {clock} (--not-before)"])
            while time.time() < hour:
                waiting.pause(min(_TICK, max(0.01, hour - time.time())), f"until {clock}")

    def _wait(self, picture: Picture, decision: Decision, since: float | None) -> None:
        if not self.asked.wait:
            lines = self._lines(self._look(times=True), decision)
            raise OomproofError("\n".join(lines), "leave --no-wait out to wait for its turn", NOT_NOW)
        begun = boottime() if since is None else since
        deadline = None if self.asked.wait_max is None else begun + self.asked.wait_max
        with _Waiting(self) as waiting:
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
                    picture = self._look(times=True)
                    waiting.tell([*self._lines(picture, decision), self._when(picture, decision)])
                short = decision.short_by or decision.gpu_short_by
                status = f"short by {format_size(short)}" if short else "others come first"
                pause = _TICK * min(5.0, 1.0 + 0.05 * len(picture.waiting))
                if deadline is not None:
                    pause = max(0.01, min(pause, deadline - boottime()))
                waiting.pause(pause, f"{format_duration(boottime() - begun)}, {status}")
                picture, decision = self._again()
            self.say(f"oomproof: starts now, after {format_duration(boottime() - begun)} of waiting")

    def _again(self) -> tuple[Picture, Decision]:
        """First a look without the lock: many may wait, and most looks change nothing."""
        if self.gpus is not None and boottime() - self.gpus_at > _GPU_EVERY:
            self._look_at_cards()
        picture = self._look()
        decision = picture.decide(wish_of(self.entry), self._cards())
        if decision.verdict == "start" or not self._stands():
            return self._try()
        return picture, decision

    def _stands(self) -> bool:
        """The ledger may have been lost and begun anew: then we enter ourselves again, at our old place."""
        return any(entry.run == self.entry.run for entry in self.ledger.entries())

    def _lines(self, picture: Picture, decision: Decision) -> list[str]:
        from oomproof.ledger.words import waiting_words

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
        from oomproof.ledger.words import when_words

        return f"  {when_words(picture, decision)}; it starts by itself. Ctrl-C gives up"


class _Waiting:
    """While a run waits it is listed as waiting, can be told to end, and leaves nothing behind that looks like a run."""

    def __init__(self, admission: _Admission) -> None:
        self._admission = admission
        self._lock: int | None = None
        self._before: dict[int, Any] = {}
        self._status = False
        self._told = False
        self._tty = os.isatty(2) if not os.environ.get("NO_COLOR") else False

    def __enter__(self) -> _Waiting:
        run, entry = self._admission.run, self._admission.entry
        try:
            self._lock = runs.take_lock(run.folder / "waiting.lock")
            runs.write_json(
                run.folder / "waiting.json",
                {
                    "front": {"pid": entry.front_pid, "start": entry.front_start},
                    "need": entry.need,
                    "since": time.time(),
                },
            )
        except (OSError, OomproofError):
            pass  # a full disk: it waits all the same, only `oomproof runs` does not say so
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, _cancel)
        return self

    def __exit__(self, *_: object) -> None:
        self._erase()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            (self._admission.run.folder / "waiting.json").unlink()
        if self._lock is not None:
            os.close(self._lock)

    def tell(self, lines: list[str]) -> None:
        self._erase()
        for note in self._admission.ledger.notes:
            self._admission.say(f"oomproof: {note}")
        self._admission.ledger.notes.clear()
        text = "\n".join(lines)
        self._admission.say(f"oomproof: waits: {text}")
        if not self._told:
            self._told = True
            self._admission.on_waiting(lines[0])

    def pause(self, seconds: float, status: str) -> None:
        if self._tty:
            columns = _columns()
            text = f"oomproof · waiting {status}"[: max(20, columns) - 1]
            with contextlib.suppress(OSError):
                os.write(2, f"\r\x1b[K\x1b[2m{text}\x1b[0m".encode())
            self._status = True
        time.sleep(seconds)

    def _erase(self) -> None:
        if self._status:
            with contextlib.suppress(OSError):
                os.write(2, b"\r\x1b[K")
            self._status = False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 80


def _cancel(number: int, _: object) -> None:
    raise Cancelled(number)


def _sweep(dead: Sequence[Entry]) -> None:
    """A run of ours that was killed while it waited never was a run."""
    from shutil import rmtree

    for entry in dead:
        folder = Path(entry.folder)
        ours = entry.uid == os.getuid() and entry.folder and folder.parent.name == "runs"
        never_ran = (folder / "waiting.json").exists() and not (folder / "1" / "started.json").exists()
        if ours and never_ran:
            rmtree(folder, ignore_errors=True)


def _held_on_cards(gpus: Gpus) -> dict[tuple[int, int], int]:
    return {
        (process.pid, card.index): process.used
        for card in gpus.gpus
        for process in card.processes
        if process.used is not None
    }


def _no_gpus() -> Gpus:
    from oomproof.machine.gpu import Gpus

    return Gpus()


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
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(words))[:60]
