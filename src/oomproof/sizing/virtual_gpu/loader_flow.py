"""DataLoaders: what they hold, and epochs cut short once the training steps were seen."""

from __future__ import annotations

import os
import sys
import time
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, dataloader

from . import worker_peaks
from .child_results import Epoch, Loader
from .largest_batches import larger_batch, sample_size, shapes
from .nested_tensors import tensors
from .step_limits import DRAWN, FIXED, SEEDED, STEPS, WHOLE_EPOCH
from .training_flow import Flow, tell

_MOST = 400  # steps
_SHARE = 0.5  # of the time limit; an evaluation may come behind


class ManyShapes:
    """``batches``: how many an epoch has, as far as it is known, and ``seen`` of them."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.shapes: dict[int, set[str]] = {}  # dataset → of its batches
        self.batches: int | None = None
        self.seen = 0
        self.followed = False
        self.order = DRAWN

    def see(self, iterator: Any, batch: Any) -> None:
        self.shapes.setdefault(id(iterator._dataset), set()).add(str(shapes(batch)))
        iterator.__dict__["_virtual_handed"] = iterator.__dict__.get("_virtual_handed", 0) + 1

    def begin(self, iterator: Any, larger: bool) -> None:
        """``larger``: one that is larger than those seen may come."""
        if not os.environ.get(WHOLE_EPOCH, "1"):
            return
        if larger or len(self.shapes.get(id(iterator._dataset), ())) > 1:
            self.followed = True
            self.flow.wanted = STEPS + _MOST
            self.order = order_of(iterator._index_sampler)
            try:
                self.batches = len(iterator._index_sampler)
            except (TypeError, AttributeError):  # a stream
                self.batches = None

    def is_last(self, iterator: Any) -> bool:
        """Whether the step under way is the last that is waited for; then it is."""
        flow = self.flow
        if not self.followed or flow.steps >= flow.wanted - 1:
            return True
        self.seen = iterator.__dict__.get("_virtual_handed", 0)
        late = time.monotonic() - flow.started > _SHARE * flow.limit
        if not late and (self.batches is None or self.seen < self.batches):
            return False
        flow.wanted = flow.steps + 1
        return True

    def followed_epoch(self) -> Epoch | None:
        return Epoch(self.batches, self.seen, self.order) if self.followed else None


def order_of(batches: Any) -> str:
    """``batches``: a sampler of batches, or of rows where they are not gathered."""
    sampler = getattr(batches, "sampler", batches)
    if isinstance(sampler, SequentialSampler):
        return FIXED
    return SEEDED if isinstance(sampler, RandomSampler) and sampler.generator is not None else DRAWN


EVAL_BATCHES = 5
_SEEN = 5.0  # seconds, at most, for the process that watches us to look
_SAMPLED = 1000  # objects of a container whose sizes stand for all
# of the time limit, and seconds, for the largest batch of each dataset
_SEARCH_SHARE, _SEARCH_MOST = 1 / 12, 5.0
_MANY = 10_000  # objects; fewer take no memory to speak of


class LoaderFlow:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.training: set[int] = set()  # datasets that fed a training step
        self.last = 0
        self.pinning: set[int] = set()
        # iterators: each has processes and a queue of its own
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most: list[Loader] = []  # the loaders of the moment at which their batches took most
        self.settled: dict[int, bool] = {}  # dataset → whether its workers came to have nothing left to do
        self.patience = flow.limit  # seconds, for all of them
        self.many = ManyShapes(flow)
        self.larger: dict[int, Any] = {}  # dataset → the largest batch, where samples differ in size
        self.shared_before = _shared_memory()
        # bytes of the script's own in /dev/shm beside full queues; None until one was full
        self.shared_beside: int | None = None
        # whose workers have made no batch yet
        self.unfed: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        made, following = dataloader.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__
        loaders = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            if self.pin_memory:
                loaders.pinning.add(id(self.dataset))
                self.__dict__["pin_memory"] = False

        def following_batch(self: Any) -> Any:
            loaders._before(self)
            batch = following(self)
            loaders._after(self, batch)
            return loaders._or_larger(self, batch)

        worker_peaks.install(dataloader._utils.fetch)
        dataloader.DataLoader.__init__ = init
        dataloader._BaseDataLoaderIter.__next__ = following_batch
        dataloader._BaseDataLoaderIter.next = following_batch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *given: self.training.add(self.last) if self.last else None)

    def _before(self, iterator: Any) -> None:
        """Epochs are cut to one batch, evaluations to a few, so that nobody waits for ever."""
        if iterator._num_workers and "_virtual_loader" not in iterator.__dict__:
            self.unfed.add(iterator)
        if self.flow.steps < self.flow.wanted:
            self._before_training(iterator)
            return
        taken = iterator.__dict__.get("_virtual_taken", 0)
        if id(iterator._dataset) not in self.training:
            if taken >= EVAL_BATCHES:
                self._tell_growth(iterator)
                raise StopIteration
        elif taken >= 1:
            self.flow.loaders += 1
            raise StopIteration
        iterator.__dict__["_virtual_taken"] = taken + 1

    def _or_larger(self, iterator: Any, batch: Any) -> Any:
        """The worst batch counts: it comes in the last training step that is waited for, and first in an evaluation after that."""
        dataset = id(iterator._dataset)
        self.many.see(iterator, batch)
        if dataset in self.training:
            due = self.flow.wanted > self.flow.steps >= STEPS - 1 and torch.is_grad_enabled()
        else:
            due = self.flow.steps >= self.flow.wanted and iterator.__dict__.get("_virtual_taken") == 1
        if not due:
            return batch
        if dataset not in self.larger:
            found, self.larger[dataset] = larger_batch(
                iterator, min(_SEARCH_MOST, self.flow.limit * _SEARCH_SHARE)
            )
            if self._is_larger(dataset, batch):
                looked = "all" if found.looked == found.of else f"{found.looked} of {found.of}"
                tell(
                    f"the largest batch counts: {shapes(self.larger[dataset])[0]}, another was {shapes(batch)[0]} "
                    f"({looked} samples of that loader were looked at)"
                )
            if dataset in self.training:
                self.many.begin(iterator, self._is_larger(dataset, batch))
        if dataset in self.training and not self.many.is_last(iterator):
            return batch
        return self.larger[dataset] if self._is_larger(dataset, batch) else batch

    def _is_larger(self, dataset: int, batch: Any) -> bool:
        larger = self.larger[dataset]
        return (
            larger is not None
            and bool(shapes(larger))
            and bool(shapes(batch))
            and sample_size(larger) > sample_size(batch)
        )

    def _before_training(self, iterator: Any) -> None:
        """An evaluation that comes before the third step. One that comes before the first may be no evaluation, but gather what the
        training needs: it is cut only where it takes long."""
        if torch.is_grad_enabled():
            return
        began, quiet = iterator.__dict__.setdefault("_virtual_quiet", (time.monotonic(), 0))
        iterator.__dict__["_virtual_quiet"] = (began, quiet + 1)
        long = self.flow.steps or time.monotonic() - began > self.flow.limit / 6
        if quiet >= EVAL_BATCHES and long:
            raise StopIteration

    def _tell_growth(self, iterator: Any) -> None:
        """Outputs that an evaluation keeps on the card: so much a batch, and so many batches are left."""
        lives = self.flow.eval_lives[-EVAL_BATCHES:]
        growth = min((after - before for before, after in pairwise(lives[1:])), default=0)
        left = (
            len(iterator._index_sampler) - EVAL_BATCHES if hasattr(iterator._index_sampler, "__len__") else 0
        )
        if growth > 0 and left > 0:
            self.flow.kept = max(self.flow.kept, growth * left)

    def _after(self, iterator: Any, batch: Any) -> None:
        dataset = id(iterator._dataset)
        if self.flow.steps < self.flow.wanted:
            iterator.__dict__["_virtual_taken"] = EVAL_BATCHES
        self.last = dataset
        self._see_workers(iterator, batch)

    def _see_workers(self, iterator: Any, batch: Any) -> None:
        """Once for each dataset, until their queue is full."""
        dataset = id(iterator._dataset)
        self.unfed.discard(iterator)
        sizes = [tensor.nbytes for tensor in tensors(batch)]
        if iterator._num_workers and dataset not in self.settled:
            self.settled[dataset] = False  # the time may be over before they are
            self._note(iterator, sizes)
            self.settled[dataset] = iterator.__dict__["_virtual_loader"].settled = self._settle(iterator)
        self._note(iterator, sizes)

    def unfed_workers(self) -> int:
        return sum(iterator._num_workers for iterator in self.unfed)

    def _note(self, iterator: Any, sizes: list[int]) -> None:
        dataset = iterator._dataset
        known = iterator.__dict__.get("_virtual_loader")
        if known is None:
            workers = getattr(iterator, "_workers", ())
            known = iterator.__dict__["_virtual_loader"] = Loader(
                iterator._num_workers,
                _prefetch(iterator),
                method=_method_of(iterator) or "fork",
                copied=_copied(iterator),
                settled=self.settled.get(id(dataset), True),
                samples=_length(dataset),
                persistent=bool(getattr(iterator, "_persistent_workers", False)),
                pids=[worker.pid for worker in workers if getattr(worker, "pid", None)],
            )
            self.alive.add(iterator)
        known.batch = max(known.batch, sum(sizes))
        if id(dataset) in self.pinning:  # each tensor in a block of a power of two
            known.pinned = max(known.pinned, sum(1 << max(0, size - 1).bit_length() for size in sizes))
        self.most = fullest(self.most, self._now())
        # found late, and often no larger than the largest that came by chance
        if self.larger.get(id(dataset)) is not None:
            for loader in self.most:
                loader.varies = True

    def _now(self) -> list[Loader]:
        return [other.__dict__["_virtual_loader"] for other in self.alive]

    def _settle(self, iterator: Any) -> bool:
        """Waits until every worker has made the batches it was asked for: then the queue is full, and each has held what it ever
        holds. Where that takes too long, what was seen of them is not all."""
        deadline = time.monotonic() + self.patience
        started = time.monotonic()
        try:
            while _made(iterator) < sum(len(task) == 1 for task in iterator._task_info.values()):
                if time.monotonic() > deadline or not all(worker.is_alive() for worker in iterator._workers):
                    return False
                time.sleep(0.02)
            self._see_shared()
            _wait_for_a_look()
        except (AttributeError, NotImplementedError):
            return False
        finally:
            self.patience = max(0.0, self.patience - (time.monotonic() - started))
        return True

    def _see_shared(self) -> None:
        """Now, while as many batches wait as ever will. Later there is one more for a moment, where what we do between two batches takes long."""
        beside = _shared_memory() - self.shared_before - round(_queued_bytes(self._now()))
        self.shared_beside = max(0, beside, self.shared_beside or 0)


def _shared_memory() -> int:
    """Bytes in use of /dev/shm."""
    try:
        facts = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return 0
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def with_own(loaders: list[Loader]) -> list[Loader]:
    """With what each worker says that it held itself at most."""
    folder = os.environ.get("OOMPROOF_SIZE", "")
    return [replace(loader, own=worker_peaks.told(folder, loader.pids)) for loader in loaders]


def _made(iterator: Any) -> int:
    """Batches that wait: where a thread pins them, most are behind it."""
    waiting = int(iterator._worker_result_queue.qsize())
    behind = getattr(iterator, "_data_queue", None)
    if behind is not None and behind is not iterator._worker_result_queue:
        waiting += int(behind.qsize())
    return waiting


def _wait_for_a_look() -> None:
    """Two, since one may be under way; none where nobody tells of them."""
    if not _looks():
        return
    first, deadline = _looks(), time.monotonic() + _SEEN
    while _looks() < first + 2 and time.monotonic() < deadline:
        time.sleep(0.02)


def _looks() -> int:
    """That the process which watches us has made, as it tells."""
    try:
        with open(os.path.join(os.environ["OOMPROOF_SIZE"], "looks")) as file:
            return int(file.read() or 0)
    except (OSError, ValueError, KeyError):
        return 0


def _prefetch(iterator: Any) -> float:
    """Batches of each worker that wait: a short epoch has fewer."""
    prefetch = float(getattr(iterator, "_prefetch_factor", None) or 0)
    try:
        return min(prefetch, float((len(iterator._index_sampler) - 1) / max(1, iterator._num_workers)))
    except TypeError:
        return prefetch


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def fullest(before: list[Loader], now: list[Loader]) -> list[Loader]:
    """Whichever have more in their queues; copies of those of now."""
    return [replace(loader) for loader in now] if _queued_bytes(now) >= _queued_bytes(before) else before


def _queued_bytes(loaders: list[Loader]) -> float:
    return sum((loader.workers * loader.prefetch + 1) * loader.batch for loader in loaders)


def _copied(iterator: Any) -> int:
    """Bytes that each forked worker will copy of the dataset's Python objects in an epoch: to look at one is to write its count of
    references, and with it goes its page."""
    workers = getattr(iterator, "_workers", ())
    if _method_of(iterator) != "fork":
        return 0
    dataset = iterator._dataset
    objects = sum(_objects(value) for value in getattr(dataset, "__dict__", {}).values())
    try:
        return min(objects, len(dataset) * 4096 // len(workers))
    except TypeError:
        return objects


def _method_of(iterator: Any) -> str:
    """How its workers are started; empty where it has none."""
    import multiprocessing

    workers = getattr(iterator, "_workers", ())
    if not workers:
        return ""
    return str(getattr(workers[0], "_start_method", None) or multiprocessing.get_start_method())


def _objects(value: Any) -> int:
    """Bytes of the objects in a list, a tuple or a dictionary, by a sample."""
    if not isinstance(value, (list, tuple, dict)) or len(value) < _MANY:
        return 0
    import itertools

    items = list(itertools.islice(value.values() if isinstance(value, dict) else value, _SAMPLED))
    size = sum(sys.getsizeof(item) + _inner(item) for item in items)
    return size * len(value) // len(items)


def _inner(item: Any) -> int:
    if not isinstance(item, (list, tuple, dict)):
        return 0
    return sum(sys.getsizeof(part) for part in (item.values() if isinstance(item, dict) else item))
