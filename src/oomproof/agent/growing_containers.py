"""Lists, dicts and sets of the user's own code that grow from look to look: what a leak is most often kept in.

Only lengths and types are looked at, of containers that are exactly Python's own: nothing of the job's runs, and nothing is
held."""

from __future__ import annotations

import os
from collections import deque

from .frame_variables import FrameVariables, attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_KINDS = (list, dict, set, deque)
_FRAMES, _NAMES = 100, 2000  # looked at
_LEAST = 4  # looks before one is called growing
_MOSTLY = 0.8  # of the looks: it may be emptied once
_TOLD = 3
# a log of numbers is no leak until there are so many
_SMALL, _MANY = ("int", "float", "bool", "NoneType"), 1_000_000
_VALUES = ("Tensor", "ndarray")  # large by themselves
_PLAIN = ("str", "bytes", "tuple", "dict", "list", "set", "datetime", "Path")


class GrowingContainers:
    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self._variables = FrameVariables(is_library)
        self._known: dict[int, list[int]] = {}  # id: [first length, last length, looks, rises]

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
            if not self._variables.is_library(code.co_filename):
                file = os.path.abspath(code.co_filename)
                place = (code.co_name, file, code.co_firstlineno)
                for name, value in self._variables.of(frame):
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
        elif self._variables.is_user_class(kind):
            seen.add(id(value))
            own = attributes(value, kind)
            if type(own) is dict:
                for attribute, held in list(own.items())[:200]:
                    if any(type(held) is known for known in _KINDS) and id(held) not in seen:
                        seen.add(id(held))
                        yield ("attribute", f"{kind.__name__}.{attribute}", *place), held


def _rank(element: str) -> int:
    """What can be large comes first; notes and names last."""
    kind = element.split(" ")[0]
    return 0 if kind in _VALUES else 2 if kind in _PLAIN else 1


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
        # a subclass of it may have code behind these
        if f"{type(value).__module__}.{name}" == "torch.Tensor":
            graph = " with its graph" if value.grad_fn is not None else ""
            return f"{name} {list(value.shape)}{graph}"
        return name
    except Exception:  # emptied meanwhile by another thread
        return ""
