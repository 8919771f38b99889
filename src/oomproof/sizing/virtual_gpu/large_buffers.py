"""Arrays, tensors of the host and native indexes that have a name in the script: what the process's memory is made of."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

LEAST = 16 << 20  # bytes; smaller ones stay in the sum
_TOLD = 8
# indexes whose memory Python does not see
_NATIVE = ("faiss", "hnswlib", "annoy", "usearch", "nmslib", "voyager")


def named(skip: tuple[str, ...]) -> dict[str, int]:
    """Name → bytes, the largest first; bytes 0: an index of a library, somewhere in the process's own. ``skip``: folders of libraries."""
    sizes: dict[str, int] = {}
    known: set[int] = set()
    for name, value in _variables(skip):
        described = _described(value)
        if described is None or described[0] in known:
            continue
        address, size, what = described
        known.add(address)
        if size >= LEAST or not size:
            sizes[f"{name}, {what}"] = size
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return dict(ordered[:_TOLD])


def _variables(skip: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Of the script's running functions, of its module, and the attributes of those that are objects of its own classes."""
    scopes = [vars(sys.modules["__main__"])] if "__main__" in sys.modules else []
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*skip, "<")):
            scopes.append(frame.f_locals)
        frame = frame.f_back
    for scope in scopes:
        for name, value in list(scope.items()):
            yield name, value
            if isinstance(value, torch.utils.data.DataLoader):
                value, name = value.dataset, f"{name}.dataset"
            if type(value).__module__ == "__main__" or isinstance(value, torch.utils.data.Dataset):
                for attribute, inner in list(getattr(value, "__dict__", {}).items()):
                    yield f"{name}.{attribute}", inner
                    for place, item in enumerate(inner[:_TOLD] if isinstance(inner, tuple) else ()):
                        yield f"{name}.{attribute}[{place}]", item


def _described(value: Any) -> tuple[int, int, str] | None:
    """Where its memory is, how much that is, and what it is; None for what has none, is a file's or the virtual card's."""
    if isinstance(value, torch.Tensor):
        if isinstance(value, FakeTensor) or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), "tensor"
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        while type(value.base) is kind:
            value = value.base
        is_own = value.base is None
        return (value.__array_interface__["data"][0], value.nbytes, "array") if is_own else None
    if kind.__module__.partition(".")[0] in _NATIVE:
        return id(value), 0, f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return None
