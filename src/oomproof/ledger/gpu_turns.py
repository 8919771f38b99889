"""Whose turn it is on a GPU: runs that allow it (--gpu-share) and do not fit together take turns.

One small locked file per such run and card, in the runtime folder; the lock goes with its process. `decide` is the whole rule.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oomproof.leaf.small_files import is_locked
from oomproof.records import asdict, dataclass, replace

ON, WAITING = "on", "waiting"
_SIZE = 512  # every record is this long: one write replaces it whole


@dataclass(frozen=True, slots=True)
class GpuSlot:
    """One run and one card. ``since``: boottime at which it got, or began to wait for, the card."""

    run: str
    state: str
    since: float
    need: int | None = None  # bytes on the card; None: unknown, so it has the card for itself
    used: int = 0  # what the card says it holds now
    turn: float = 120.0  # seconds it may stay while another waits


def asks(slot: GpuSlot, capacity: int) -> int:
    """An unknown need takes the whole card; one that outgrew its word counts with what it holds."""
    return capacity if slot.need is None else min(capacity, max(slot.need, slot.used))


def queue(slots: Sequence[GpuSlot]) -> list[GpuSlot]:
    """Who waits, the longest first."""
    return sorted((slot for slot in slots if slot.state == WAITING), key=lambda slot: (slot.since, slot.run))


def decide(me: GpuSlot, others: Sequence[GpuSlot], capacity: int, now: float) -> str:
    """``go`` or ``wait`` for one that waits; ``stay`` or ``yield`` for one on the card.

    ``capacity`` is what the card has for all of us together: its total less what unmanaged processes hold.
    First come, first served. Of those on the card the one that came first yields first, after its turn.
    """
    everybody = [me, *others]
    on = [slot for slot in everybody if slot.state == ON]
    waiting = queue(everybody)
    head = waiting[0] if waiting else None
    taken = sum(asks(slot, capacity) for slot in on)
    fits = head is not None and (not on or taken + asks(head, capacity) <= capacity)
    if me.state == WAITING:
        return "go" if head == me and fits else "wait"
    if head is None or fits:
        return "stay"
    first = min(on, key=lambda slot: (slot.since, slot.run))
    return "yield" if first == me and now - me.since >= me.turn else "stay"


class GpuTurns:
    """This run's place on one card, and everybody else's."""

    def __init__(self, folder: Path, card: int, slot: GpuSlot) -> None:
        self.card = card
        self._folder = folder / f"gpu-{card}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.slot = slot
        self._path = self._folder / slot.run
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # swept by another between the open and the lock
        self.put(slot)

    def put(self, slot: GpuSlot) -> None:
        self.slot = slot
        os.pwrite(self._fd, json.dumps(asdict(slot)).encode().ljust(_SIZE), 0)

    def update(self, used: int) -> None:
        if used != self.slot.used:
            self.put(replace(self.slot, used=used))

    def others(self) -> list[GpuSlot]:
        """Living runs only. The files of killed ones are removed on the way."""
        slots = []
        for path in sorted(self._folder.iterdir()):
            if path == self._path or path.name.startswith("."):
                continue
            if not is_locked(path):
                path.unlink(missing_ok=True)
                continue
            try:
                slots.append(GpuSlot(**json.loads(path.read_bytes())))
            except (OSError, ValueError, TypeError):
                continue  # just being made
        return slots

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """One at a time: two that wait must not both see the same free memory."""
        fd = os.open(self._folder / ".deciding", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take(self, capacity: int, now: float) -> bool:
        """Gets the card if it is this run's turn."""
        with self.deciding():
            if decide(self.slot, self.others(), capacity, now) != "go":
                return False
            self.put(replace(self.slot, state=ON, since=now))
            return True

    def shall_yield(self, capacity: int, now: float) -> bool:
        return self.slot.state == ON and decide(self.slot, self.others(), capacity, now) == "yield"

    def gave_back(self, now: float) -> None:
        """Called once the memory is free, not before: the next one goes by this."""
        self.put(replace(self.slot, state=WAITING, since=now, used=0))

    def noted(self, now: float) -> dict[str, object]:
        """What runner/gpu_restore.py needs to take this place up when the run is unguarded."""
        slot = replace(self.slot, state=WAITING, since=now, used=0)
        return {"folder": str(self._folder.parent), "card": self.card, "slot": asdict(slot)}

    def leave(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
