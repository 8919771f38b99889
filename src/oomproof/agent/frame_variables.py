"""Variables of running functions and attributes of objects, read without running or holding anything of the job's."""

from __future__ import annotations

import os
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

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = ("torch/", "numpy/", "pandas/", "pyarrow/", "datasets/")  # that a look may ask
_FILES = (
    os.path.join(_PACKAGE, "agent"), os.path.join(_PACKAGE, "leaf"), os.path.join(os.path.dirname(os.__file__), "json"),
    "<frozen", "<__array", *_LIBRARIES,
)  # fmt: skip
_INSTALLED = tuple("-packages/" + name for name in _LIBRARIES)


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


def is_ours(error: BaseException) -> bool:
    """Whether an exception raised while we look is a failure of ours; one of a signal handler of the job is the job's. False when it came through a function of somebody else's, whom only a signal can have called."""
    traceback: Any = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_FILES) and not any(name in file for name in _INSTALLED):
            return False
        traceback = traceback.tb_next
    return True
