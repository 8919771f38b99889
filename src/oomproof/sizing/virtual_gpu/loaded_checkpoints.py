"""Tensors that ``torch.load`` puts on the card: by ``map_location``, or since they were there when they were saved."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from .cuda_redirect import Redirect, is_cuda
from .storage_log import GPU

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
