"""What a value is to the census, by its type alone: no isinstance(), no attribute of the value, no metaclass is asked."""

from __future__ import annotations

import gc
import sys
import time
from array import array
from collections import deque
from itertools import islice
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LEAF, LIST, TUPLE, DICT, SET, DEQUE = "leaf", "list", "tuple", "dict", "set", "deque"
NUMPY, TENSOR, PANDAS, ARROW, DATASET = "numpy", "tensor", "pandas", "arrow", "dataset"
OBJECT, RUNNING, SKIPPED = "object", "running", "skipped"
CONTAINERS = (LIST, TUPLE, DICT, SET, DEQUE)
TABLES = (NUMPY, TENSOR, PANDAS, ARROW, DATASET)

_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC
_INSTANCE_VALUES = 1 << 4  # Py_TPFLAGS_MANAGED_DICT, of Python 3.11 and newer
_GC_HEADER = 16
_BASES: tuple[tuple[type, str], ...] = (
    (str, LEAF), (bytes, LEAF), (bytearray, LEAF), (int, LEAF), (float, LEAF), (complex, LEAF), (array, LEAF),
    (list, LIST), (tuple, TUPLE), (dict, DICT), (set, SET), (frozenset, SET), (deque, DEQUE),
    (GeneratorType, RUNNING), (CoroutineType, RUNNING), (AsyncGeneratorType, RUNNING),
    (type, SKIPPED), (ModuleType, SKIPPED), (FunctionType, SKIPPED), (BuiltinFunctionType, SKIPPED),
    (MethodType, SKIPPED), (CodeType, SKIPPED), (FrameType, SKIPPED), (property, SKIPPED), (type(None), SKIPPED),
)  # fmt: skip
# (module that is loaded, attribute of it, what that is): found by name, for none of them is loaded for us
_LIBRARIES = (
    ("numpy", "ndarray", NUMPY),
    ("torch", "Tensor", TENSOR),
    ("pandas", "DataFrame", PANDAS),
    ("pandas", "Series", PANDAS),
    ("pandas", "Index", PANDAS),
    ("pyarrow", "Table", ARROW),
    ("pyarrow", "RecordBatch", ARROW),
    ("pyarrow", "ChunkedArray", ARROW),
    ("pyarrow", "Array", ARROW),
    ("datasets", "Dataset", DATASET),
)
# What a training cannot keep less of, as it can of its data: (module that is loaded, class in it, what that is part of)
MODEL, OPTIMIZER = "model", "optimizer"
_PARTS = (
    ("torch.nn.modules.module", "Module", MODEL),
    ("torch.optim.optimizer", "Optimizer", OPTIMIZER),
    ("torch.nn.parameter", "Parameter", MODEL),
    ("keras", "Model", MODEL),
    ("sklearn.base", "BaseEstimator", MODEL),
)


class Kind:
    """What is known of one type."""

    def __init__(self, role: str, base: Any, name: str, flags: int, part: str = "") -> None:
        # base: Python's or a library's own class behind it
        self.role, self.base, self.name, self.part = role, base, name, part
        self.header = _GC_HEADER if flags & _HAS_GC else 0
        self.in_values = bool(flags & _INSTANCE_VALUES) and sys.version_info >= (3, 11)


class _Probe:
    def __init__(self) -> None:
        self.a = self.b = self.c = None


# whether Python counts an instance's attributes
_VALUES_COUNTED = object.__sizeof__(_Probe()) > _Probe.__basicsize__


class Kinds:
    def __init__(self) -> None:
        self._known: dict[int, Kind] = {}  # by id: a metaclass may have a hash of its own
        self._bases = list(_BASES)
        for module, name, role in _LIBRARIES:
            kind = _attribute(module, name)
            if issubclass(type(kind), type):
                self._bases.append((kind, role))
        found = [(_attribute(module, name), part) for module, name, part in _PARTS]
        self._parts = [(kind, part) for kind, part in found if issubclass(type(kind), type)]

    def of(self, value: Any) -> Kind:
        kind = type(value)
        known = self._known.get(id(kind))
        if known is None:
            known = self._known[id(kind)] = self._judge(kind)
        return known

    def _judge(self, kind: type) -> Kind:
        name, flags = type.__getattribute__(kind, "__name__"), type.__getattribute__(kind, "__flags__")
        bases = type.__getattribute__(kind, "__mro__")
        part = next((part for base in bases for known, part in self._parts if base is known), "")
        for base in bases:
            for known, role in self._bases:
                if base is known:
                    return Kind(role, known, str(name)[:60], flags, part)
        module = type.__dict__["__dict__"].__get__(kind).get("__module__")
        if type(module) is str and module.startswith("weakref"):
            return Kind(SKIPPED, object, str(name)[:60], flags)
        return Kind(OBJECT, object, str(name)[:60], flags, part)


def _attribute(module: str, name: str) -> Any:
    """Of a module that is loaded; None where it is not, or only half. A lazy one stays as it is."""
    loaded = sys.modules.get(module)
    if not issubclass(type(loaded), ModuleType):
        return None
    return ModuleType.__getattribute__(loaded, "__dict__").get(name)


def length(value: Any, kind: Kind) -> int:
    """Of a container or text, by Python's own counting."""
    return int(kind.base.__len__(value)) if hasattr(kind.base, "__len__") else 0


def own_size(value: Any, kind: Kind, referents: int = 0) -> int:
    """Bytes of the object itself, as the allocator rounds them. ``referents``: of an instance, how many attributes it has."""
    size = kind.base.__sizeof__(value) + kind.header
    if kind.role == OBJECT and kind.in_values and not _VALUES_COUNTED:
        size, values = size + 16, 8 * (referents + 2)  # two pointers before the object; its attributes
        return _block(size) + _block(values) if sys.version_info < (3, 13) else _block(size + values)
    if kind.role in (LIST, DICT, SET):  # what it points to has a block of its own
        body = kind.base.__basicsize__ + kind.header
        return _block(body) + (_block(size - body) if size > body else 0)
    return _block(size)


def _block(size: int) -> int:
    """Python's small blocks are a multiple of 16, malloc's have a header; pools and arenas have theirs."""
    return ((size + 15) & ~15) if size <= 512 else (size + 23) & ~15


SAMPLE = 256  # elements of a container that are looked at, spread over it
_INNER, _INNER_SAMPLE = 64, 24  # of one inside another: all, or so many
_NODES = 400  # objects that hang on one element
_MANY_NODES = 20_000  # ... on one object, as a model
REACH = 500_000  # entries of a dict or set that are passed over for a sample: they have no index


class OutOfTime(Exception):
    """The census has used what it may take."""


class Clock:
    """Seconds of work and, where the heap is in swap, of waiting that a census may take."""

    def __init__(self, seconds: float, waiting: float) -> None:
        self.begun, self.worked = time.monotonic(), time.thread_time()
        self._until, self._worked_until = self.begun + waiting, self.worked + seconds
        self._ticks = 0

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks & 31 == 0:
            self.check()

    def check(self) -> None:
        if time.thread_time() > self._worked_until or time.monotonic() > self._until:
            raise OutOfTime


class Sizer:
    def __init__(
        self,
        kinds: Kinds,
        clock: Clock,
        table_size: Callable[[Any, Kind, bool], tuple[int, int, int]],
        elsewhere: set[int],
    ) -> None:
        """``elsewhere``: ids of what has a name of its own and is counted there. ``table_size``: of one array or table; of
        one that is not of a sample, all of it, the first time: bytes in memory, mapped, on the GPU."""
        self._kinds, self._clock, self._table_size, self._elsewhere = kinds, clock, table_size, elsewhere
        self.mapped, self.gpu = 0.0, 0.0  # of what was asked for last
        probe = [object()]
        # references that only the counting makes, and the list of ours
        self._counted = sys.getrefcount(probe[0])

    def container(self, value: Any, kind: Kind) -> int:
        """A container with all that hangs on it."""
        total = float(own_size(value, kind))
        self.mapped = self.gpu = 0.0
        elements, factor = sample(value, kind, SAMPLE)
        while elements:
            if id(elements[-1]) not in self._elsewhere:
                total += factor * self._hanging(elements, _NODES, factor)
            elements.pop()
        return int(total)

    def whole(self, value: Any) -> int:
        """An object with all that hangs on it and has no name of its own."""
        self.mapped = self.gpu = 0.0
        return int(self._hanging([value], _MANY_NODES, alone=True))

    def _hanging(self, roots: list[Any], most: int, factor: float = 1.0, alone: bool = False) -> float:
        """Bytes that hang on the last of ``roots``, which stands for ``factor`` of them. What others hold too is theirs in
        part. What is mapped or on the GPU is added up apart."""
        kinds, elsewhere = self._kinds, self._elsewhere
        values = [roots[-1]]
        positions, inner, parents, scales, widths = {id(values[0]): 0}, [0], [0], [1.0], [0]
        child = None
        at = 0
        while at < len(values) and len(values) < most:
            self._clock.tick()
            children, many = self._children(values[at])
            widths[at] = len(children)
            while children:
                child = children.pop()
                position = positions.get(id(child))
                if position is not None:
                    inner[position] += 1
                elif kinds.of(child).role != SKIPPED and id(child) not in elsewhere:
                    positions[id(child)] = len(values)
                    values.append(child)
                    inner.append(1)
                    parents.append(at)
                    scales.append(scales[at] * many)
                    widths.append(0)
            at += 1
        child = None
        total, shares = 0.0, [1.0] * len(values)
        for at in range(len(values)):
            references = max(1, sys.getrefcount(values[at]) - self._counted)
            if at:
                shares[at] = shares[parents[at]] * min(1.0, inner[at] / references)
            elif not alone:
                # less the list they came in, and what points back
                shares[0] = 1 / max(1, references - 1 - inner[0])
            kind = kinds.of(values[at])
            if kind.role not in TABLES:
                total += shares[at] * scales[at] * own_size(values[at], kind, widths[at])
                continue
            is_sample = factor * scales[at] > 1.0
            # libraries hold references of their own: of what is not of a sample, the first one counts it
            share = shares[at] * scales[at] if is_sample else 1.0
            ram, mapped, gpu = self._table_size(values[at], kind, is_sample)
            total += share * ram
            self.mapped += factor * share * mapped
            self.gpu += factor * share * gpu
        return total

    def _children(self, value: Any) -> tuple[list[Any], float]:
        """What it refers to, and how many each of them stands for."""
        kind = self._kinds.of(value)
        if kind.role in CONTAINERS:
            return (
                sample(value, kind, _INNER_SAMPLE)
                if length(value, kind) > _INNER
                else (everything(value, kind), 1.0)
            )
        if kind.role == OBJECT:
            return [held for held in gc.get_referents(value) if self._kinds.of(held).role != SKIPPED], 1.0
        return [], 1.0


def everything(value: Any, kind: Kind) -> list[Any]:
    """The elements; of a dict, keys and values."""
    try:
        if kind.role == DICT:
            return [*dict.keys(value), *dict.values(value)]
        return list(kind.base.__iter__(value))
    except RuntimeError:  # changed by another thread meanwhile
        return []


def sample(value: Any, kind: Kind, most: int) -> tuple[list[Any], float]:
    """Elements spread over it, and how many each of them stands for. In single calls: other threads may change it."""
    count = length(value, kind)
    if count <= most:
        return everything(value, kind), 1.0
    try:
        if kind.role in (LIST, TUPLE):
            get = kind.base.__getitem__
            elements = [get(value, (2 * number + 1) * count // (2 * most)) for number in range(most)]
        elif kind.role == DICT:
            step = max(1, min(count, REACH) // most)
            keys = list(islice(dict.keys(value), step // 2, REACH, step))[:most]
            elements = list(islice(dict.values(value), step // 2, REACH, step))[:most]
            return [*keys, *elements], count / max(1, len(elements))
        else:
            step = max(1, min(count, REACH) // most)
            elements = list(islice(kind.base.__iter__(value), step // 2, REACH, step))[:most]
    except (IndexError, RuntimeError):  # changed by another thread meanwhile
        return [], 1.0
    return elements, count / max(1, len(elements))
