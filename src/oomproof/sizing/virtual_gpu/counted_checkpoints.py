"""Checkpoints are counted and not written; a script that reads one of its own back gets what it saved."""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .nested_tensors import fakes, tensors


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
