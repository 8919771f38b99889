"""What a value is to the census, by its type alone: no isinstance(), no attribute of the value, no metaclass is asked."""

from __future__ import annotations

import sys
from array import array
from collections import deque
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

    __slots__ = ("base", "header", "in_values", "name", "part", "role")

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
