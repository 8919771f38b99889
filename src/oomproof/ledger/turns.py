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

from oomproof.recording.state_files import is_locked
from oomproof.records import asdict, dataclass, replace

ON, WAITING = "on", "waiting"
_SIZE = 512  # every record is this long: one write replaces it whole


@dataclass(frozen=True, slots=True)
class Place:
    """One run and one card. ``since``: boottime at which it got, or began to wait for, the card."""

    run: str
    state: str
    since: float
    need: int | None = None  # bytes on the card; None: unknown, so it has the card for itself
    used: int = 0  # what the card says it holds now
    turn: float = 120.0  # seconds it may stay while another waits


def asks(place: Place, room: int) -> int:
    """An unknown need takes the whole card; one that outgrew its word counts with what it holds."""
    return room if place.need is None else min(room, max(place.need, place.used))


def queue(places: Sequence[Place]) -> list[Place]:
    """Who waits, the longest first."""
    return sorted((one for one in places if one.state == WAITING), key=lambda one: (one.since, one.run))


def decide(me: Place, others: Sequence[Place], room: int, now: float) -> str:
    """``go`` or ``wait`` for one that waits; ``stay`` or ``yield`` for one on the card.

    ``room`` is what the card has for all of us together: its total less what strangers hold.
    First come, first served. Of those on the card the one that came first yields first, after its turn.
    """
    everybody = [me, *others]
    on = [one for one in everybody if one.state == ON]
    waiting = queue(everybody)
    head = waiting[0] if waiting else None
    taken = sum(asks(one, room) for one in on)
    fits = head is not None and (not on or taken + asks(head, room) <= room)
    if me.state == WAITING:
        return "go" if head == me and fits else "wait"
    if head is None or fits:
        return "stay"
    first = min(on, key=lambda one: (one.since, one.run))
    return "yield" if first == me and now - me.since >= me.turn else "stay"


class Turns:
    """This run's place on one card, and everybody else's."""

    def __init__(self, folder: Path, card: int, place: Place) -> None:
        self._card = card
        self._folder = folder / f"gpu-{card}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.place = place
        self._path = self._folder / place.run
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # swept by another between the open and the lock
        self.put(place)

    def put(self, place: Place) -> None:
        self.place = place
        os.pwrite(self._fd, json.dumps(asdict(place)).encode().ljust(_SIZE), 0)

    def update(self, used: int) -> None:
        if used != self.place.used:
            self.put(replace(self.place, used=used))

    def others(self) -> list[Place]:
        """Living runs only. The files of killed ones are removed on the way."""
        found = []
        for path in sorted(self._folder.iterdir()):
            if path == self._path or path.name.startswith("."):
                continue
            if not is_locked(path):
                path.unlink(missing_ok=True)
                continue
            try:
                found.append(Place(**json.loads(path.read_bytes())))
            except (OSError, ValueError, TypeError):
                continue  # just being made
        return found

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """One at a time: two that wait must not both see the same room."""
        fd = os.open(self._folder / ".deciding", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def take(self, room: int, now: float) -> bool:
        """Gets the card if it is this run's turn."""
        with self.deciding():
            if decide(self.place, self.others(), room, now) != "go":
                return False
            self.put(replace(self.place, state=ON, since=now))
            return True

    def shall_yield(self, room: int, now: float) -> bool:
        return self.place.state == ON and decide(self.place, self.others(), room, now) == "yield"

    def gave_back(self, now: float) -> None:
        """Called once the memory is free, not before: the next one goes by this."""
        self.put(replace(self.place, state=WAITING, since=now, used=0))

    def noted(self, now: float) -> dict[str, object]:
        """What machine/cuda_checkpoint.py needs to take this place up when the run has lost its guard."""
        place = replace(self.place, state=WAITING, since=now, used=0)
        return {"folder": str(self._folder), "card": self._card, "place": asdict(place)}

    def leave(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
