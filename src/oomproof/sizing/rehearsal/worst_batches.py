"""Gives a script the largest batch of its own loader first, then cuts its epochs short.

The samples are looked at without the model, for a bounded time. A loader that draws at random may put the largest of them into
one batch; of one that does not, the largest batch it makes is taken. What cannot be looked up by number is taken as it comes.
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import islice, pairwise
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import _utils, dataloader
from torch.utils.data.sampler import BatchSampler, SequentialSampler

from ..virtual_gpu.loader_flow import EVAL_BATCHES, LoaderFlow
from ..virtual_gpu.nested_tensors import tensors
from ..virtual_gpu.step_limits import STEPS
from .phase_peaks import EVAL, TRAIN
from .sample_sizes import largest_batch, largest_possible, sample_size

_SEARCH_SHARE, _SEARCH_MOST = 1 / 6, 20.0  # of the time limit, and seconds, for each loader
_ERRORS = 20  # samples that cannot be had: then none is asked for
_BATCHES = 100_000  # of a sampler, whose largest is looked for
_SHAPES = 3  # tensors of a batch that are described
_FIRST_LIVE, _LIVES = 2, 6  # batches before the first look at what lives, and looks
_NOISE = 64 << 10  # bytes a batch: less is no output that is kept
_EVAL_SHARE, _EVAL_MOST = (
    1 / 12,
    10.0,
)  # of the time limit, and seconds: an evaluation that is over by then is seen whole


class Worst:
    """Of one dataset: the batch, and how it was found."""

    def __init__(self) -> None:
        self.indices: list[Any] = []
        self.batch: Any = None  # of a dataset without numbers
        self.looked = 0
        self.of: int | None = None
        self.usual, self.largest = 0, 0
        self.how = ""
        self.shapes: list[str] = []
        self.training = False

    def as_json(self) -> dict[str, Any]:
        return {
            "looked": self.looked, "of": self.of, "usual": self.usual, "largest": self.largest, "how": self.how,
            "shapes": self.shapes, "training": self.training,
        }  # fmt: skip


class WorstBatches(LoaderFlow):
    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.loop = loop
        self.worst: dict[int, Worst] = {}
        self._datasets: list[Any] = []  # kept, so that a number stays one dataset's

    def install(self) -> None:
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
        register_optimizer_step_pre_hook(lambda *given: self.training.add(self.last) if self.last else None)

    # --- where it stands --------------------------------------------------------------------------------------

    def _begin(self, iterator: Any) -> None:
        loop = self.loop
        loop.begins()
        loop.check()
        loop.peaks.enter(TRAIN if torch.is_grad_enabled() and not loop.evaluating else EVAL)
        if loop.peaks.now == EVAL:
            if not iterator.__dict__.get("_rehearsed"):
                loop.evaluation_begins()
                iterator.__dict__["_rehearsal_began"] = time.monotonic()
            given = iterator.__dict__.get("_rehearsed", 0)
            if given >= _FIRST_LIVE and given % 2 == 0 and len(loop.eval_lives) < _LIVES:
                loop.eval_lives.append((given, loop.peaks.live()))

    def _before(self, iterator: Any) -> None:
        """As on the virtual GPU; but an evaluation that is short is seen whole."""
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
        if self.loop.steps < STEPS:
            iterator.__dict__["_virtual_taken"] = EVAL_BATCHES

    # --- the largest batch ------------------------------------------------------------------------------------

    def _largest(self, iterator: Any) -> Any:
        """In every training step up to the third: the first makes the optimizer's state, and only then all is there at once.
        In each evaluation it comes first."""
        loop = self.loop
        given = iterator.__dict__.get("_rehearsed", 0)
        training = loop.peaks.now == TRAIN
        if (training and loop.steps >= STEPS) or (not training and given):
            return None
        worst = self._find(iterator, training)
        batch = worst.batch if worst.batch is not None else self._made(iterator, worst)
        if batch is not None and not worst.shapes:
            worst.shapes = [
                f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"
                for tensor in islice(tensors(batch), _SHAPES)
            ]
        return batch

    def _find(self, iterator: Any, training: bool) -> Worst:
        dataset = iterator._dataset
        worst = self.worst.get(id(dataset))
        if worst is None:
            worst = self.worst[id(dataset)] = Worst()
            self._datasets.append(dataset)
            worst.training = training
            until = time.monotonic() + min(_SEARCH_MOST, self.loop.limit * _SEARCH_SHARE)
            if (
                hasattr(dataset, "__getitem__")
                and hasattr(dataset, "__len__")
                and hasattr(iterator, "_index_sampler")
            ):
                _search(iterator, worst, until)
            else:
                _look_ahead(iterator, worst, until)
        return worst

    def _made(self, iterator: Any, worst: Worst) -> Any:
        if not worst.indices:
            return None
        try:
            fetcher = _utils.fetch._MapDatasetFetcher(
                iterator._dataset, iterator._auto_collation, iterator._collate_fn, False
            )
            batch = fetcher.fetch(worst.indices if iterator._auto_collation else worst.indices[0])
            return _pinned(iterator, batch)
        except Exception as error:  # a loader that only its workers can read from
            worst.how = f"the largest batch could not be made ({type(error).__name__}): taken as they come"
            worst.indices = []
            return None


def _search(iterator: Any, worst: Worst, until: float) -> None:
    dataset = iterator._dataset
    worst.of = len(dataset)
    sizes: dict[int, int] = {}
    errors = 0
    for index in _in_any_order(len(dataset)):
        try:
            sizes[index] = sample_size(dataset[index])
        except Exception:  # one that cannot be had is none of the largest
            errors += 1
        if errors > _ERRORS or time.monotonic() > until:
            break
    worst.looked = len(sizes)
    if not sizes or not max(sizes.values()):
        worst.how = "its samples tell no size: taken as they come"
        return
    worst.usual, worst.largest = int(statistics.median(sizes.values())), max(sizes.values())
    sampler = iterator._index_sampler
    if not iterator._auto_collation:
        worst.indices, worst.how = largest_possible(sizes, 1), "the largest"
    elif type(sampler) is BatchSampler and not isinstance(sampler.sampler, SequentialSampler):
        worst.indices = largest_possible(sizes, int(sampler.batch_size))
        worst.how = "the largest samples, which may meet: the loader draws at random"
    else:
        try:
            batches = [list(batch) for batch in islice(iter(sampler), _BATCHES)]
        except Exception:  # a sampler that can be asked once
            batches = []
        worst.indices = largest_batch(sizes, batches)
        worst.how = f"the largest of {len(batches)} batches that the loader makes"


def _in_any_order(count: int) -> Any:
    """All of them; at random, so that those seen in a short time stand for the rest."""
    order = list(range(count))
    random.Random(0).shuffle(order)
    return order


def _look_ahead(iterator: Any, worst: Worst, until: float) -> None:
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
    if worst.batch is not None:
        worst.batch = _pinned(iterator, worst.batch)


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
