"""Small tensors of the virtual card whose elements are known: they came from the host (labels, masks, the edges of a graph), are constants or
random numbers, or were computed of such. What is done with them is done for real as well, so that sizes that hang on them are the true ones."""

from __future__ import annotations

import functools
import math
import operator
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


# Tensors of the virtual card, of any size, whose elements are all the same, or each one more than the one before. A mask of ones is asked whether
# all of it is true, positions whether they belong to one text, and what the script does next depends on the answer.

LOOKED_AT = 1 << 20  # elements of a tensor of the host, when it is sent to the card
REMEMBERED = 4096  # storages


_VALUE = {
    aten.ones: 1, aten.ones_like: 1, aten.new_ones: 1,
    aten.zeros: 0, aten.zeros_like: 0, aten.new_zeros: 0, aten.zero_: 0,
}  # fmt: skip
_FILLED = {
    aten.full: 1,
    aten.full_like: 1,
    aten.new_full: 2,
    aten.scalar_tensor: 0,
    aten.fill: 1,
    aten.fill_: 1,
}
_SAME = _packets("_to_copy", "clone", "repeat", "index", "index_select")
_KEPT = _SAME | _packets("cat", "stack")
_TRUTH = _packets("all", "any", "logical_and", "bitwise_and")
_NOT = _packets("logical_not", "bitwise_not")
_COMPARED = {
    aten.eq: operator.eq, aten.ne: operator.ne, aten.gt: operator.gt,
    aten.ge: operator.ge, aten.lt: operator.lt, aten.le: operator.le,
}  # fmt: skip
# of numbers that nobody has: a script that asks whether all of them are so checks its input, and they are
_CHECKED = _packets("ge", "gt", "le", "lt")
_BOTH = _packets("mul", "logical_and", "bitwise_and")
_MOVED = _packets("add", "sub", "_to_copy", "clone")  # by one number, or not at all: positions stay positions
# in place of a value: along the last dimension each element is one more than the one before
COUNTING = object()
_DERIVED = {*_SAME, *_TRUTH, *_NOT, *_COMPARED, aten.sum}


class UniformTensors:
    """By the number of a storage, so that views share it."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._values: dict[int, Any] = {}
        self._checked: dict[int, None] = {}  # comparisons of floating-point numbers
        self._truths: dict[int, None] = {}  # numbers that were booleans

    def value(self, tensor: Any) -> Any:
        known = self._known(tensor)
        return None if known is COUNTING else known

    def counts(self, tensor: Any) -> bool:
        """0, 1, 2… or 5, 6, 7…: of a view the whole last dimension, or less of it."""
        return self._known(tensor) is COUNTING and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)

    def is_truth(self, tensor: Any) -> bool:
        """Zeros and ones, in whatever type: predictions, which metrics refuse if they are anything else."""
        return tensor.dtype is torch.bool or self._log.number(tensor) in self._truths

    def _known(self, tensor: Any) -> Any:
        number = self._log.number(tensor)
        return self._values.get(number) if number is not None else None

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called when an operation is done and its result has a number."""
        packet = func.overloadpacket
        if (self._values or self._checked or self._truths) and func._schema.is_mutable:
            for tensor in tensors((args, kwargs)):
                self._keep(tensor, None)
        if not isinstance(out, torch.Tensor):
            return
        if packet in _VALUE:
            self._keep(out, _VALUE[packet])
        elif packet is aten.arange:
            self._keep(
                out, COUNTING if func is not aten.arange.start_step or args[2:] in ((), (1,)) else None
            )
        elif packet in _FILLED:
            at = _FILLED[packet]
            filled = args[at] if len(args) > at else kwargs.get("fill_value", kwargs.get("value"))
            self._keep(out, filled if isinstance(filled, (bool, int, float)) else None)
        elif self._is_check(packet, args):
            self._note(self._checked, out)
        elif packet is aten.all and self._was_checked(args[0]):
            self._keep(out, True)
        elif self._values and packet in _MOVED and self._known(args[0]) is COUNTING:
            plain = all(isinstance(value, int) for value in args[1:]) and "alpha" not in kwargs
            self._keep(out, COUNTING if plain and out.shape == args[0].shape else None)
        elif self._values and packet in _DERIVED:
            self._keep(out, self._derived(func, packet, args))
        if packet in _KEPT and out.dtype is not torch.bool:
            parts = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
            if all(map(self.is_truth, parts)):
                self._note(self._truths, out)

    def _derived(self, func: Any, packet: Any, args: Any) -> Any:
        first = self.value(args[0])
        if first is None:
            return None
        if packet in _SAME:
            return first
        if packet is aten.sum:
            return first * args[0].numel() if func is aten.sum.default else None
        if packet in _NOT:
            return not first if args[0].dtype is torch.bool else None
        if packet in _COMPARED:
            return _COMPARED[packet](first, args[1]) if isinstance(args[1], (bool, int, float)) else None
        if packet in (aten.all, aten.any):
            return bool(first)
        second = self.value(args[1]) if isinstance(args[1], torch.Tensor) else None
        return bool(first) and bool(second) if second is not None else None

    def _is_check(self, packet: Any, args: Any) -> bool:
        """``torch.isfinite`` comes as x == x and |x| != inf, multiplied."""
        if packet in _BOTH:
            return bool(self._checked) and all(
                isinstance(value, torch.Tensor) and self._was_checked(value) for value in args[:2]
            )
        if packet not in _COMPARED or not args[0].is_floating_point() or self.value(args[0]) is not None:
            return False
        if packet is aten.eq:
            return args[0] is args[1]
        return packet in _CHECKED or (isinstance(args[1], float) and args[1] == math.inf)

    def _note(self, noted: dict[int, None], tensor: Any) -> None:
        number = self._log.number(tensor)
        if number is not None:
            noted[number] = None
            if len(noted) > REMEMBERED:
                del noted[next(iter(noted))]

    def _was_checked(self, tensor: Any) -> bool:
        return self._log.number(tensor) in self._checked

    def arrived(self, tensor: Any, moved: Any) -> None:
        """From the host, where its elements can be read."""
        if tensor.is_floating_point() or tensor.is_complex() or not 0 < tensor.numel() <= LOOKED_AT:
            return
        first = tensor.flatten()[0]
        if bool((tensor == first).all()):
            self._keep(moved, first.item())
        elif tensor.dtype is torch.int64 and bool((tensor.diff(dim=-1) == 1).all()):
            self._keep(moved, COUNTING)

    def _keep(self, tensor: Any, value: Any) -> None:
        number = self._log.number(tensor)
        if number is None:
            return
        self._checked.pop(number, None)
        self._truths.pop(number, None)
        whole = tensor.nbytes == tensor.untyped_storage().nbytes()
        if value is None or not whole:
            self._values.pop(number, None)
            return
        self._values[number] = bool(value) if tensor.dtype is torch.bool and value is not COUNTING else value
        if len(self._values) > REMEMBERED:
            del self._values[next(iter(self._values))]


# How many elements of a tensor of the virtual card can be other than zero: torchvision's detectors mark the boxes that they draw, and take those.

_COPIED = {aten._to_copy, aten.clone}
_EITHER = {aten.bitwise_or, aten.logical_or, aten.cat}


class SetElements:
    """By the number of a storage. Known of what was all zeros, and had a known number of places written to."""

    def __init__(self, log: Any, uniform: Any) -> None:
        self._log, self._uniform = log, uniform
        self._most: dict[int, int] = {}

    def most(self, tensor: Any) -> int | None:
        number = self._log.number(tensor)
        known = self._most.get(number) if number is not None else None
        if known is None and self._uniform.value(tensor) == 0:
            return 0
        return known

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called before the uniform tensors are told of the same operation."""
        packet = func.overloadpacket
        if packet is aten.index_put_:
            before, written = self.most(args[0]), _places_written(args[1])
            self._keep(args[0], before + written if before is not None and written is not None else None)
        elif func._schema.is_mutable:
            if self._most:
                for tensor in tensors((args, kwargs)):
                    self._keep(tensor, None)
        elif self._most and isinstance(out, torch.Tensor) and (packet in _COPIED or packet in _EITHER):
            parts = list(tensors(args)) if packet in _EITHER else [args[0]]
            found = [self.most(part) for part in parts]
            self._keep(out, sum(found) if None not in found else None)  # type: ignore[arg-type]

    def _keep(self, tensor: Any, most: int | None) -> None:
        number = self._log.number(tensor)
        if number is None:
            return
        whole = tensor.nbytes == tensor.untyped_storage().nbytes()
        if most is None or not whole:
            self._most.pop(number, None)
            return
        self._most[number] = min(most, int(tensor.numel()))
        if len(self._most) > REMEMBERED:
            del self._most[next(iter(self._most))]


def _places_written(indices: Any) -> int | None:
    """Places: of one dimension, by their numbers."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype in (torch.bool, torch.uint8):
        return None
    return int(indices[0].numel())
