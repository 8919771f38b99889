"""Checkpoints are counted and not written; a script that reads one of its own back gets what it saved."""

from __future__ import annotations

import os
import pickle
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .cuda_redirect import Redirect, is_cuda
from .nested_tensors import fakes, tensors
from .storage_log import GPU


class CountedCheckpoints:
    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self.largest = 0  # bytes that a checkpoint took on the host
        self._values: dict[str, Any] = {}  # path → what was saved there last

    def save(self, value: Any, file: Any = None, *args: Any, streamed: bool = False, **kwargs: Any) -> None:
        """``streamed``: to a file, of which torch.save has one storage in memory at a time, and none that is there already."""
        by_storage = {tensor.untyped_storage()._cdata: tensor for tensor in tensors(value)}  # tied ones once
        if streamed:
            copied = [tensor for tensor in by_storage.values() if tensor.is_cuda]
            size = max((tensor.untyped_storage().nbytes() for tensor in copied), default=0)
        else:
            size = sum(tensor.untyped_storage().nbytes() for tensor in by_storage.values())
        self.largest = max(self.largest, size)
        self._tell("checkpoints were counted, not written")
        if (path := _path(file)) is not None:
            self._values[path] = _described(value)

    def install(self) -> None:
        save, load = torch.save, torch.load

        def saved(value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
            if not _has_fakes(value):
                self._values.pop(_path(file) or "", None)
                save(value, file, *args, **kwargs)  # data of the host: it goes where the script's writes go
            else:
                self.save(value, file, streamed=_path(file) is not None)

        def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            path = _path(file)
            if path in self._values:
                return _made(self._values[path], map_location)
            return load(file, map_location, *args, **kwargs)

        torch.save, torch.load = saved, loaded


class _Found(Exception):
    """A tensor without bytes."""


class _Search(pickle.Pickler):
    """Goes through whatever would be pickled, and writes none of its bytes."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            raise _Found
        return (int, ()) if isinstance(value, torch.Tensor) else NotImplemented

    def persistent_id(self, value: Any) -> Any:
        return "array" if type(value).__module__ == "numpy" else None


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)


def _has_fakes(value: Any) -> bool:
    """In any object, such as a graph's data. What cannot be pickled is refused by the save itself."""
    if next(fakes(value), None) is not None:
        return True
    try:
        _Search(_Nowhere()).dump(value)
    except _Found:
        return True
    except Exception:  # whatever an object of the script raises when it is pickled
        return False
    return False


class _Described:
    """A tensor that was saved: holding it would keep its memory."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device


def _path(file: Any) -> str | None:
    """Where it is written; None: into memory."""
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.abspath(os.fspath(name)) if isinstance(name, (str, os.PathLike)) else None


def _described(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _Described(value)
    return _mapped(value, _described)


def _made(value: Any, location: Any) -> Any:
    if isinstance(value, _Described):
        device = location if isinstance(location, (str, torch.device)) else value.device
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    return _mapped(value, lambda item: _made(item, location))


def _mapped(value: Any, change: Any) -> Any:
    """Other objects, modules among them, are given back as they are."""
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(item) for item in value)
    return value


# Tensors that ``torch.load`` puts on the card: by ``map_location``, or since they were there when they were saved.

_Storage = torch.UntypedStorage


class LoadedCheckpoints:
    """torch moves storages, of which the virtual card has none: they are marked instead, and each tensor that is made of one is put
    on the card. ``_made``: that card's tensor, for those that share a storage; what was read from the file is given back then."""

    def __init__(self, redirect: Redirect) -> None:
        self._redirect = redirect
        self._marked: dict[int, Any] = {}  # kept, so that its address stays its own
        self._made: dict[int, Any] = {}
        # false for the format of before PyTorch 1.6: tensors are made first, and read afterwards
        self._is_read = True

    def install(self) -> None:
        to, cuda, load = _Storage.to, _Storage.cuda, torch.load
        rebuild, legacy = torch._utils._rebuild_tensor, torch.serialization._legacy_load

        def moved(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
            return self._mark(storage) if is_cuda(device) else to(storage, device=device)

        def moved_to_card(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
            return self._mark(storage) if self._redirect.active else cuda(storage, device)

        def rebuilt(storage: Any, offset: int, size: Any, stride: Any) -> Any:
            key = storage._untyped_storage._cdata
            if key not in self._marked:
                return rebuild(storage, offset, size, stride)
            if key not in self._made:
                key = self._put_on_card(storage, rebuild)
            whole = self._made[key]
            if whole.numel() == prod(size) and tuple(stride) == _in_order(size):
                return whole.view(size)  # which keeps its elements, where they are known
            return whole.as_strided(size, stride, offset)

        def read_later(*args: Any, **kwargs: Any) -> Any:
            self._is_read = False
            try:
                return legacy(*args, **kwargs)
            finally:
                self._is_read = True

        def loaded(*args: Any, **kwargs: Any) -> Any:
            try:
                return load(*args, **kwargs)
            finally:
                self._marked.clear()
                self._made.clear()

        _Storage.to, _Storage.cuda, torch.load = moved, moved_to_card, loaded
        torch._utils._rebuild_tensor, torch.serialization._legacy_load = rebuilt, read_later

    def _put_on_card(self, storage: Any, rebuild: Any) -> int:
        """All of it, as one row; under which number it is found from now on."""
        count = storage._untyped_storage.nbytes() // storage.dtype.itemsize
        row = rebuild(storage, 0, (count,), (1,))
        if self._is_read:
            made = self._redirect.to_card(row)
            del self._marked[storage._untyped_storage._cdata]
            storage._untyped_storage = self._mark(_Storage(0))
        else:
            made = self._redirect.mode.like(row, GPU)
        self._made[storage._untyped_storage._cdata] = made
        return int(storage._untyped_storage._cdata)

    def _mark(self, storage: Any) -> Any:
        self._marked[storage._cdata] = storage
        return storage


def _in_order(size: Any) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    return tuple(prod(size[dimension + 1 :]) for dimension in range(len(size)))
