"""Literals in Python source that stand under a name: ``num_workers=16`` in a call, an assignment, a dict, a parser's default."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted, name_of

_BREAK = re.compile(r"\r\n|\r|\n")  # as Python's own reader has them; str.splitlines() knows more


def python_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(str(error)) from error
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    scalars = []
    for path, node in _named(tree):
        if isinstance(node, ast.Constant) and wanted(name_of(path)):
            scalars.append(_scalar(text, starts, path, node))
    return sorted(scalars, key=lambda scalar: scalar.start)


def _named(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _of_target(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _of_target(node.target, node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield (key.value,), value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            plain, named = node.args, zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            every = [*plain.posonlyargs, *plain.args]
            for argument, default in zip(
                every[len(every) - len(plain.defaults) :], plain.defaults, strict=True
            ):
                yield (argument.arg,), default
            for argument, optional in named:
                if optional is not None:
                    yield (argument.arg,), optional


def _of_call(node: ast.Call) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        names = [
            word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
        longest = max(names, key=len, default="")
        for word in node.keywords:
            if word.arg == "default" and longest:
                yield (longest, "default"), word.value
        return
    for word in node.keywords:
        if word.arg is not None:
            yield (word.arg,), word.value


def _of_target(target: ast.expr, value: ast.expr) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    if isinstance(target, ast.Name):
        yield (target.id,), value
    elif isinstance(target, ast.Attribute):
        yield (target.attr,), value
    elif (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and isinstance(target.slice.value, str)
    ):
        yield (target.slice.value,), value


def _scalar(text: str, starts: list[int], path: tuple[str, ...], node: ast.Constant) -> Scalar:
    start = _place(text, starts, node.lineno, node.col_offset)
    end = _place(text, starts, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    raw, value = text[start:end], str(node.value)
    quote = raw[0] if raw[:1] in ("'", '"') else ""
    problem = "" if raw == f"{quote}{value}{quote}" else "it is not written as a plain value"
    return Scalar(path, value, start, end, node.lineno, quote, problem)


def _place(text: str, starts: list[int], line: int, column: int) -> int:
    """ast counts the bytes of UTF-8."""
    begin = starts[line - 1]
    return begin + len(text[begin : begin + column].encode()[:column].decode("utf-8", "ignore"))
