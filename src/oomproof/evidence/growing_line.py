"""The line of the user's code that adds to a container that grows, and that in words."""

from __future__ import annotations

import ast
import os
from typing import Any

from oomproof.evidence.heap_growth import GrowingContainer
from oomproof.printable import one_line
from oomproof.recording.traced_lines import user_source

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
