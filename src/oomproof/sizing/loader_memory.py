"""What a DataLoader's workers take in RAM: plain arithmetic on batch, workers, prefetch and start method.

Batches that wait are shared memory, which no process's own figures show: (workers × prefetch + 1) of them, exactly; with pin_memory
a thread moves each at once into pinned memory, where they wait instead. A worker's own
growth is its copy of what it touches of the parent's memory (fork) or a whole interpreter with its imports (spawn), and the
samples of the batch that it is making. Measured by bench/loader_memory.py.
"""

from __future__ import annotations

from oomproof.records import dataclass
from oomproof.units import MIB

# bytes of its own that a worker has before its first sample (bench/loader_memory.py): pages it copies of its parent's, or an
# interpreter with torch imported; what else the script imports comes on top of that
START = {"fork": 12 * MIB, "spawn": 150 * MIB, "forkserver": 150 * MIB}
_TRACKER = 6 * MIB  # the process that cleans up behind spawned ones
# glibc gives larger blocks back at once (DEFAULT_MMAP_THRESHOLD_MAX), of smaller ones it keeps some
_FROM_HEAP = 32 * MIB


@dataclass(frozen=True, slots=True)
class Loader:
    """``batch``: bytes of a batch of tensors; ``pinned``: of one in pinned memory, 0: none is. ``own``: what a worker's dataset keeps
    for itself: open files, a cache; ``imports``: bytes of what spawned workers import, where that was measured."""

    workers: int
    prefetch: float = 2
    batch: int = 0
    method: str = "fork"
    own: int = 0
    pinned: int = 0
    imports: int | None = None
    settled: bool = True  # its workers were seen until their queue was full


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
        private = (3 if loader.batch > _FROM_HEAP else 4) * loader.batch + loader.own
        return LoaderMemory(0, private, 2 * loader.pinned)
    waiting = round(loader.workers * loader.prefetch) + 1
    spawned = loader.method != "fork"
    start = START.get(loader.method, START["spawn"])
    if spawned and loader.imports is not None:
        start = loader.imports
    queue = (2 if loader.pinned else waiting) * loader.batch  # one is being pinned, one is on its way to it
    private = loader.workers * (start + loader.batch + loader.own) + (_TRACKER if spawned else 0)
    return LoaderMemory(queue, private, waiting * loader.pinned)
