"""Variables of running functions and attributes of objects, read without running code of theirs and without holding them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's own fast variables
# Before Python 3.13 a function's f_locals is one dict, filled anew for each who asks: a function that asked itself may still
# read it, and is left alone.
_ASK_THEMSELVES = {"locals", "vars", "dir", "eval", "exec"}
_OURS = 3  # references to that dict: the frame's, ours, and the one that counts them
_GETSET = type(type.__dict__["__dict__"])  # how Python itself gives an object's attributes


class FrameVariables:
    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self.is_library = is_library
        self._user_modules: dict[str, bool] = {}
        self._asking: dict[tuple[str, int, str], bool] = {}  # functions that ask for their own variables

    def of(self, frame: Any) -> list[tuple[str, Any]]:
        """A function's own; none of a module's or a class's body, whose variables are elsewhere."""
        code = frame.f_code
        if not code.co_flags & _OPTIMIZED:
            return []
        if sys.version_info >= (3, 13):
            return list(frame.f_locals.items())
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        if key not in self._asking:
            self._asking[key] = "f_locals" in code.co_names or _calls(code, _ASK_THEMSELVES)
        if self._asking[key] or frame.f_trace is not None or sys.gettrace() is not None:
            return []
        names = frame.f_locals
        if sys.getrefcount(names) > _OURS:  # somebody else reads it: never again
            self._asking[key] = True
            return []
        held = list(names.items())
        names.clear()  # or the frame would hold what the job drops
        return held

    def is_user_class(self, kind: type) -> bool:
        name = str(type.__getattribute__(kind, "__module__"))  # no metaclass of theirs is asked
        known = self._user_modules.get(name)
        if known is None:
            file = getattr(sys.modules.get(name), "__file__", None)
            known = self._user_modules[name] = isinstance(file, str) and not self.is_library(file)
        return known


def attributes(value: Any, kind: type) -> Any:
    """An object's own dict, unless its class has code behind that name."""
    for base in type.__getattribute__(kind, "__mro__"):
        descriptor = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if descriptor is not None:
            return descriptor.__get__(value) if type(descriptor) is _GETSET else None
    return None


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
