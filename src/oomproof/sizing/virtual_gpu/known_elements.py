"""Small tensors of the virtual card whose elements are known: they came from the host (labels, masks, the edges of a graph), are constants or
random numbers, or were computed of such. What is done with them is done for real as well, so that sizes that hang on them are the true ones."""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from .nested_tensors import tensors

aten = torch.ops.aten
WHOLE_NUMBERS = 1 << 20  # elements of a tensor of integers or booleans
NUMBERS = 1 << 15  # of any other: the elements of a batch are not asked for
KEPT = 48 << 20  # bytes in all; the oldest are forgotten
PATIENCE = 0.15  # of the time limit may go into it; then only what is asked for a size is computed


def _packets(*names: str) -> set[Any]:
    return {getattr(aten, name) for name in names if hasattr(aten, name)}


# of these nobody knows what they hold
_EMPTY = _packets("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_")
_RANDOM = _packets(
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_", "multinomial",
    "uniform_", "normal_", "random_",
)  # fmt: skip
# all of the first operand is written, whatever it was
_WRITTEN_WHOLE = _packets("copy_", "fill_", "zero_", "bernoulli_", "uniform_", "normal_", "random_")


@functools.cache
def _written(func: Any) -> tuple[Any, ...]:
    """Which operands change: numbers of positional ones, names of others; all of them (``None``) where the schema does not tell."""
    if "batch_norm" in func.name():  # changes its running mean without saying so
        return (None,)
    return tuple(
        argument.name if argument.kwarg_only else index
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@functools.cache
def _can_be_done(func: Any) -> bool:
    packet = func.overloadpacket
    if packet in _RANDOM:
        return True
    return (
        func.namespace == "aten"
        and packet not in _EMPTY
        and torch.Tag.nondeterministic_seeded not in func.tags
    )


class KnownElements:
    """By the number of a storage, so that views share it."""

    def __init__(self, log: Any, limit: float) -> None:
        self._log = log
        self._flat: OrderedDict[int, Any] = OrderedDict()
        self._bytes = self.most_bytes = 0
        self._seconds_left = PATIENCE * limit
        self._random = torch.Generator().manual_seed(0).get_state()
        log.forget = self._forget

    def arrived(self, tensor: Any, moved: Any) -> None:
        """From the host."""
        number = self._log.number(moved)
        if number is not None and not tensor.requires_grad and self._is_small(moved):
            self._keep(number, moved, tensor.detach().to(moved.dtype))

    def elements(self, tensor: Any) -> Any:
        """A real tensor, a view of what is known; None: nobody knows."""
        flat = self._flat_of(tensor)
        if flat is None or flat.dtype is not tensor.dtype:
            return None
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The true result, where all operands are known; else None."""
        if not self._are_known((args, kwargs)) or not _can_be_done(func):
            return None
        return self._done(func, args, kwargs)

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called when an operation is done and its results have their numbers."""
        written = _written(func)
        if written:
            self._see_written(func, written, args, kwargs)
        elif self._seconds_left > 0 and self._are_known((args, kwargs)) and self._is_worth_it(func, out):
            real = self._done(func, args, kwargs)
            if real is not None:
                self._keep_all(out, real)

    def _are_known(self, given: Any) -> bool:
        return all(
            self._flat_of(tensor) is not None for tensor in tensors(given) if isinstance(tensor, FakeTensor)
        )

    def _is_worth_it(self, func: Any, out: Any) -> bool:
        """Of views what is known of the storage is all there is."""
        made = [tensor for tensor in tree_leaves(out) if isinstance(tensor, FakeTensor)]
        return (
            bool(made)
            and _can_be_done(func)
            and all(map(self._is_small, made))
            and any(self._flat_of(tensor) is None for tensor in made)
        )

    def _see_written(self, func: Any, written: tuple[Any, ...], args: Any, kwargs: Any) -> None:
        targets = [
            tensor
            for name in written
            for tensor in tensors((args, kwargs) if name is None else args[name] if isinstance(name, int) and name < len(args) else kwargs.get(name))
            if isinstance(tensor, FakeTensor)
        ]  # fmt: skip
        known = [target for target in targets if self._flat_of(target) is not None]
        if func.overloadpacket in _WRITTEN_WHOLE and not known:
            target = targets[0] if targets else None
            if target is None or not self._begin(target):
                return
        elif not known:
            return
        if written != (None,) and self._seconds_left > 0 and self.computed(func, args, kwargs) is not None:
            return  # in place, in what is known
        for target in targets:
            self._forget(self._log.number(target))

    def _begin(self, target: Any) -> bool:
        """Of what was empty until now."""
        number = self._log.number(target)
        if number is None or self._seconds_left < 0 or target.requires_grad or not self._is_small(target):
            return False
        if target.nbytes != target.untyped_storage().nbytes():
            return False
        self._keep(number, target, torch.zeros((), dtype=target.dtype))
        return True

    def _keep_all(self, out: Any, real: Any) -> None:
        made, found = tree_leaves(out), tree_leaves(real)
        if len(made) != len(found):
            return
        for tensor, value in zip(made, found, strict=True):
            if not isinstance(tensor, FakeTensor) or not isinstance(value, torch.Tensor):
                continue
            number = self._log.number(tensor)
            if number is not None and number not in self._flat and tensor.shape == value.shape:
                self._keep(number, tensor, value)

    def _keep(self, number: int, tensor: Any, values: Any) -> None:
        size = tensor.untyped_storage().nbytes()
        flat = torch.zeros(size // max(1, tensor.itemsize), dtype=tensor.dtype)
        flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(values)
        self._forget(number)
        self._flat[number] = flat
        self._bytes += size
        while self._bytes > KEPT:
            self._forget(next(iter(self._flat)))
        self.most_bytes = max(self.most_bytes, self._bytes)

    def _forget(self, number: int | None) -> None:
        flat = self._flat.pop(number, None)  # type: ignore[arg-type]
        if flat is not None:
            self._bytes -= flat.untyped_storage().nbytes()

    def _flat_of(self, tensor: Any) -> Any:
        number = self._log.number(tensor)
        return self._flat.get(number) if number is not None else None

    def _is_small(self, tensor: Any) -> bool:
        if tensor.layout is not torch.strided:
            return False
        numbers = tensor.is_floating_point() or tensor.is_complex()
        storage = tensor.untyped_storage().nbytes() // max(1, tensor.itemsize)
        return bool(storage <= (NUMBERS if numbers else WHOLE_NUMBERS))

    def _done(self, func: Any, args: Any, kwargs: Any) -> Any:
        started, unknown = time.monotonic(), False

        def real(value: Any) -> Any:
            nonlocal unknown
            if isinstance(value, FakeTensor):
                value = self.elements(value)
                unknown = unknown or value is None
            return value

        args, kwargs = tree_map(real, (args, kwargs))
        if unknown:  # bytes of a tensor of another type
            return None
        draws = func.overloadpacket in _RANDOM
        before = torch.random.get_rng_state() if draws else None
        try:
            if draws:  # the script's own generator of the host must not move: the card has another
                torch.random.set_rng_state(self._random)
                kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
            with torch.no_grad():
                return func(*args, **kwargs)
        except Exception:  # what a CPU cannot do
            return None
        finally:
            if before is not None:
                self._random = torch.random.get_rng_state()
                torch.random.set_rng_state(before)
            self._seconds_left -= time.monotonic() - started
