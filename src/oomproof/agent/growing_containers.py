"""Lists, dicts and sets of the user's own code that grow from look to look: what a leak is most often kept in.

Only lengths and types are looked at, of containers that are exactly Python's own: nothing of the job's runs, and nothing is
held."""

from __future__ import annotations

import os
import sys
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_KINDS = (list, dict, set, deque)
_FRAMES, _NAMES = 100, 2000  # looked at
_LEAST = 4  # looks before one is called growing
_MOSTLY = 0.8  # of the looks: it may be emptied once
_TOLD = 3
_SMALL, _MANY = (
    ("int", "float", "bool", "NoneType"),
    1_000_000,
)  # a log of numbers is no leak until there are so many
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's own fast variables
# Before Python 3.13 a function's f_locals is one dict, filled anew for each who asks: a function that asked itself may still
# read it, and is left alone.
_ASK_THEMSELVES = {"locals", "vars", "dir", "eval", "exec"}
_OURS = 3  # references to that dict: the frame's, ours, and the one that counts them
_GETSET = type(type.__dict__["__dict__"])  # how Python itself gives an object's attributes
_VALUES = ("Tensor", "ndarray")  # large by themselves
_PLAIN = ("str", "bytes", "tuple", "dict", "list", "set", "datetime", "Path")


class GrowingContainers:
    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self._is_library = is_library
        self._known: dict[int, list[int]] = {}  # id: [first length, last length, looks, rises]
        self._user_modules: dict[str, bool] = {}
        self._asking: dict[tuple[str, int, str], bool] = {}  # functions that ask for their own variables

    def look(self, frame: Any) -> list[list[Any]]:
        """[[kind, scope, name, function, file, line, length at first, length now, element], …], the fastest first."""
        now: dict[int, list[int]] = {}
        growing = []
        for where, value in self._containers(frame):
            key, length = id(value), len(value)
            first, last, looks, rises = self._known.get(key, (length, length, 0, 0))
            now[key] = [first, length, looks + 1, rises + (length > last)]
            if looks >= _LEAST and rises >= _MOSTLY * looks and length > first:
                element = _element(value)
                if element not in _SMALL or length - first >= _MANY:
                    growing.append((length - first, where, type(value).__name__, first, length, element))
        self._known = now
        growing.sort(key=lambda row: (_rank(row[5]), -row[0]))
        return [
            [kind, *where, first, length, element]
            for _, where, kind, first, length, element in growing[:_TOLD]
        ]

    def _containers(self, frame: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """((scope, name, function, file, line of the function), container), each once."""
        seen: set[int] = set()
        modules: set[int] = set()
        left = _NAMES
        for _ in range(_FRAMES):
            if frame is None or left <= 0:
                return
            code = frame.f_code
            if not self._is_library(code.co_filename):
                file = os.path.abspath(code.co_filename)
                place = (code.co_name, file, code.co_firstlineno)
                for name, value in self._local_variables(frame):
                    left -= 1
                    yield from self._within("local", name, value, place, seen)
                if id(frame.f_globals) not in modules:
                    modules.add(id(frame.f_globals))
                    for name, value in list(frame.f_globals.items())[:_NAMES]:
                        left -= 1
                        if type(name) is str and not name.startswith("__"):
                            yield from self._within("global", name, value, ("", file, 0), seen)
            frame = frame.f_back

    def _within(
        self, scope: str, name: str, value: Any, place: tuple[Any, ...], seen: set[int]
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        kind = type(value)
        if id(value) in seen:
            return
        if any(kind is known for known in _KINDS):  # never ==, which a class of theirs may answer
            seen.add(id(value))
            yield (scope, name, *place), value
        elif self._is_user_class(kind):
            seen.add(id(value))
            attributes = _attributes(value, kind)
            if type(attributes) is dict:
                for attribute, held in list(attributes.items())[:200]:
                    if any(type(held) is known for known in _KINDS) and id(held) not in seen:
                        seen.add(id(held))
                        yield ("attribute", f"{kind.__name__}.{attribute}", *place), held

    def _local_variables(self, frame: Any) -> list[tuple[str, Any]]:
        code = frame.f_code
        if not code.co_flags & _OPTIMIZED:
            return []
        if sys.version_info >= (3, 13):
            return list(frame.f_locals.items())
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        if key not in self._asking:
            self._asking[key] = "f_locals" in code.co_names or _calls(code, _ASK_THEMSELVES)
        if self._asking[key] or sys.gettrace() is not None:
            return []
        names = frame.f_locals
        if sys.getrefcount(names) > _OURS:  # somebody else reads it: never again
            self._asking[key] = True
            return []
        held = list(names.items())
        names.clear()  # or the frame would hold what the job drops
        return held

    def _is_user_class(self, kind: type) -> bool:
        name = str(type.__getattribute__(kind, "__module__"))  # no metaclass of theirs is asked
        known = self._user_modules.get(name)
        if known is None:
            file = getattr(sys.modules.get(name), "__file__", None)
            known = self._user_modules[name] = isinstance(file, str) and not self._is_library(file)
        return known


def _attributes(value: Any, kind: type) -> Any:
    """An object's own dict, unless its class has code behind that name."""
    for base in type.__getattribute__(kind, "__mro__"):
        descriptor = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if descriptor is not None:
            return descriptor.__get__(value) if type(descriptor) is _GETSET else None
    return None


def _rank(element: str) -> int:
    """What can be large comes first; notes and names last."""
    kind = element.split(" ")[0]
    return 0 if kind in _VALUES else 2 if kind in _PLAIN else 1


def _calls(code: Any, names: set[str]) -> bool:
    """Whether a function calls one of these builtins, by its bytecode: a method of that name (`model.eval()`) is another."""
    if not names.intersection(code.co_names):
        return False
    from opcode import EXTENDED_ARG, opmap

    wide, shift = 0, 1 if sys.version_info >= (3, 11) else 0  # the lowest bit tells how it is called
    steps = code.co_code
    for at in range(0, len(steps) - 1, 2):
        number = wide | steps[at + 1]
        wide = number << 8 if steps[at] == EXTENDED_ARG else 0
        if steps[at] == opmap["LOAD_GLOBAL"] and names.intersection(code.co_names[number >> shift :][:1]):
            return True
    return False


def _element(container: Any) -> str:
    """What the newest of its elements is; of a set, any."""
    try:
        kind = type(container)
        if kind is dict:
            value = next(reversed(container.values()))
        elif kind is set:
            value = next(iter(container))
        else:
            value = container[-1]
        name = type(value).__name__
        if (
            f"{type(value).__module__}.{name}" == "torch.Tensor"
        ):  # a subclass of it may have code behind these
            graph = " with its graph" if value.grad_fn is not None else ""
            return f"{name} {list(value.shape)}{graph}"
        return name
    except Exception:  # emptied meanwhile by another thread
        return ""
