"""What has a name in the user's program: variables of running functions, globals, attributes, entries of small containers."""

from __future__ import annotations

import os
import sys
from collections import deque, namedtuple
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MemberDescriptorType, ModuleType

from .census_kinds import (
    CONTAINERS,
    DICT,
    LEAF,
    LIST,
    OBJECT,
    RUNNING,
    SKIPPED,
    TABLES,
    TUPLE,
    Kind,
    Kinds,
    everything,
    length,
)
from .frame_variables import FrameVariables, attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .census_kinds import Clock

_FRAMES, _MODULES, _THREADS = 200, 500, 64
_NAMES = 3000  # looked at in all
_OF_ONE = 400  # attributes of one object, variables of one function
_DEEP = 3  # names within names
SMALL = 64  # elements: what holds no more is a holder of other things
_LEAF = 64 << 10  # bytes of a text that is worth a line
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PARTS_OF_A_MODEL = ("_parameters", "_buffers", "_modules")
# Functions of libraries that keep what is the user's, and their variables: the Trainer keeps all predictions of an evaluation.
_KEEPING = {
    ("evaluation_loop", "transformers/trainer.py"): ("all_preds", "all_labels", "all_inputs", "all_losses")
}
_FRAME_OF = ((GeneratorType, "gi_frame"), (CoroutineType, "cr_frame"), (AsyncGeneratorType, "ag_frame"))


Owner = namedtuple("Owner", "scope function file line")  # where a name stands


class Thing:
    """A value with a name of its own."""

    def __init__(self, name: str, owner: Owner, value: Any, kind: Kind, parent: Thing | None) -> None:
        self.name, self.owner, self.value, self.kind = name, owner, value, kind
        self.parent, self.entries = parent, 0  # what it is an entry of; how many such it has
        self.holder: Thing | None = None  # what it is an attribute of
        self.numbered = (
            False  # its entries have numbers: it grows by one more, and has the one name that stays
        )
        self.ram = self.mapped = self.gpu = self.rows = self.address = 0
        self.length, self.what, self.seen = 0, kind.name, False
        # of a model or an optimizer, as their own attributes are
        self.part: str = kind.part
        if parent is not None and not self.part:
            self.part = parent.part

    @property
    def size(self) -> int:
        return self.ram + self.mapped + self.gpu


class Walk:
    def __init__(self, kinds: Kinds, clock: Clock, is_library: Any) -> None:
        self._kinds, self._clock = kinds, clock
        self._variables = FrameVariables(lambda path: is_library(path) or path.startswith(_PACKAGE))
        self._queue: deque[tuple[str, Owner, Any, int, Thing | None]] = deque()
        self.things: list[Thing] = []
        self.ids: set[int] = set()
        self.all_named = True

    def go(self) -> None:
        """Those of running functions first: of two names, the nearer one is the user's."""
        for name, owner, value in self._roots():
            self._note(name, owner, value, 0)
        while self._queue:
            self._clock.tick()
            if len(self.things) >= _NAMES:
                self.all_named = False
                break
            self._within(*self._queue.popleft())
        self._queue.clear()

    def _note(
        self,
        name: str,
        owner: Owner,
        value: Any,
        depth: int,
        parent: Thing | None = None,
        holder: Thing | None = None,
    ) -> None:
        if id(value) in self.ids:
            return
        kind = self._kinds.of(value)
        if kind.role == SKIPPED or (kind.role == LEAF and kind.base.__sizeof__(value) < _LEAF):
            return
        self.ids.add(id(value))
        thing = None
        if parent is not None:
            parent.entries += 1
        if kind.role != RUNNING:
            thing = Thing(name[:120], owner, value, kind, parent)
            thing.holder = holder
            if holder is not None:
                thing.part = thing.part or holder.part
            if kind.role in CONTAINERS:
                thing.length = thing.rows = length(value, kind)
            self.things.append(thing)
        if depth < _DEEP and kind.role not in (*TABLES, LEAF):
            self._queue.append((name, owner, value, depth + 1, thing))

    # --- where names come from ----------------------------------------------------------------------------------

    def _roots(self) -> Iterator[tuple[str, Owner, Any]]:
        modules: dict[int, tuple[str, Any]] = {}
        for frame in self._frames():
            code = frame.f_code
            file = os.path.abspath(code.co_filename)
            yield from self._of_frame(frame, file)
            if not _kept_by(code):
                modules.setdefault(id(frame.f_globals), (file, frame.f_globals))
        for name, module in list(sys.modules.items())[: _MODULES * 20]:
            if type(module) is not ModuleType or len(modules) >= _MODULES:
                continue
            names = ModuleType.__getattribute__(module, "__dict__")
            file = names.get("__file__")
            if type(file) is str and (not self._variables.is_library(file) or name == "__main__"):
                modules.setdefault(id(names), (os.path.abspath(file), names))
        for file, names in modules.values():
            owner = Owner("global", "", file, 0)
            for name, value in list(names.items())[: _OF_ONE * 5]:
                if type(name) is str and not name.startswith("__"):
                    yield name, owner, value

    def _of_frame(self, frame: Any, file: str) -> Iterator[tuple[str, Owner, Any]]:
        code = frame.f_code
        owner = Owner("local", code.co_name, file, code.co_firstlineno)
        kept = _kept_by(code)
        for name, value in self._variables.of(frame)[:_OF_ONE]:
            if name in kept if kept else not name.startswith((".", "__")):
                yield name, owner, value

    def _frames(self) -> Iterator[Any]:
        """The user's, of all threads, and those of libraries that keep what is his; never ours, which would hold itself."""
        from _thread import get_ident

        threads = sys._current_frames()
        here = threads.pop(get_ident(), None)
        for start in [here, *list(threads.values())[:_THREADS]]:
            frame = start
            for _ in range(_FRAMES):
                if frame is None:
                    break
                if self._is_users_code(frame) or _kept_by(frame.f_code):
                    yield frame
                frame = frame.f_back
        threads.clear()

    def _is_users_code(self, frame: Any) -> bool:
        """Code that was made as it ran (``<string>``) belongs to the module it was made in."""
        file = frame.f_code.co_filename
        if file.startswith("<"):
            known = frame.f_globals.get("__file__")
            file = known if type(known) is str else file
        return not self._variables.is_library(file)

    def _within(self, name: str, owner: Owner, value: Any, depth: int, thing: Thing | None) -> None:
        kind = self._kinds.of(value)
        if kind.role == RUNNING:
            self._of_running(name, value, depth)
        elif kind.role in CONTAINERS:
            if length(value, kind) <= SMALL:
                self._of_holder(name, owner, value, kind, depth, thing)
        elif kind.role == OBJECT:
            for attribute, held in self._attributes(value):
                role = self._kinds.of(held).role
                if role not in (LEAF, SKIPPED) and (role != OBJECT or depth < 2 or self._is_users(held)):
                    inner = _attribute_name(name, kind, attribute)
                    self._note(inner, owner._replace(scope="attribute"), held, depth, holder=thing)

    def _of_running(self, name: str, value: Any, depth: int) -> None:
        """A generator that waits holds its variables all the same."""
        for kind, attribute in _FRAME_OF:
            if type(value) is kind:
                frame = kind.__dict__[attribute].__get__(value)
                if frame is not None and self._is_users_code(frame):
                    for inner, owner, held in self._of_frame(
                        frame, os.path.abspath(frame.f_code.co_filename)
                    ):
                        self._note(inner, owner, held, depth)

    def _of_holder(
        self, name: str, owner: Owner, value: Any, kind: Kind, depth: int, thing: Thing | None
    ) -> None:
        if kind.role == DICT:
            try:
                pairs = list(dict.items(value))
            except RuntimeError:  # changed by another thread meanwhile
                return
            if any(_key(key) == "…" for key, _ in pairs):  # a table, not a group of things with names
                return
            entries = [(f"{name}[{_key(key)}]", held) for key, held in pairs]
        elif kind.role in (LIST, TUPLE):
            entries = [(f"{name}[{at}]", held) for at, held in enumerate(everything(value, kind))]
        else:
            return
        if thing is not None:
            thing.numbered = kind.role == LIST or (
                kind.role == DICT and all(type(key) is int for key, _ in pairs)
            )
        for entry, held in entries:
            role = self._kinds.of(held).role
            if role in CONTAINERS or role in TABLES or (role == OBJECT and self._is_users(held)):
                self._note(entry, owner, held, depth, thing)

    def _attributes(self, value: Any) -> list[tuple[str, Any]]:
        pairs: list[tuple[str, Any]] = []
        own = attributes(value, type(value))
        if type(own) is dict:
            pairs += [
                (name, held)
                for name, held in list(own.items())[:_OF_ONE]
                if type(name) is str and name not in _PARTS_OF_A_MODEL
            ]
        if self._variables.is_user_class(type(value)):
            for base in type.__getattribute__(type(value), "__mro__"):
                for name, descriptor in list(type.__dict__["__dict__"].__get__(base).items())[:_OF_ONE]:
                    if type(descriptor) is MemberDescriptorType:  # __slots__
                        try:
                            pairs.append((name, descriptor.__get__(value)))
                        except AttributeError:  # not set
                            pass
        return pairs

    def _is_users(self, value: Any) -> bool:
        return self._variables.is_user_class(type(value))


def _kept_by(code: Any) -> tuple[str, ...]:
    """Names of what a library's function keeps."""
    for (function, file), names in _KEEPING.items():
        if code.co_name == function and code.co_filename.endswith(file):
            return names
    return ()


def _attribute_name(name: str, kind: Kind, attribute: str) -> str:
    return f"{kind.name if name in ('self', 'cls') else name}.{attribute}"


def _key(key: Any) -> str:
    """A key that is a word of the program's own; any other may be data."""
    if type(key) is str and key.isidentifier() and len(key) <= 24:
        return repr(key)
    return str(key) if type(key) is int and abs(key) < 1000 else "…"
