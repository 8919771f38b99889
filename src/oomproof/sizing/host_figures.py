"""What a script took on the host, in parts, and what it would take with another number of loader workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oomproof.records import dataclass, replace
from oomproof.sizing.card_constants import HOST_CUDA
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.virtual_gpu.child_results import Loader
from oomproof.units import MIB

# bytes of its own that a worker has before its first sample (bench/loader_memory.py): pages it copies of its parent's, or an
# interpreter with torch imported; what else the script imports comes on top of that
START = {"fork": 12 * MIB, "spawn": 150 * MIB, "forkserver": 150 * MIB}
_TRACKER = 6 * MIB  # the process that cleans up behind spawned ones
# glibc gives larger blocks back at once (DEFAULT_MMAP_THRESHOLD_MAX), of smaller ones it keeps some
_FROM_HEAP = 32 * MIB


@dataclass(frozen=True, slots=True)
class LoaderMemory:
    """Bytes: the queue in shared memory, all workers' own memory, batches in pinned memory."""

    queue: int
    private: int
    pinned: int

    @property
    def total(self) -> int:
        return self.queue + self.private + self.pinned


def loader_memory(loader: Loader) -> LoaderMemory:
    """Without workers the last batch, the next one and the samples it is made of are the process's own."""
    if loader.workers == 0:
        private = (3 if loader.batch > _FROM_HEAP else 4) * loader.batch
        return LoaderMemory(0, private, 2 * loader.pinned)
    waiting = round(loader.workers * loader.prefetch) + 1
    spawned = loader.method != "fork"
    start = START.get(loader.method, START["spawn"])
    queue = (2 if loader.pinned else waiting) * loader.batch  # one is being pinned, one is on its way to it
    private = loader.workers * (start + loader.batch) + (_TRACKER if spawned else 0)
    return LoaderMemory(queue, private, waiting * loader.pinned)


REPEATED = 0.9  # the same job's peaks differ by as much from run to run (bench/sizing/host.py)
PROCESS, WORKERS, OTHERS, QUEUE, PINNED = (
    "process",
    "loader workers",
    "other processes",
    "shared-memory queue",
    "pinned memory",
)
SAVED, LIBRARIES, LAUNCHER = "checkpoint copy", "CUDA libraries", "launcher"
UNSEEN = "loader workers, not seen to the end"
QUEUE_NOT_FULL = (
    "the loader's workers did not fill their queue in time: each is taken to hold what the fullest held, and one batch more; "
    "--time-limit gives it longer"
)


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Bytes. ``loaders``: those alive when their batches took most. ``own``: what one worker holds itself. ``ranks``: as many on this
    machine hold as much as the one that the other figures are of, without the launcher and what the first one saves."""

    parts: Mapping[str, int]
    loaders: tuple[Loader, ...] = ()
    own: int = 0
    on_card: bool = False
    ranks: int = 1

    @property
    def workers(self) -> int:
        return sum(loader.workers for loader in self.loaders)

    @property
    def shared(self) -> int:
        """What waits in /dev/shm."""
        return self.parts.get(QUEUE, 0)

    def estimate(self) -> Estimate:
        parts = {name: size for name, size in self.parts.items() if size}
        others = self.ranks - 1
        once, unsure = parts.get(SAVED, 0), parts.get(UNSEEN, 0)
        sure = sum(parts.values()) - once - unsure
        low = int(REPEATED * (sure + others * (sure - parts.get(LAUNCHER, 0))))
        if self.on_card:
            parts[LIBRARIES] = HOST_CUDA.usual
        if others:
            alike = sum(parts.values()) - once - parts.get(LAUNCHER, 0)
            parts[f"{others} other ranks" if others > 1 else "1 other rank"] = others * alike
        expected = sum(parts.values())
        spread = self.ranks * (HOST_CUDA.high - HOST_CUDA.usual) if self.on_card else 0
        return Estimate(low, expected, int(expected * (2 - REPEATED)) + spread, parts)

    def with_workers(self, workers: int, prefetch: float | None = None) -> HostFigures:
        """Each loader with that many; one that had none keeps none, where the script gives it its own number."""
        having = [loader for loader in self.loaders if loader.workers]
        changed = [
            replace(loader, workers=workers, prefetch=prefetch if prefetch is not None else loader.prefetch)
            if loader.workers or not having
            else loader
            for loader in self.loaders
        ]
        had = [loader_memory(loader) for loader in self.loaders]
        have = [loader_memory(loader) for loader in changed]
        process = self.parts.get(PROCESS, 0)
        for before, after, memory in zip(self.loaders, changed, have, strict=True):
            if before.workers and not after.workers:
                process += memory.private  # samples and batch are the process's own then
        own = self.own
        if not having:
            own = max(
                (
                    memory.private // loader.workers
                    for loader, memory in zip(changed, have, strict=True)
                    if loader.workers
                ),
                default=0,
            )
        parts = {
            **self.parts,
            PROCESS: process,
            WORKERS: own * sum(loader.workers for loader in changed),
            UNSEEN: sum(map(unseen, changed)),
            QUEUE: self.parts.get(QUEUE, 0)
            + sum(item.queue for item in have)
            - sum(item.queue for item in had),
            PINNED: self.parts.get(PINNED, 0)
            + sum(item.pinned for item in have)
            - sum(item.pinned for item in had),
        }
        return replace(self, parts=parts, loaders=tuple(changed))

    def towards(self, other: HostFigures, share: float) -> HostFigures:
        """On the line from this to the other, each part by itself: 0 this, 1 the other."""

        def between(before: float, after: float) -> int:
            return max(0, round(before + (after - before) * share))

        names = {**self.parts, **other.parts}
        parts = {name: between(self.parts.get(name, 0), other.parts.get(name, 0)) for name in names}
        loaders = other.loaders
        if len(self.loaders) == len(loaders):
            loaders = tuple(
                replace(
                    after,
                    batch=between(before.batch, after.batch),
                    pinned=between(before.pinned, after.pinned),
                )
                for before, after in zip(self.loaders, loaders, strict=True)
            )
        return replace(other, parts=parts, loaders=loaders, own=between(self.own, other.own))


def unseen(loader: Loader) -> int:
    """Bytes that workers may come to hold beyond what was seen of them before their queue was full: each another batch of samples."""
    return 0 if loader.settled else loader.workers * loader.batch


def workers_hold(loader: Loader) -> int:
    """Bytes that a loader's workers hold themselves at most, by what each told of itself (``own``); 0 where none did. One that told
    nothing, or whose queue was not full by then, holds what the fullest does."""
    own = loader.own
    if not own:
        return 0
    if not loader.settled:
        return loader.workers * max(own)
    return sum(own) + max(0, loader.workers - len(own)) * max(own)


def not_settled(loaders: Iterable[Loader]) -> bool:
    return any(not loader.settled for loader in loaders)
