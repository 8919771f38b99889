"""DataLoaders: what they hold, and epochs cut short once the training steps were seen."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch.utils.data import dataloader

from .nested_tensors import tensors
from .step_limits import STEPS
from .training_flow import Flow

EVAL_BATCHES = 5


class LoaderFlow:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.training: set[int] = set()  # datasets that fed a training step
        self.last = 0
        self.pinning: set[int] = set()
        self.pinned = 0
        self.seen: dict[int, dict[str, int]] = {}  # dataset → workers, prefetch, bytes of its largest batch

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
            return batch

        dataloader.DataLoader.__init__ = init
        dataloader._BaseDataLoaderIter.__next__ = following_batch
        dataloader._BaseDataLoaderIter.next = following_batch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *given: self.training.add(self.last) if self.last else None)

    def _before(self, iterator: Any) -> None:
        """Epochs are cut to one batch, evaluations to a few, so that nobody waits for ever."""
        if self.flow.steps < STEPS:
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
        if self.flow.steps < STEPS:
            iterator.__dict__["_virtual_taken"] = EVAL_BATCHES
        self.last = dataset
        size = sum(tensor.numel() * tensor.itemsize for tensor in tensors(batch))
        known = self.seen.setdefault(dataset, {"workers": 0, "prefetch": 0, "batch": 0})
        known["workers"] = iterator._num_workers
        known["prefetch"] = getattr(iterator, "_prefetch_factor", None) or 0
        known["batch"] = max(known["batch"], size)
        if (
            dataset in self.pinning
        ):  # the batch in use and the next, in powers of two; the others wait in shared memory
            self.pinned = max(self.pinned, 2 << max(0, size - 1).bit_length())
