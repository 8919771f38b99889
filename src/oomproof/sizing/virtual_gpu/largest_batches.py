"""The largest batch of a script's own loader, found by looking at its samples without the model, for a bounded time.

A loader that draws at random may put the largest samples into one batch; of one that does not, the largest batch it makes is taken.
What cannot be looked up by number has none.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import _utils
from torch.utils.data.sampler import BatchSampler, SequentialSampler

from .nested_tensors import tensors
from .step_limits import ASIDE

_NUMBER = 8  # bytes of a number in a list: what it becomes in a tensor
_DEEP = 6
_SAMPLED = 64  # elements of a nested list that stand for all


def sample_size(value: Any, depth: int = 0) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return int(nbytes)
    if hasattr(value, "numel") and hasattr(value, "element_size"):
        return int(value.numel()) * int(value.element_size())
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(sample_size(part, depth + 1) for part in value.values()) if depth < _DEEP else 0
    if isinstance(value, (list, tuple)):
        return _of_list(value, depth)
    size = getattr(value, "size", None)  # an image of PIL: (width, height)
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return int(3 * size[0] * size[1])
    return 0


def _of_list(value: Sequence[Any], depth: int) -> int:
    if not value or depth >= _DEEP:
        return 0
    if isinstance(value[0], (int, float, bool)):
        return _NUMBER * len(value)
    if len(value) <= _SAMPLED:
        return sum(sample_size(part, depth + 1) for part in value)
    some = value[:: max(1, len(value) // _SAMPLED)]
    return sum(sample_size(part, depth + 1) for part in some) * len(value) // len(some)


def padded(sizes: Sequence[int]) -> tuple[int, int]:
    """What a batch of samples of these sizes becomes: filled up to the longest, else their sum; in this order of weight."""
    return (len(sizes) * max(sizes), sum(sizes)) if sizes else (0, 0)


def largest_possible(sizes: Mapping[int, int], batch: int) -> list[int]:
    """Of a loader that draws at random: the largest samples may meet in one batch."""
    return sorted(sizes, key=lambda index: (-sizes[index], index))[:batch]


def largest_batch(sizes: Mapping[int, int], batches: Sequence[Sequence[int]]) -> list[int]:
    """Of those that are made: the one that becomes largest, as far as its samples were looked at."""
    known = [[index for index in batch if index in sizes] for batch in batches]
    order = [padded([sizes[index] for index in batch]) for batch in known]
    best = max(range(len(order)), key=lambda number: (order[number], -number), default=None)
    return list(batches[best]) if best is not None and order[best][0] else []


_ERRORS = 20  # samples that cannot be had: then none is asked for
_BATCHES = 100_000  # of a sampler, whose largest is looked for
_SHAPES = 3  # tensors of a batch that are described
_ALIKE = 100  # samples of one size: then all are
_LONGER = 2.0  # times the search's own time, to make the batch and hand it over


class Largest:
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


def has_numbers(iterator: Any) -> bool:
    dataset = iterator._dataset
    return (
        hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
        and hasattr(iterator, "_index_sampler")
    )


def search(iterator: Any, worst: Largest, until: float, all_alike: int | None = None) -> None:
    """``all_alike``: so many samples of one size are enough."""
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
        if all_alike and len(sizes) == all_alike and len(set(sizes.values())) == 1:
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


def made(iterator: Any, worst: Largest) -> Any:
    """The batch, by the loader's own collating; None where it cannot be made here."""
    if not worst.indices:
        return None
    try:
        fetcher = _utils.fetch._MapDatasetFetcher(
            iterator._dataset, iterator._auto_collation, iterator._collate_fn, False
        )
        return fetcher.fetch(worst.indices if iterator._auto_collation else worst.indices[0])
    except Exception as error:  # a loader that only its workers can read from
        worst.how = f"the largest batch could not be made ({type(error).__name__}): taken as they come"
        worst.indices = []
        return None


def shapes(batch: Any) -> list[str]:
    return [
        f"{str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)}"
        for tensor in islice(tensors(batch), _SHAPES)
    ]


def larger_batch(iterator: Any, seconds: float) -> tuple[Largest, Any]:
    """The largest batch where samples differ in size, else None. The samples of a loader with workers are read as those would, in a
    process of its own, so that this one holds no more than it ever would."""
    worst = Largest()
    if not has_numbers(iterator):
        return worst, None
    if not iterator._num_workers:
        return _larger(iterator, worst, seconds)
    try:
        return _from_child(iterator, worst, seconds)
    except Exception:  # what cannot be handed over: the batches are taken as they come
        return Largest(), None


def _larger(iterator: Any, worst: Largest, seconds: float) -> tuple[Largest, Any]:
    search(iterator, worst, time.monotonic() + seconds, all_alike=_ALIKE)
    return worst, made(iterator, worst) if worst.largest > worst.usual else None


def _from_child(iterator: Any, worst: Largest, seconds: float) -> tuple[Largest, Any]:
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reads)
            torch.set_num_threads(1)
            with open(writes, "wb") as file:
                _BatchPickler(file).dump(_larger(iterator, worst, seconds))
        finally:
            os._exit(0)
    os.close(writes)
    try:
        _name_aside(pid)
        with open(reads, "rb", buffering=0) as file:
            found: tuple[Largest, Any] = pickle.loads(_all(file, time.monotonic() + _LONGER * seconds))
        return found
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class _BatchPickler(pickle.Pickler):
    """Tensors by their bytes: torch's own way is through `torch.save`, which is not what it was."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return NotImplemented
        plain = value.detach().contiguous().reshape(-1)
        return _tensor, (plain.view(torch.uint8).numpy().tobytes(), value.dtype, tuple(value.shape))


def _tensor(data: bytes, dtype: Any, shape: tuple[int, ...]) -> Any:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _name_aside(pid: int) -> None:
    with open(os.path.join(os.environ["OOMPROOF_SIZE"], ASIDE), "a") as file:
        file.write(f"{pid}\n")


def _all(file: Any, until: float) -> bytes:
    parts: list[bytes] = []
    while (left := until - time.monotonic()) > 0:
        if select.select([file], [], [], left)[0]:
            part = file.read(1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
    raise TimeoutError
