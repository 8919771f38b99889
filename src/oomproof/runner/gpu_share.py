"""Takes turns on a GPU with other runs that allow it (--gpu-share): waits, gives the card's memory back, takes it again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oomproof.errors import NEVER, NOT_NOW, USAGE, OomproofError
from oomproof.guard.gpu_pause import GpuPause, Result, held_by
from oomproof.ledger.gpu_turns import ON, WAITING, GpuSlot, GpuTurns
from oomproof.machine.clock import boottime
from oomproof.machine.gpu import Gpu
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import runtime_folder
from oomproof.records import replace
from oomproof.runner import gpu_feed
from oomproof.runner.gpu_feed import GpuFeed
from oomproof.units import format_duration, format_size

_TICK = 1.0
_CARD_ANSWERS = 30.0  # seconds within which a driver must answer
_TRY_AGAIN = 15.0  # seconds after a pause or a restore that could not be done
_SWITCHES = 10  # a turn lasts at least so many times what pausing and restoring cost


def card_index(wanted: int | None, environment: dict[str, str] | None = None) -> int:
    """The card this job will use: as asked, else the first it may see, else the first there is."""
    if wanted is not None:
        return wanted
    visible = (environment if environment is not None else os.environ).get("CUDA_VISIBLE_DEVICES", "0")
    first = visible.split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def capacity_of(card: Gpu, slots: Sequence[GpuSlot]) -> int:
    """What the card has for all who share it: its total less what unmanaged processes hold, and what the driver keeps."""
    ours = sum(slot.used for slot in slots if slot.state == ON)
    unmanaged = max(0, (card.used or 0) - ours)
    return max(0, (card.total or 0) - unmanaged)


def join(
    run_id: str, wanted: int | None, need: int | None, turn: float, say: Callable[[str], None]
) -> GpuShare:
    """This run's place on the card, once it may start."""
    feed = gpu_feed.start()
    if feed is None:
        raise OomproofError("there is no NVIDIA GPU here to share", "leave --gpu-share out", NOT_NOW)
    share = GpuShare(run_id, card_index(wanted), need, turn, feed, say, runtime_folder())
    try:
        share.wait()
    except BaseException:
        share.close()
        feed.close()
        raise
    return share


class GpuShare:
    """Before the start: `wait`. While it runs: a thread that looks once a second."""

    def __init__(
        self,
        run_id: str,
        card: int,
        need: int | None,
        turn: float,
        feed: GpuFeed,
        say: Callable[[str], None],
        folder: Path,
    ) -> None:
        self.feed = feed
        self._card, self._say = card, say
        self._turns = GpuTurns(folder, card, GpuSlot(run_id, WAITING, boottime(), need, turn=turn))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gpu-share", daemon=True)
        self._not_before = 0.0
        self._paused_at: float | None = None
        self._told = ""

    # --- before the start -------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until the card is this run's. Says who is in the way, and says it again when that changes."""
        began = time.monotonic()
        while True:
            card = self._find()
            if card is not None:
                self._check_ever(card)
                if self._take(card):
                    return
                self._tell_once(self._runs_in_the_way(card))
            elif time.monotonic() - began > _CARD_ANSWERS:
                raise OomproofError(
                    f"GPU {self._card} does not answer", "look at it: nvidia-smi; or leave --gpu-share out"
                )
            time.sleep(0.2 if card is None else _TICK)

    def _find(self) -> Gpu | None:
        cards = self.feed.latest()
        if cards and self._card not in [card.index for card in cards]:
            known = ", ".join(str(card.index) for card in cards)
            raise OomproofError(f"there is no GPU {self._card} here", f"choose one of: {known}", USAGE)
        return next((card for card in cards if card.index == self._card), None)

    def _check_ever(self, card: Gpu) -> None:
        need = self._turns.slot.need
        if card.total is not None and need is not None and need > card.total:
            raise OomproofError(
                f"needs {format_size(need)} on GPU {card.index}; it has {format_size(card.total)} in all: never fits",
                "make the job smaller, or take a larger card",
                NEVER,
            )

    def _take(self, card: Gpu) -> bool:
        return self._turns.take(capacity_of(card, [self._turns.slot, *self._turns.others()]), boottime())

    def _runs_in_the_way(self, card: Gpu) -> str:
        others = self._turns.others()
        names = [f"{other.run} ({format_size(other.used)})" for other in others if other.state == ON]
        need = self._turns.slot.need
        wants = (
            f"needs {format_size(need)}"
            if need is not None
            else "wants the card for itself (--gpu-need says less)"
        )
        held = f"{', '.join(names)} on it" if names else f"{format_size(card.used)} used by others"
        ahead = sum(1 for other in others if other.state == WAITING and other.since < self._turns.slot.since)
        line = f", {ahead} waiting before it" if ahead else ""
        return f"waiting for GPU {card.index}: {wants}; {held}{line}"

    # --- while it runs ----------------------------------------------------------------------------------------

    def attach(
        self,
        attempt: Attempt,
        pids: Callable[[], Sequence[int]],
        host_available: Callable[[int], str],
        is_paused: Callable[[], bool],
        record: Callable[[str, str], None],
        say: Callable[[str], None],
    ) -> None:
        """``host_available(bytes)``: why the host cannot hold them, or "". ``is_paused``: whether the job is paused now."""
        self._pause = GpuPause(attempt)
        self._pids, self._host_available, self._is_paused = pids, host_available, is_paused
        self._record, self._say = record, say
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop.wait(_TICK):
            try:
                self._look(boottime())
            except Exception as error:  # a bug here must not cost the run; the card stays with whoever has it
                self._record("trouble", f"gpu-share: {type(error).__name__}: {error}")

    def _look(self, now: float) -> None:
        card = self._find()
        if card is None:
            return
        if self._turns.slot.state == ON:
            self._turns.update(self._held(card))
        if now < self._not_before or self._is_paused():
            return  # a process that is paused does not answer the driver
        capacity = capacity_of(card, [self._turns.slot, *self._turns.others()])
        if self._turns.shall_yield(capacity, now):
            self._yield()
        elif (
            self._paused_at is not None
            and self._turns.slot.state == WAITING
            and self._turns.take(capacity, now)
        ):
            self._go_on()

    def _held(self, card: Gpu) -> int:
        return held_by(self._pids(), [card]).get(card.index, 0)

    def _yield(self) -> None:
        held = held_by(self._pids(), self.feed.latest())
        size = sum(held.values())
        problem = self._host_available(size)
        pause = self._pause
        result = (
            Result(False, problem=problem)
            if problem
            else pause.give_back(self._pids(), held, self._turns.noted(boottime()))
        )
        if not result.done:
            self._not_before = boottime() + _TRY_AGAIN
            self._tell_once(
                f"cannot free memory on GPU {self._card} for the run that waits: {result.problem}"
            )
            return
        self._paused_at = boottime()
        self._longer_turns(result.seconds * 2)
        self._turns.gave_back(self._paused_at)
        self._tell(
            "gpu-pause",
            f"paused: its turn on GPU {self._card} is over. {format_size(size)} of GPU memory moved to its host memory in "
            f"{format_duration(result.seconds)}; it resumes when the card is free again",
        )

    def _go_on(self) -> None:
        assert self._paused_at is not None
        result = self._pause.take_back(self.feed.latest())
        if not result.done and not result.lost:
            self._turns.gave_back(self._paused_at)  # it keeps its place in the queue
            self._not_before = boottime() + _TRY_AGAIN
            self._tell_once(f"cannot resume yet: {result.problem}; trying again")
            return
        waited = format_duration(boottime() - self._paused_at)
        self._paused_at = None
        if result.lost:
            self._tell(
                "gpu-lost",
                f"GPU {self._card} could not be given back to the job: {result.problem}. It will end with a CUDA error; its data on the card is lost",
            )
            return
        self._tell(
            "gpu-resume",
            f"resumed: has GPU {self._card} again after {waited} (restored in {format_duration(result.seconds)})",
        )

    def _longer_turns(self, switch: float) -> None:
        """Most of the time must be work, not moving memory."""
        slot = self._turns.slot
        if switch * _SWITCHES > slot.turn:
            self._turns.put(replace(slot, turn=switch * _SWITCHES))

    def _tell(self, kind: str, text: str) -> None:
        self._told = ""
        self._record(kind, text)
        self._say(f"oomproof: {text}")

    def _tell_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(f"oomproof: {text}")

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self._turns.leave()
