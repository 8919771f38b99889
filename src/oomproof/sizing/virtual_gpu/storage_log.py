"""Every storage of the virtual GPU from birth to death, in order: what a caching allocator would have been asked."""

from __future__ import annotations

import os
import sys
import weakref
from array import array
from collections.abc import Iterable
from typing import Any


class OwnMemory:
    """Anonymous bytes at most: ``before`` the model's first pass, and ``since``."""

    def __init__(self) -> None:
        self.before = self.since = 0

    def begin(self) -> None:
        self.before, self.since = max(self.before, self.since, resident()), 0
        self.note()

    def note(self) -> None:
        self.since = max(self.since, resident())


def resident() -> int:
    """Anonymous memory of this process, in bytes."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
    except (OSError, StopIteration):
        return 0


GPU, HOST = "gpu", "host"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_HERE = os.path.dirname(os.path.abspath(__file__))


class StorageLog:
    """``events`` holds pairs, for the card and for the host: a number of a storage, or its negative at its end, and its bytes.
    Numbers start at 1."""

    def __init__(self) -> None:
        self.events = {GPU: array("q"), HOST: array("q")}
        self.by_address: dict[int, tuple[Any, int, str]] = {}
        self.kinds: dict[int, str] = {}  # number → weights, gradients, optimizer state; others by birth
        self.sums: dict[int, tuple[int, int]] = {}  # in backward: number → those it is the sum of
        self.signed: dict[
            int, int
        ] = {}  # number of a workspace → its operation's signature, inverted (~) for all but the first
        self.possible: dict[int, int] = {}  # number of a workspace that may be taken → bytes
        self.births = array("b")  # number - 1 → index into PARTS_OF_STEP
        self.live = {GPU: 0, HOST: 0}
        self.peak = {GPU: 0, HOST: 0}
        self.peak_place = ""
        self.marks: list[tuple[int, str]] = []  # index into the card's events, name of what began there
        self.host_marks: list[tuple[int, str]] = []  # the same for the host's
        self.allocator_settings: list[str] = []  # that the script makes itself
        self.part = 0  # of the step: see PARTS_OF_STEP
        self.place: Any = lambda: ""
        self.forget: Any = lambda number: None  # called with the number of a storage that is gone
        self._told_peak = 0

    def is_known(self, storage: Any) -> bool:
        known = self.by_address.get(storage._cdata)
        return known is not None and known[0]() is storage

    def see(self, tensor: Any, where: str) -> None:
        """A storage that an operation returned; one that is known is left alone."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if not size or self.is_known(storage):
            return

        def gone(_: Any) -> None:
            entry = self.by_address.get(address)
            if entry is not None and entry[1] == number:
                del self.by_address[address]
            self.live[where] -= size
            self.events[where].extend((-number, size))
            self.forget(number)

        number = self._taken(size, "", where)
        self.by_address[address] = (weakref.ref(storage, gone), number, where)

    def _allocated(self, kind: str = "") -> int:
        self.births.append(self.part)
        if kind:
            self.kinds[len(self.births)] = kind
        return len(self.births)

    def _note_peak(self, where: str) -> None:
        if self.live[where] > self.peak[where]:
            self.peak[where] = self.live[where]
            # where it happened is looked up in steps of half a percent: the last step is near enough to the peak
            if where == GPU and self.live[GPU] > self._told_peak * 1.005:
                self._told_peak = self.live[GPU]
                self.peak_place = self.place()

    def _taken(self, size: int, kind: str, where: str) -> int:
        number = self._allocated(kind)
        self.live[where] += size
        self._note_peak(where)
        self.events[where].extend((number, size))
        return number

    def passing(self, size: int, where: str = GPU) -> int | None:
        """A workspace: taken and given back within one operation. The number it gets."""
        if size <= 0:
            return None
        number = self._taken(size, "workspaces", where)
        self.live[where] -= size
        self.events[where].extend((-number, size))
        return number

    def passing_within(self, outer: int, inner: Iterable[int]) -> None:
        """Workspaces that come and go, one after the other, while another is held."""
        number = self._taken(outer, "workspaces", GPU)
        for size in inner:
            self.passing(size)
        self.live[GPU] -= outer
        self.events[GPU].extend((-number, outer))

    def passing_all(self, sizes: Iterable[int], signature: int | None, first: bool = True) -> None:
        """One operation's, one after the other. With a signature there is at least one event, of no bytes if need be: there a
        calibrated card's figures are put in later. ``first``: of those of one operation that come between its results."""
        numbers = [number for number in map(self.passing, sizes) if number is not None]
        if signature is None:
            return
        if not numbers:
            numbers.append(self._allocated("workspaces"))
            self.events[GPU].extend((numbers[0], 0, -numbers[0], 0))
        self.signed.update(dict.fromkeys(numbers, ~signature))  # those that go with the first
        if first:
            self.signed[numbers[0]] = signature

    def perhaps(self, size: int, signature: int | None) -> None:
        """A workspace of which nobody knows whether it is taken: a place in the log where it would be."""
        number = self._allocated("workspaces")
        self.events[GPU].extend((number, 0, -number, 0))
        self.possible[number] = size
        if signature is not None:
            self.signed[number] = signature

    def lasting(self, size: int, kind: str, where: str = GPU) -> None:
        """Memory that a library takes for good."""
        self._taken(size, kind, where)

    def where(self, tensor: Any) -> str:
        known = self.by_address.get(tensor.untyped_storage()._cdata)
        return known[2] if known is not None else HOST

    def number(self, tensor: Any) -> int | None:
        known = self.by_address.get(tensor.untyped_storage()._cdata)
        return known[1] if known is not None else None

    def mark(self, name: str) -> None:
        if not self.marks or self.marks[-1][1] != name:
            self.marks.append((len(self.events[GPU]), name))
            self.host_marks.append((len(self.events[HOST]), name))


PARTS_OF_STEP = (FORWARD, BACKWARD, OPTIMIZER)


def user_line(skip: tuple[str, ...], frame: Any = None) -> str:
    """The innermost line of the user's own files on the stack, or below that frame: those outside the folders in ``skip``."""
    frame = frame if frame is not None else sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(skip) and not file.startswith(("<", _HERE)):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
