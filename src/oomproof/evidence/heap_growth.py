"""What kind of memory it is that grows, from the allocators' own counters in the training process.

Python's objects, what libraries hold (arrays and tensors, native code), what the C library keeps though it was freed, Arrow's
pool; the rest was mapped by a library itself."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from oomproof.evidence.case_file import GrowthPlace
from oomproof.leaf.heap_kinds import ARROW, COUNTERS, MAPPED, NATIVE, PYTHON, RETAINED, most_of, split
from oomproof.printable import one_line
from oomproof.recording.phase_spans import spans_of
from oomproof.recording.series import PhaseMark, Series
from oomproof.recording.traced_lines import Trace, trace_of, trace_text, user_source
from oomproof.records import dataclass
from oomproof.trend import growth
from oomproof.trend.leaks import GROWS, Trend

_VISITS, _VISIT_SLICES = 200, 8  # visits of phases that are looked at, the last ones, and slices of each
_ONE_PHASE = 0.8  # of all growth: then it is that phase's


def warm_since(marks: Iterable[PhaseMark]) -> float:
    """When loading and the first steps were over, or will be. A job that tells no phase has none to wait for; one that only
    evaluates, or never uses its model, tells one and is silent."""
    warm_up = growth.WarmUp()
    for mark in marks:
        if warm_up.phase and warm_up.is_over(mark.t):
            break
        warm_up.note(mark.name, mark.step, mark.t)
        if warm_up.is_over(mark.t):
            return mark.t
    return warm_up.over_at()


def steps_between(marks: Iterable[PhaseMark], begin: float, end: float) -> int:
    told = [mark.step for mark in marks if begin <= mark.t <= end and mark.step is not None]
    return max(told) - min(told) if told else 0


def growth_per_step(
    trend: Trend, marks: Iterable[PhaseMark], end: float
) -> tuple[float | None, float | None]:
    """(bytes, seconds) of one step since it grows; None, None where it does not, or too few steps were made."""
    if trend.kind not in GROWS or trend.since is None or trend.rate is None:
        return None, None
    made = steps_between(marks, trend.since, end)
    if made <= 1:
        return None, None
    seconds = (end - trend.since) / made
    return trend.rate.expected * seconds, seconds


def growing_phase(series: Series, marks: Sequence[PhaseMark], begin: float, end: float) -> str:
    """The phase in which nearly all of it grew; empty where it grew in several, or none was told."""
    grown: dict[str, float] = {}
    for name, rise in _told_rises(marks, begin, end) or _sampled_rises(series, begin, end):
        grown[name] = grown.get(name, 0.0) + rise
    total = sum(max(0.0, rise) for rise in grown.values())
    most = max(grown, key=lambda name: grown[name], default="")
    return most if most != "unknown" and total > 0 and grown[most] >= total * _ONE_PHASE else ""


def _told_rises(marks: Sequence[PhaseMark], begin: float, end: float) -> list[tuple[str, float]]:
    """By what the job itself held where each phase began: an evaluation may be shorter than a sample is apart."""
    told = [mark for mark in marks if begin <= mark.t <= end and mark.anon is not None]
    return [(mark.name, (after.anon or 0) - (mark.anon or 0)) for mark, after in pairwise(told)]


def _sampled_rises(series: Series, begin: float, end: float) -> list[tuple[str, float]]:
    """Along the line through each phase's lowest points: what a phase takes and gives back is no growth of it. What changes
    from training to another phase and back is the other's."""
    spans = [(span.name, max(span.begin, begin), min(span.end, end)) for span in spans_of(series)]
    lines = [(name, *_ends(series, first, last)) for name, first, last in spans[-_VISITS:] if last > first]
    rises = [(name, left - entered) for name, entered, left in lines]
    for (name, _, left), (next_name, entered, _) in pairwise(lines):
        rises.append((next_name if name == "train" else name, entered - left))
    return rises


def _ends(series: Series, begin: float, end: float) -> tuple[float, float]:
    """What was held where a phase began and where it ended, by the line through the lowest points of its slices."""
    width = (end - begin) / _VISIT_SLICES
    points: list[tuple[float, float]] = []
    for number in range(_VISIT_SLICES):
        at = begin + number * width
        if (found := series.use.between(at, at + width * 0.999)) is not None:
            points.append((at + width / 2, found[0]))
    if not points:
        return series.use.at(begin), series.use.at(end)
    rate = growth.slope(points)
    levels = sorted(value - rate * (t - begin) for t, value in points)
    entered = levels[len(levels) // 2]
    return entered, entered + rate * (end - begin)


def newest_trace(series: Series, begin: float) -> Trace | None:
    """Of the last window that blames a line; a deeper one comes after a shallow one."""
    traces = (trace_of(told) for t, told in series.told_numbers("agent:trace") if t >= begin)
    blaming = [trace for trace in traces if trace is not None and trace.blamed]
    return blaming[-1] if blaming else None


def not_a_leak(series: Series) -> str:
    """What malloc_trim proved, in words; empty where it was not needed, or gave nothing back."""
    told = series.events("agent:trim", last=1)
    return told[0].text if told else ""


def grown_mappings(series: Series) -> str:
    """What became more, as it was told last; empty where nothing did."""
    told = series.events("mappings", last=1)
    return told[0].text if told else ""


def traced_growth(trace: Trace | None, proof: str, started: float) -> dict[str, Any]:
    """The fields of a Growth that come from witnesses. ``started``: when the run began, in seconds since 1970."""
    if trace is None:
        return {"not_a_leak": proof}
    text = trace_text(trace, started)
    return {"made_at": f"{text} ({trace.witness})", "where": places(trace), "not_a_leak": proof}


def places(trace: Trace) -> tuple[GrowthPlace, ...]:
    return tuple(
        GrowthPlace(line.file, line.line, line.function, line.native, line.bytes, trace.witness)
        for line in trace.lines
    )


__all__ = ["ARROW", "MAPPED", "NATIVE", "PYTHON", "RETAINED", "GrowingContainer", "HeapGrowth", "heap_growth"]

_LOOKS = 6  # before anything is said
_EDGE = 3  # looks at each end, of which the median counts


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
    grown = {name: _grown([told.get(name) for _, told in looks]) for name in COUNTERS}
    by_kind = split(grown)
    if by_kind is None:
        return None
    whole, objects = grown["anon"] or 0, grown["blocks"] or 0
    kind = most_of(by_kind, whole)
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


def _grown(values: Sequence[object]) -> int | None:
    """From the first looks to the last; None where it was not told."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) < _LOOKS:
        return None
    return sorted(numbers[-_EDGE:])[_EDGE // 2] - sorted(numbers[:_EDGE])[_EDGE // 2]


_ADDING = {"append", "extend", "add", "insert", "update", "appendleft", "setdefault"}
_LONGEST_LINE = 100  # characters


def growing_line(container: GrowingContainer, before: float) -> tuple[int, str] | None:
    """The line that adds to it and its text, in its file as it is now; None where none or several do, or it was changed since."""
    text = user_source(container.file, before)
    tree = parsed(text)
    if text is None or tree is None:
        return None
    owner, _, name = container.name.rpartition(".")
    nodes = list(ast.walk(tree))
    if container.scope == "local":
        nodes = function_nodes(tree, container.function, container.line)
    elif container.scope == "attribute":  # what other classes call so is theirs
        others = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name != owner]
        theirs = {id(inner) for other in others for inner in ast.walk(other)}
        nodes = [node for node in nodes if id(node) not in theirs]
    lines = {line for node in nodes if (line := adds_to(node, name)) is not None}
    if len(lines) != 1:
        return None
    line = lines.pop()
    return line, text.split("\n")[line - 1].strip()[:_LONGEST_LINE]


def parsed(text: str | None) -> ast.AST | None:
    """None where it is no Python, or too deep."""
    try:
        return ast.parse(text) if text is not None else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def function_nodes(tree: ast.AST, name: str, line: int) -> list[ast.AST]:
    """Of the function of that name that begins there; empty where several could be meant."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [node for node in functions if node.name == name]
    own = [node for node in named if line in _first_lines(node)] or named
    return list(ast.walk(own[0])) if len(own) == 1 else []


def _first_lines(function: Any) -> range:
    """A function begins with its decorators, or with its name: which of them counts depends on Python's version."""
    return range(
        min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]),
        function.lineno + 1,
    )


def adds_to(node: object, name: str) -> int | None:
    """`name.append(…)`, `name[…] = …` or `name += …`, of a variable or of an attribute."""
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


def container_text(container: GrowingContainer, line: tuple[int, str] | None) -> str:
    """``train.py:41 `losses.append(loss)`: losses, a list of main(), got 1,180 more, the last a Tensor [] with its graph``."""
    file = os.path.basename(container.file)
    of = f" of {container.function}()" if container.scope == "local" and container.function else ""
    place = f"{file}:{line[0]} `{line[1]}`: " if line else ""
    text = f"{place}{container.name}, a {container.kind}{of}{'' if line else f' in {file}'}, got "
    text += f"{container.after - container.before:,} more"
    if container.element:
        text += f", the last a {container.element}"
    if container.element == "Tensor [] with its graph":
        text += " (keep .item() or .detach() of it)"
    elif "with its graph" in container.element:
        text += " (keep .detach() of it, or a part)"
    return one_line(text)
