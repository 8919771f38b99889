"""What a function takes from outside itself: its module's names, its closure, the object it belongs to, what it was bound to; and the functions
of its own file that it calls."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any


def outer_values(function: Any) -> list[Any]:
    """Each once, by identity."""
    found: dict[int, Any] = {}
    waiting, file = [function], _file_of(function)
    while waiting:
        for value in _values(waiting.pop()):
            if id(value) not in found:
                found[id(value)] = value
                if isinstance(value, types.FunctionType) and value.__code__.co_filename == file:
                    waiting.append(value)
    return list(found.values())


def _file_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(
        inspect.getattr_static(type(function), "__call__", None), "__code__", None
    )
    return code.co_filename if code is not None else ""


def _values(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _values(function.func)
    elif isinstance(function, types.MethodType):
        yield from vars(function.__self__).values() if hasattr(function.__self__, "__dict__") else ()
        yield from _values(function.__func__)
    elif isinstance(function, types.FunctionType):
        from oomproof.sizing.virtual_gpu.fake_copies import names_in

        names = names_in(function.__code__)
        yield from (function.__globals__[name] for name in names if name in function.__globals__)
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty yet
                yield cell.cell_contents
    elif isinstance(called := inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
        yield from _values(types.MethodType(called, function))
