"""The tensors in what an operation, a batch or a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_DEEP = 8


def tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    """In lists, tuples, mappings and modules."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        if depth < _DEEP:
            for item in value:
                yield from tensors(item, depth + 1)
    elif isinstance(value, Mapping):
        if depth < _DEEP:
            for item in value.values():
                yield from tensors(item, depth + 1)
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()


def fakes(value: Any) -> Iterator[Any]:
    """Those without bytes."""
    return (tensor for tensor in tensors(value) if isinstance(tensor, FakeTensor))
