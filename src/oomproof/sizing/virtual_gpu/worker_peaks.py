"""What a worker of a DataLoader holds of its own at most, told by the worker itself after each batch.

A look from outside sees what a process holds at that moment; on a busy machine few looks fall into the moment at which a batch is made, after
which malloc may give all of it back. The kernel's high-water mark misses nothing, however seldom the worker runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

_READ_AGAIN = 8  # batches after which its own pages are counted anew only where it came to hold more
_STEP = 1 << 20  # bytes more that count
_RECORD = 24  # bytes of the file


def install(fetching: Any) -> None:
    """torch.utils.data._utils.fetch: of this process for those it forks, or of a worker that was spawned."""
    for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):
        kind.fetch = _measured(kind.fetch)


def told(folder: str, pids: Iterable[int]) -> list[int]:
    """Bytes, of each that has made a batch."""
    found = []
    for pid in pids:
        try:
            with open(_path(folder, pid)) as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return found


def _path(folder: str, pid: int) -> str:
    return os.path.join(folder, f"worker-{pid}")


def _measured(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def measured(fetcher: Any, index: Any) -> Any:
        meter = _meter_of_worker()
        if meter is None:
            return fetch(fetcher, index)
        if "_oomproof_collate" not in fetcher.__dict__:
            fetcher._oomproof_collate = fetcher.collate_fn
            fetcher.collate_fn = meter.before(fetcher.collate_fn)
        batch = fetch(fetcher, index)
        meter.end()
        return batch

    return measured


_meters: dict[int, WorkerMeter] = {}


def _meter_of_worker() -> WorkerMeter | None:
    """None in a process that is no worker: without workers the script makes its batches itself."""
    from torch.utils.data import get_worker_info

    folder = os.environ.get("OOMPROOF_SIZE", "")
    worker = get_worker_info()
    if not folder or worker is None or getattr(worker, "worker_method", None) == "thread":
        return None
    pid = os.getpid()
    if pid not in _meters:
        _meters.clear()
        _meters[pid] = WorkerMeter(folder)
    return _meters[pid]


class WorkerMeter:
    """``proc``: of this process.

    The high-water mark counts shared memory too. In the first batch it is known when that comes; of later ones it is not, for a thread sends the
    batch before meanwhile, sooner or later: there only what is held between samples and batch counts."""

    def __init__(self, folder: str, proc: str = "/proc/self") -> None:
        self.proc, self.batches = proc, 0
        self.most = 0  # anonymous bytes, those it shares with its parent among them
        self.own, self.told = 0, 0
        self._path = _path(folder, os.getpid())
        self._note()  # what came before the first batch: a file that was opened, a cache

    def before(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """All samples are there now, and their batch is not: it is made in shared memory."""

        def collated(samples: Any) -> Any:
            self._note()
            return collate(samples)

        return collated

    def end(self) -> None:
        before = self.most
        anon = self._note()
        self.batches += 1
        if self.batches <= _READ_AGAIN or self.most > before + _STEP:
            own = self._private()
            if own is None:
                return
            self.own = max(self.own, own + self.most - anon)
            self._tell()

    def _note(self) -> int:
        """Anonymous bytes now; the highest since the last note counts."""
        facts = _sizes(f"{self.proc}/status")
        anon = facts.get("RssAnon", 0)
        beyond = 0
        if not self.batches:
            beyond = max(0, facts.get("VmHWM", 0) - facts.get("VmRSS", 0))
            self._reset()
        self.most = max(self.most, anon + beyond)
        return anon

    def _reset(self) -> None:
        try:
            with open(f"{self.proc}/clear_refs", "w") as file:
                file.write("5")
        except OSError:  # then it is the highest since the start
            pass

    def _private(self) -> int | None:
        """Anonymous pages that are nobody else's; None where the kernel does not tell."""
        facts = _sizes(f"{self.proc}/smaps_rollup")
        if "Private_Dirty" not in facts:
            return None
        return max(0, facts["Private_Dirty"] - facts.get("Pss_Shmem", 0))

    def _tell(self) -> None:
        if self.own <= self.told:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, str(self.own).rjust(_RECORD).encode(), 0)
            os.close(file)
            self.told = self.own
        except OSError:
            pass


def _sizes(path: str) -> dict[str, int]:
    """The lines that end in kB, in bytes."""
    sizes = {}
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(":")
                if value.endswith(" kB\n"):
                    sizes[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError):
        return {}
    return sizes
