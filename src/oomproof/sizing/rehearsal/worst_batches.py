"""Gives a script the largest batch of its own loader first, then cuts its epochs short.

Of a loader whose samples cannot be looked up by number, the largest of the batches that come in a bounded time.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import _utils, dataloader

from ..virtual_gpu import worker_peaks
from ..virtual_gpu.child_results import Loader
from ..virtual_gpu.largest_batches import Largest, has_numbers, made, sample_size, search, shapes
from ..virtual_gpu.loader_flow import EVAL_BATCHES, LoaderFlow, fullest
from ..virtual_gpu.step_limits import STEPS
from .phase_peaks import EVAL, TRAIN

_FILL_SHARE = 1 / 6  # of the time limit, for all loaders' workers to fill their queues
_SEARCH_SHARE, _SEARCH_MOST = 1 / 6, 20.0  # of the time limit, and seconds, for each loader
_FIRST_LIVE, _LIVES = 2, 6  # batches before the first look at what lives, and looks
_DIFFER = 1.1  # times the usual sample: less leaves nothing behind
_NOISE = 64 << 10  # bytes a batch: less is no output that is kept
# of the time limit, and seconds: an evaluation that is over by then is seen whole
_EVAL_SHARE, _EVAL_MOST = 1 / 12, 10.0


class WorstBatches(LoaderFlow):
    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.loop = loop
        self.worst: dict[int, Largest] = {}
        self.loaders: dict[str, list[Loader]] = {}  # phase → those alive when their batches took most
        self.patience = loop.limit * _FILL_SHARE
        self._datasets: list[Any] = []  # kept, so that a number stays one dataset's

    def install(self) -> None:
        worker_peaks.install(_utils.fetch)
        following = dataloader._BaseDataLoaderIter.__next__
        loaders = self

        def following_batch(self: Any) -> Any:
            if not loaders.loop.is_here():
                return following(self)
            loaders._begin(self)
            loaders._before(self)
            if self.__dict__.get("_rehearsed", 0) >= _length(self):  # an epoch stays as short as it is
                raise StopIteration
            batch = loaders._largest(self)
            if batch is None:
                batch = following(self)
            self.__dict__["_rehearsed"] = self.__dict__.get("_rehearsed", 0) + 1
            loaders._after(self, batch)
            return batch

        dataloader._BaseDataLoaderIter.__next__ = following_batch
        dataloader._BaseDataLoaderIter.next = following_batch
        register_optimizer_step_pre_hook(lambda *given: self._trained())

    def _trained(self) -> None:
        if self.last:
            self.training.add(self.last)
            if not self.loop.steps and self.last in self.worst:
                self.worst[self.last].training = True

    # --- where it stands --------------------------------------------------------------------------------------

    def _begin(self, iterator: Any) -> None:
        loop = self.loop
        loop.begins()
        loop.check()
        loop.peaks.enter(TRAIN if self._is_training(iterator) else EVAL)
        if loop.peaks.now == EVAL:
            if not iterator.__dict__.get("_rehearsed"):
                loop.evaluation_begins()
                iterator.__dict__["_rehearsal_began"] = time.monotonic()
            given = iterator.__dict__.get("_rehearsed", 0)
            if given >= _FIRST_LIVE and given % 2 == 0 and len(loop.eval_lives) < _LIVES:
                loop.eval_lives.append((given, loop.peaks.live()))

    def _is_training(self, iterator: Any) -> bool:
        """A model that from_pretrained() left in eval mode, and that nobody switched, is trained all the same."""
        if not torch.is_grad_enabled():
            return False
        return not self.loop.evaluating or (
            id(iterator._dataset) in self.training and not self.loop.switched_since_step
        )

    def _before(self, iterator: Any) -> None:
        """As on the virtual GPU; but an evaluation that is short is seen whole, and no epoch is cut while the card settles."""
        if self.loop.settling and self.loop.peaks.now == TRAIN:
            return
        taken = iterator.__dict__.get("_virtual_taken", 0)
        began = iterator.__dict__.get("_rehearsal_began")
        whole = min(_EVAL_MOST, self.loop.limit * _EVAL_SHARE)
        if began is not None and taken >= EVAL_BATCHES and time.monotonic() - began < whole:
            iterator.__dict__["_virtual_taken"] = EVAL_BATCHES - 1
        super()._before(iterator)

    def _tell_growth(self, iterator: Any) -> None:
        left = _left(iterator)
        self.loop.eval_lives.append((iterator.__dict__.get("_rehearsed", 0), self.loop.peaks.live()))
        growth = kept_each(self.loop.eval_lives)
        if growth and left:
            self.loop.keeps(growth, left)

    def _after(self, iterator: Any, batch: Any) -> None:
        self.last = id(iterator._dataset)
        if self.loop.steps < STEPS or self.loop.settling:
            iterator.__dict__["_virtual_taken"] = EVAL_BATCHES
        if iterator._num_workers:
            if getattr(iterator, "_pin_memory", False) and torch.cuda.is_available():
                self.pinning.add(id(iterator._dataset))
            self._see_workers(iterator, batch)
            phase = self.loop.peaks.now
            self.loaders[phase] = fullest(self.loaders.get(phase, []), self._now())

    # --- the largest batch ------------------------------------------------------------------------------------

    def _largest(self, iterator: Any) -> Any:
        """In an evaluation it comes first."""
        given = iterator.__dict__.get("_rehearsed", 0)
        training = self.loop.peaks.now == TRAIN
        if not (self.loop.wants_largest() if training else not given):
            return None
        worst = self._find(iterator, training)
        batch = worst.batch if worst.batch is not None else made(iterator, worst)
        if batch is None:
            return None
        worst.shapes = worst.shapes or shapes(batch)
        return _pinned(iterator, batch)

    def _find(self, iterator: Any, training: bool) -> Largest:
        dataset = iterator._dataset
        worst = self.worst.get(id(dataset))
        if worst is None:
            worst = self.worst[id(dataset)] = Largest()
            self._datasets.append(dataset)
            worst.training = training
            until = time.monotonic() + min(_SEARCH_MOST, self.loop.limit * _SEARCH_SHARE)
            if has_numbers(iterator):
                search(iterator, worst, until)
            else:
                _look_ahead(iterator, worst, until)
            self.loop.batches_differ |= training and worst.largest > _DIFFER * worst.usual > 0
        return worst


def _look_ahead(iterator: Any, worst: Largest, until: float) -> None:
    """Batches as they come, without the model: the largest is given first. Nothing is lost by it but their turn."""
    following = iterator.__class__._next_data
    sizes = []
    while time.monotonic() < until:
        try:
            batch = following(iterator)
        except StopIteration:
            break
        except Exception:  # the script will meet it too
            break
        sizes.append(sample_size(batch))
        if sizes[-1] > worst.largest:
            worst.largest, worst.batch = sizes[-1], batch
    worst.looked, worst.usual = len(sizes), int(statistics.median(sizes)) if sizes else 0
    worst.how = f"the largest of the first {len(sizes)} batches"


def _pinned(iterator: Any, batch: Any) -> Any:
    if not getattr(iterator, "_pin_memory", False) or not torch.cuda.is_available():
        return batch
    return _utils.pin_memory.pin_memory(batch, getattr(iterator, "_pin_memory_device", None))


def _length(iterator: Any) -> float:
    """In batches; of a stream there is none."""
    try:
        return float(len(iterator._index_sampler))
    except TypeError:
        return float("inf")


def _left(iterator: Any) -> int:
    left = _length(iterator) - iterator.__dict__.get("_rehearsed", 0)
    return int(left) if 0 < left < float("inf") else 0


def kept_each(lives: list[tuple[int, int]]) -> int:
    """What each batch of an evaluation leaves alive: ``lives`` are batches given, and bytes alive then. It must rise each time."""
    lives = [point for number, point in enumerate(lives) if not number or point[0] > lives[number - 1][0]]
    rises = [(after[1] - before[1]) // (after[0] - before[0]) for before, after in pairwise(lives)]
    return sorted(rises)[len(rises) // 2] if rises and min(rises) > _NOISE else 0
