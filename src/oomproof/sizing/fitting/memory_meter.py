"""What a few steps of training take, measured where they run: the card's own log of allocations, or the process's memory on the host."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import Any

from oomproof.ledger.budget import current_budget
from oomproof.machine import processes
from oomproof.records import dataclass, replace
from oomproof.sizing.caching_allocator import CachingAllocator, Events, smallest_capacity
from oomproof.sizing.virtual_run import asked_expandable
from oomproof.units import MIB

# Left free on a card: what others on it and CUDA's own libraries take more later. Seen on an H200: contexts of 751 to 771 MiB.
_RESERVE_SHARE, _RESERVE_LEAST = 0.005, 64 * MIB
_MOST_ENTRIES = 2_000_000  # of the allocator's log, about 200 bytes each


@dataclass(frozen=True, slots=True)
class Reading:
    """``need``: bytes the steps need at least, with what was in use ``before``. ``kept``: what the process holds afterwards. ``events``: the
    log of allocations, where there is one. ``capacity``: bytes there are for it."""

    need: int
    capacity: int
    before: int = 0
    events: Events | None = None
    on_host: bool = False
    kept: int = 0


class CudaMeter:
    """All cards; the one on which most is held counts. The allocator's own log is replayed for the smallest capacity that would do: what it
    reserves with plenty is up to an eighth more."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.is_logging = False
        self._before: dict[int, list[tuple[int, int]]] = {}

    def start(self) -> None:
        cuda = self.torch.cuda
        for device in range(cuda.device_count()):
            with contextlib.suppress(RuntimeError):  # no context on that card
                cuda.reset_peak_memory_stats(device)
        if _is_traced_by_the_agent() or str(cuda.get_allocator_backend()) != "native":
            return
        # a torch whose private functions are other ones: peaks are told instead
        with contextlib.suppress(Exception):
            # made once in a process, by the first to multiply: two logs have the same tensors only if each has them
            self.torch._C._cuda_clearCublasWorkspaces()
            self._before = _live_blocks(cuda.memory._snapshot())
            cuda.memory._record_memory_history(
                "all", context=None, stacks="python", max_entries=_MOST_ENTRIES
            )
            self.is_logging = True

    def stop(self) -> Reading | None:
        cuda = self.torch.cuda
        held = {device: int(cuda.max_memory_allocated(device)) for device in range(cuda.device_count())}
        device = max(held, key=lambda index: held[index], default=None)
        events: Events | None = None
        if self.is_logging:
            self.is_logging = False
            with contextlib.suppress(Exception):
                if device is not None:
                    traces = cuda.memory._snapshot()["device_traces"]
                    events = trace_events(traces[device], self._before.get(device, []))
            with contextlib.suppress(Exception):
                cuda.memory._record_memory_history(None)
        if device is None or not held[device]:
            return None
        reserved = int(cuda.max_memory_reserved(device))
        need = measured_need(events, reserved, asked_expandable()) if events else reserved
        capacity = self.capacity(device)
        before = sum(size for _, size in self._before.get(device, []))
        return Reading(need, capacity, before, events or None)

    def capacity(self, device: int | None = None) -> int:
        """Bytes the allocator could reserve if it held nothing: what others hold is not ours."""
        cuda = self.torch.cuda
        index = cuda.current_device() if device is None else device
        free, total = cuda.mem_get_info(index)
        return card_capacity(free, total, int(cuda.memory_reserved(index)), _fraction(cuda, index))


def measured_need(events: Events, reserved: int, expandable: bool) -> int:
    """``reserved``: at most, by the card. What it had beyond the replay (pools of CUDA graphs, other streams) cannot be given back."""
    ample = CachingAllocator(expandable)
    ample.replay(events)
    return smallest_capacity(events, expandable) + max(0, reserved - ample.peak_reserved)


def card_capacity(free: int, total: int, reserved: int, fraction: float | None) -> int:
    """Less a small reserve; a share of the card that the process may have at most needs none, for nobody else takes of it."""
    left = free + reserved
    capacity = left - max(_RESERVE_LEAST, int(left * _RESERVE_SHARE))
    return max(0, capacity if fraction is None else min(capacity, int(total * fraction)))


def _fraction(cuda: Any, device: int) -> float | None:
    ask = getattr(cuda.memory, "get_per_process_memory_fraction", None)
    with contextlib.suppress(Exception):
        fraction = float(ask(device)) if ask is not None else 1.0
        return fraction if 0 < fraction < 1 else None
    return None


def _is_traced_by_the_agent() -> bool:
    """Of `oomproof run --trace-alloc`: there is one log."""
    module = sys.modules.get("_oomproof.agent.allocator")
    watch = module.current() if module is not None else None
    return bool(getattr(watch, "tracing", False))


def _live_blocks(snapshot: Any) -> dict[int, list[tuple[int, int]]]:
    """Address and bytes of what is in use already, by card."""
    blocks: dict[int, list[tuple[int, int]]] = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                size = int(block.get("requested_size") or block["size"])
                blocks.setdefault(int(segment["device"]), []).append((int(block["address"]), size))
    return blocks


def trace_events(trace: Any, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The allocator's own log in the form that is replayed. ``before``: what was in use when it began."""
    events: list[tuple[int, int]] = []
    names: dict[int, int] = {}
    for address, size in sorted(before, key=lambda block: block[1]):  # the same order in every log
        names[address] = len(names) + 1
        events.append((names[address], size))
    following = len(names) + 1
    for entry in trace:
        if entry["action"] == "alloc":
            names[int(entry["addr"])] = following
            events.append((following, int(entry["size"])))
            following += 1
        elif (
            entry["action"] == "free_completed" and (name := names.pop(int(entry["addr"]), None)) is not None
        ):
            events.append((-name, 0))
    return events


class HostMeter:
    """Of this process and those it started, at most: anonymous memory, which is what a batch on the CPU takes."""

    def __init__(self) -> None:
        self._others = self._before = 0

    def start(self) -> None:
        self._others, self._before = 0, self.own()
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew

    def look(self) -> None:
        """At loader workers: between two steps, while they are there."""
        pids = processes.descendants(os.getpid()) if sys.platform == "linux" else ()
        members = [member for member in map(processes.memory, pids) if member is not None]
        shared = [processes.overlap(member.pid) for member in members]
        own = sum(
            max(0, member.anon - (part.anon if part is not None else 0))
            for member, part in zip(members, shared, strict=True)
        )
        self._others = max(self._others, own)

    def stop(self) -> Reading:
        now = processes.memory(os.getpid()) if sys.platform == "linux" else None
        if now is None:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        else:
            peak = max(now.anon, now.largest_rss - now.file)
        return Reading(peak + self._others, self.capacity(), self._before, on_host=True)

    @staticmethod
    def own() -> int:
        now = processes.memory(os.getpid()) if sys.platform == "linux" else None
        return now.anon + now.shmem if now is not None else 0

    def capacity(self) -> int:
        """With what this process has already, less the margin that keeps the machine usable."""
        return max(0, current_budget().headroom + self.own())


class Meter:
    """Of a card where torch sees one and the training puts something on it; else of the host."""

    def __init__(self) -> None:
        torch: Any = sys.modules.get("torch")
        self.card = CudaMeter(torch) if torch is not None and torch.cuda.is_available() else None
        self.host = HostMeter()

    def start(self) -> None:
        self.host.start()
        if self.card is not None:
            self.card.start()

    def look(self) -> None:
        if self.card is None:
            self.host.look()

    def stop(self) -> Reading:
        on_card = self.card.stop() if self.card is not None else None
        return on_card if on_card is not None else self.host.stop()

    def settled(self, reading: Reading) -> Reading:
        """Once the attempt is gone: what the process keeps all the same (libraries, threads) belongs to no batch."""
        return replace(reading, kept=self.host.own()) if reading.on_host else reading

    def capacity(self) -> int:
        return self.card.capacity() if self.card is not None else self.host.capacity()
