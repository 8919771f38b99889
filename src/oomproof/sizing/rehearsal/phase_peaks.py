"""What each phase of a script held at most: on each card by PyTorch's own counters, on the host by the kernel's."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch

from ..virtual_gpu.child_results import CardFacts

LOAD, TRAIN, EVAL, GENERATE, SAVE = "load", "train", "eval", "generate", "save"
_RECORD = 32  # bytes of the file in which the process that watches us finds the phase


class PhasePeaks:
    def __init__(self, folder: str) -> None:
        self.now = LOAD
        self.entered = {LOAD: 1}
        self.cards: dict[
            str, dict[int, list[int]]
        ] = {}  # phase → card → bytes allocated and reserved, each at most
        self.host: dict[str, int] = {}  # phase → anonymous bytes of this process at most
        self._file = os.open(os.path.join(folder, "phase"), os.O_WRONLY | os.O_CREAT, 0o600)
        self._tell()
        _reset_host()

    def enter(self, name: str) -> str:
        """The phase before it."""
        before = self.now
        if name != before:
            self.note()
            self.now = name
            self.entered[name] = self.entered.get(name, 0) + 1
            self._tell()
        return before

    def _tell(self) -> None:
        os.pwrite(self._file, self.now.encode().ljust(_RECORD), 0)

    def note(self) -> None:
        """What was reached since the last note is the phase's that is."""
        self.host[self.now] = max(self.host.get(self.now, 0), _host_peak())
        _reset_host()
        for card in cards():
            stats = torch.cuda.memory_stats_as_nested_dict(card)
            known = self.cards.setdefault(self.now, {}).setdefault(card, [0, 0])
            for place, name in enumerate(("allocated_bytes", "reserved_bytes")):
                known[place] = max(known[place], int(stats[name]["all"]["peak"]))
            torch.cuda.reset_peak_memory_stats(card)

    def reserved(self) -> int | None:
        """Bytes that PyTorch has taken of the cards now; None where none is in use."""
        used = cards()
        return sum(int(torch.cuda.memory_reserved(card)) for card in used) if used else None

    def live(self) -> int:
        """Bytes on the cards; of a script without one, of the tensors and arrays that live."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return sum(int(torch.cuda.memory_allocated(card)) for card in cards())
        return live_on_host()


def live_on_host() -> int:
    """By their own sizes: what a process holds tells nothing of a few batches, as long as freed memory takes them. Tenths of a
    second."""
    sizes: dict[int, int] = {}

    def count(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu":
                storage = value.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        elif type(value).__module__ == "numpy" and hasattr(value, "nbytes"):
            sizes[id(value)] = int(value.nbytes)

    for holder in gc.get_objects():
        kind = type(holder)
        if kind is list or kind is tuple:
            for value in holder:
                count(value)
        elif kind is dict:
            for value in list(holder.values()):
                count(value)
        elif issubclass(kind, torch.Tensor):
            count(holder)
    return sum(sizes.values())


def cards() -> list[int]:
    """Those this process uses; CUDA is never started by us."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    in_use = range(torch.cuda.device_count())
    return [
        card
        for card in in_use
        if torch.cuda.memory_stats_as_nested_dict(card)["reserved_bytes"]["all"]["peak"] > 0
    ]


def card_facts() -> list[CardFacts]:
    facts = []
    for card in cards():
        free, total = torch.cuda.mem_get_info(card)
        facts.append(CardFacts(card, free, total, int(torch.cuda.memory_reserved(card))))
    return facts


def _host_peak() -> int:
    """The kernel's high-water mark, less the files that are mapped now."""
    return max(0, _status("VmHWM:") - _status("RssFile:") - _status("RssShmem:"))


def _reset_host() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:  # then it is the highest since the start
        pass


def _status(name: str) -> int:
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
    except OSError:
        return 0
