"""What a DataLoader's workers take in RAM: plain arithmetic on batch, workers, prefetch and start method.

Batches that wait are shared memory, which no process's own figures show: (workers × prefetch + 1) of them, exactly. A worker's own
growth is its copy of what it touches of the parent's memory (fork) or a whole interpreter with its imports (spawn), and the
samples of the batch that it is making. Measured by bench/loader_memory.py.
"""

from __future__ import annotations

from oomproof.records import dataclass
from oomproof.units import MIB

# bytes of its own that a worker has before its first sample, with torch alone imported (bench/loader_memory.py)
START = {"fork": 10 * MIB, "spawn": 190 * MIB, "forkserver": 190 * MIB}


@dataclass(frozen=True, slots=True)
class Loader:
    """``batch``: bytes of a batch of tensors. ``own``: what a worker's dataset keeps for itself: open files, a cache;
    ``imports``: bytes of what spawned workers import, where that was measured."""

    workers: int
    prefetch: int = 2
    batch: int = 0
    method: str = "fork"
    own: int = 0
    pinned: bool = False
    imports: int | None = None


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
    """Without workers the batch, and the samples it is made of, are the process's own."""
    if loader.workers == 0:
        return LoaderMemory(0, 2 * loader.batch, 2 * loader.batch if loader.pinned else 0)
    start = START.get(loader.method, START["spawn"])
    if loader.method != "fork" and loader.imports is not None:
        start = loader.imports
    queue = (loader.workers * loader.prefetch + 1) * loader.batch
    private = loader.workers * (start + loader.batch + loader.own)
    return LoaderMemory(queue, private, 2 * loader.batch if loader.pinned else 0)


def copied_on_write(objects: int, workers: int) -> int:
    """The most that workers come to copy of Python objects in the parent: a page for what shares it, some 100 bytes an object."""
    return 100 * objects * workers
