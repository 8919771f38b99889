"""The line of the user's code that fills a variable, in its file as it is now."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable

from oomproof.evidence.heap_growth import adds_to, function_nodes, parsed
from oomproof.recording.census_record import Thing
from oomproof.recording.traced_lines import user_source

_MAKERS = {"list", "dict", "set", "deque", "OrderedDict"}


def variable_line(thing: Thing, before: float) -> int | None:
    """None where it is not known: several lines do, the file was changed since, or the name is none of a variable."""
    name = thing.name.split("[")[0]
    owner, _, attribute = name.rpartition(".")
    tree = parsed(user_source(thing.file, before))
    if tree is None:
        return None
    if thing.scope == "local":
        nodes = function_nodes(tree, thing.function, thing.line)
    elif thing.scope == "attribute":
        nodes = list(ast.walk(tree))
    else:
        nodes = _outside_functions(tree)
    adding = _where_global(tree, attribute) if thing.scope == "global" and not owner else nodes
    adds = {line for node in adding if (line := adds_to(node, attribute)) is not None}
    assigned = [given for node in nodes for given in _assigned(node, attribute, bool(owner))]
    filled = {line for line, is_empty in assigned if not is_empty}
    lines = adds | filled or {line for line, _ in assigned}
    return lines.pop() if len(lines) == 1 else None


def _where_global(tree: ast.AST, name: str) -> list[ast.AST]:
    """All but the functions in which another variable has that name."""
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and _has_its_own(node, name):
            continue
        nodes.append(node)
        waiting += ast.iter_child_nodes(node)
    return nodes


def _has_its_own(function: ast.AST, name: str) -> bool:
    inner = list(ast.walk(function))
    if any(isinstance(node, ast.Global) and name in node.names for node in inner):
        return False
    return any(
        (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in inner
    )


def _outside_functions(tree: ast.AST) -> list[ast.AST]:
    nodes, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        waiting += ast.iter_child_nodes(node)
    return nodes


def _assigned(node: ast.AST, name: str, is_attribute: bool) -> list[tuple[int, bool]]:
    """(line, whether it begins empty there) of ``name = …``, also among several, typed, `with … as name`, `for name in`."""
    pairs: list[tuple[ast.expr, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.For):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        pairs = [(node.optional_vars, node.context_expr)]
    lines = []
    while pairs:
        target, value = pairs.pop()
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            pairs += zip(target.elts, values, strict=True)
        elif _is_named(target, name, is_attribute):
            lines.append((target.lineno, _is_empty(value)))
    return lines


def _is_named(target: ast.expr, name: str, is_attribute: bool) -> bool:
    if is_attribute:
        return isinstance(target, ast.Attribute) and target.attr == name
    return isinstance(target, ast.Name) and target.id == name


def _is_empty(value: ast.expr | None) -> bool:
    """``None``, ``[]``, ``{}``, ``dict()``: what the variable holds comes from another line."""
    if isinstance(value, ast.Constant):
        return value.value is None
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return (
        isinstance(value, ast.Call)
        and not value.args
        and isinstance(value.func, ast.Name)
        and value.func.id in _MAKERS
    )


def where(thing: Thing, before: float) -> str:
    """``prep.py:12 in main()``; without the line where it is not known."""
    return where_all([thing], before)


def _file(path: str) -> str:
    """What Python calls the code of ``-c`` tells nobody anything."""
    name = os.path.basename(path)
    return "python -c" if name == "<string>" else name


def where_all(things: Iterable[Thing], before: float) -> str:
    """``prep.py:12 and :14 in main()``."""
    lines: dict[tuple[str, str], set[int]] = {}
    for thing in things:
        function = f" in {thing.function}()" if thing.scope == "local" and thing.function else ""
        known = lines.setdefault((_file(thing.file), function), set())
        if (line := variable_line(thing, before)) is not None:
            known.add(line)
    return ", ".join(
        file + " and ".join(f":{line}" for line in sorted(known)) + function
        for (file, function), known in lines.items()
    )
