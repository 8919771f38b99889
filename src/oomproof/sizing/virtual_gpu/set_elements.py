"""How many elements of a tensor of the virtual card can be other than zero: torchvision's detectors mark the boxes that they draw, and take those."""

from __future__ import annotations

from typing import Any

import torch

from .nested_tensors import tensors

aten = torch.ops.aten
REMEMBERED = 4096  # storages
_SAME = {aten._to_copy, aten.clone}
_EITHER = {aten.bitwise_or, aten.logical_or, aten.cat}


class SetElements:
    """By the number of a storage. Known of what was all zeros, and had a known number of places written to."""

    def __init__(self, log: Any, uniform: Any) -> None:
        self._log, self._uniform = log, uniform
        self._most: dict[int, int] = {}

    def most(self, tensor: Any) -> int | None:
        number = self._log.number(tensor.untyped_storage())
        known = self._most.get(number) if number is not None else None
        if known is None and self._uniform.value(tensor) == 0:
            return 0
        return known

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called before the uniform tensors are told of the same operation."""
        packet = func.overloadpacket
        if packet is aten.index_put_:
            before, written = self.most(args[0]), _written(args[1])
            self._keep(args[0], before + written if before is not None and written is not None else None)
        elif func._schema.is_mutable:
            if self._most:
                for tensor in tensors((args, kwargs)):
                    self._keep(tensor, None)
        elif self._most and isinstance(out, torch.Tensor) and (packet in _SAME or packet in _EITHER):
            parts = list(tensors(args)) if packet in _EITHER else [args[0]]
            found = [self.most(part) for part in parts]
            self._keep(out, sum(found) if None not in found else None)  # type: ignore[arg-type]

    def _keep(self, tensor: Any, most: int | None) -> None:
        number = self._log.number(tensor.untyped_storage())
        if number is None:
            return
        whole = tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()
        if most is None or not whole:
            self._most.pop(number, None)
            return
        self._most[number] = min(most, int(tensor.numel()))
        if len(self._most) > REMEMBERED:
            del self._most[next(iter(self._most))]


def _written(indices: Any) -> int | None:
    """Places: of one dimension, by their numbers."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype in (torch.bool, torch.uint8):
        return None
    return int(indices[0].numel())
