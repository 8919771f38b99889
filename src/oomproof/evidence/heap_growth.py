"""What kind of memory it is that grows, from the allocators' own counters in the training process.

Python's objects, what libraries hold (arrays and tensors, native code), what the C library keeps though it was freed, Arrow's
pool; the rest was mapped by a library itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from oomproof.printable import one_line
from oomproof.recording.series import Series
from oomproof.records import dataclass

PYTHON, NATIVE, RETAINED, ARROW, MAPPED = "python", "native", "retained", "arrow", "mapped"

_LOOKS = 6  # before anything is said
_EDGE = 3  # looks at each end, of which the median counts
_MOST = 0.5  # of the growth: what is less is not what leaks
_ADDING = {"append", "extend", "add", "insert", "update", "appendleft", "setdefault"}
_LONGEST_SOURCE, _LONGEST_LINE = 4 << 20, 100  # characters
_BLOCK = (16, 700)  # bytes of one of Python's small blocks: up to 512, in pools and arenas that are not full


@dataclass(frozen=True, slots=True)
class GrowingContainer:
    """A list, dict or set of the user's code that had more elements at nearly each look."""

    kind: str
    scope: str  # local, global or attribute
    name: str  # of an attribute: Class.name
    function: str
    file: str
    line: int  # where the function begins
    before: int
    after: int
    element: str  # type of its newest element; a tensor's with its shape

    @property
    def is_large(self) -> bool:
        """Whether its elements can be what fills memory, a few at a time."""
        return self.element.startswith(("Tensor", "ndarray"))


@dataclass(frozen=True, slots=True)
class HeapGrowth:
    """Bytes that each kind grew by in the training process, from one look to another."""

    kind: str  # the one that most of it is; empty: of several
    grown: int  # of the process
    by_kind: dict[str, int]
    objects: int  # Python's small blocks, in numbers
    seconds: float
    containers: tuple[GrowingContainer, ...] = ()  # the fastest first


def heap_growth(series: Series, begin: float, end: float) -> HeapGrowth | None:
    """None where no agent told, or too seldom."""
    looks = [(t, told) for t, told in series.told_numbers("agent:heap") if begin <= t <= end]
    if not looks:
        return None
    pid = looks[-1][1].get("pid")
    looks = [(t, told) for t, told in looks if told.get("pid") == pid]  # a second training has its own heap
    if len(looks) < _LOOKS or not isinstance(looks[-1][1].get("anon"), int):
        return None
    grown = {
        name: _grown([told.get(name) for _, told in looks])
        for name in ("anon", "malloc", "malloc_free", "arrow", "blocks")
    }
    whole = grown["anon"] or 0
    if whole <= 0 or grown["malloc"] is None:
        return None
    by_kind = {NATIVE: grown["malloc"], RETAINED: grown["malloc_free"] or 0, ARROW: grown["arrow"] or 0}
    rest, objects = whole - sum(by_kind.values()), grown["blocks"] or 0
    if objects > 0:  # their arenas are mapped, as other things are: as much as so many of them can take
        by_kind[PYTHON] = max(0, min(rest, objects * _BLOCK[1]))
        if rest < objects * _BLOCK[0] / 2:
            by_kind[PYTHON] = 0
    by_kind[MAPPED] = max(0, rest - by_kind.get(PYTHON, 0))
    most = max(by_kind, key=lambda kind: by_kind[kind])
    kind = most if by_kind[most] >= _MOST * whole else ""
    containers = _containers(looks[-1][1].get("containers"))
    return HeapGrowth(kind, whole, by_kind, objects, looks[-1][0] - looks[0][0], containers)


def _containers(told: object) -> tuple[GrowingContainer, ...]:
    containers = []
    for row in told if isinstance(told, list) else ():
        if isinstance(row, list) and len(row) == 9 and isinstance(row[6], int) and isinstance(row[7], int):
            kind, scope, name, function, file = map(str, row[:5])
            line = row[5] if isinstance(row[5], int) else 0
            element = str(row[8])
            containers.append(
                GrowingContainer(kind, scope, name, function, file, line, row[6], row[7], element)
            )
    return tuple(containers)


def growing_line(container: GrowingContainer, before: float) -> tuple[int, str] | None:
    """The line that adds to it and its text, in its file as it is now; None where none or several do, or it was changed since."""
    import ast

    try:
        status = os.stat(container.file)
        if status.st_mtime > before or not stat.S_ISREG(status.st_mode):
            return None
        with open(container.file, encoding="utf-8", errors="replace") as file:
            text = file.read(_LONGEST_SOURCE)
        tree: ast.AST = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    owner, _, name = container.name.rpartition(".")
    nodes = list(ast.walk(tree))
    if container.scope == "local":
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        named = [node for node in functions if node.name == container.function]
        own = [node for node in named if container.line in _first_lines(node)] or named
        nodes = list(ast.walk(own[0])) if len(own) == 1 else []
    elif container.scope == "attribute":  # what other classes call so is theirs
        others = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name != owner]
        theirs = {id(inner) for other in others for inner in ast.walk(other)}
        nodes = [node for node in nodes if id(node) not in theirs]
    lines = {line for node in nodes if (line := _adds_to(node, name)) is not None}
    if len(lines) != 1:
        return None
    line = lines.pop()
    return line, text.split("\n")[line - 1].strip()[:_LONGEST_LINE]


def _first_lines(function: Any) -> range:
    """A function begins with its decorators, or with its name: which of them counts depends on Python's version."""
    return range(
        min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]),
        function.lineno + 1,
    )


def container_text(container: GrowingContainer, line: tuple[int, str] | None) -> str:
    """``train.py:41 `losses.append(loss)`: losses, a list of main(), got 1,180 more, the last a Tensor [] with its graph``."""
    file = os.path.basename(container.file)
    of = f" of {container.function}()" if container.scope == "local" and container.function else ""
    place = f"{file}:{line[0]} `{line[1]}`: " if line else ""
    text = f"{place}{container.name}, a {container.kind}{of}{'' if line else f' in {file}'}, got "
    text += f"{container.after - container.before:,} more"
    if container.element:
        text += f", the last a {container.element}"
    if "with its graph" in container.element:
        text += " (keep .item() or .detach() of it)"
    return one_line(text)


def _adds_to(node: object, name: str) -> int | None:
    """`name.append(…)`, `name[…] = …` or `name += …`, of a variable or of an attribute."""
    import ast

    target: object = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING:
        target = node.func.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0].value
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitOr):
        target = node.target
    called = (
        target.id
        if isinstance(target, ast.Name)
        else target.attr
        if isinstance(target, ast.Attribute)
        else None
    )
    return node.lineno if called == name and isinstance(node, ast.stmt | ast.expr) else None


def _grown(values: Sequence[object]) -> int | None:
    """From the first looks to the last; None where it was not told."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) < _LOOKS:
        return None
    return sorted(numbers[-_EDGE:])[_EDGE // 2] - sorted(numbers[:_EDGE])[_EDGE // 2]
