"""Values of settings files with their places, by the reader for each kind of file; a changed value is read back before it counts."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted, line_of, name_of
from oomproof.remedies.config_formats.shell_scalars import shell_scalars
from oomproof.remedies.config_formats.yaml_scalars import yaml_scalars

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


_MARK = 918273645546372819  # no setting has that value


def toml_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    try:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError
    except ImportError:
        raise OomproofError(
            "TOML files need tomlkit, which is not installed", "pip install 'oomproof[fix]'", USAGE
        ) from None
    try:
        paths = [path for path in _paths(tomlkit.parse(text).unwrap(), ()) if wanted(name_of(path))]
        return [_placed(tomlkit, text, path) for path in paths]
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def _paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _paths(child, (*path, str(key)))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _paths(child, (*path, str(number)))
    elif isinstance(value, str | int | float):
        yield path


def _placed(tomlkit: Any, text: str, path: tuple[str, ...]) -> Scalar:
    document = tomlkit.parse(text)
    holder: Any = document
    for key in path[:-1]:
        holder = holder[int(key)] if isinstance(holder, list) else holder[key]
    last: Any = int(path[-1]) if isinstance(holder, list) else path[-1]
    plain = holder[last]
    value = str(plain.unwrap() if hasattr(plain, "unwrap") else plain)
    holder[last] = _MARK
    marked = tomlkit.dumps(document)
    start = marked.find(str(_MARK))
    end = len(text) - (len(marked) - start - len(str(_MARK)))
    raw = text[start:end]
    quote = raw[0] if raw[:1] in ("'", '"') and raw[:1] * 3 != raw[:3] else ""
    value = value.lower() if raw.lower() in ("true", "false") else value
    exact = text.startswith(marked[:start]) and raw == f"{quote}{value}{quote}"
    problem = "" if exact else "its place cannot be told exactly"
    return Scalar(path, value, start, end, line_of(text, start), quote, problem)


_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_OTHER = re.compile(r"[^\s,\]}]+")
_DEEPEST = 200


def json_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    return [scalar for scalar in _Reader(text).value(0, ()) if scalar.path and wanted(name_of(scalar.path))]


class _Reader:
    """Of a text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int, path: tuple[str, ...]) -> Iterator[Scalar]:
        if depth > _DEEPEST:
            raise Unreadable("it is nested too deeply")
        self._skip()
        if self._text[self._at] == "{":
            yield from self._members(depth, path, "}")
        elif self._text[self._at] == "[":
            yield from self._members(depth, path, "]")
        else:
            yield self._scalar(path)

    def _members(self, depth: int, path: tuple[str, ...], close: str) -> Iterator[Scalar]:
        number = 0
        self._at += 1
        self._skip()
        while self._text[self._at] != close:
            key = str(number)
            if close == "}":
                key = json.loads(self._take(_STRING))
                self._skip()
                self._at += 1  # the colon
            yield from self.value(depth + 1, (*path, key))
            number += 1
            self._skip()
            if self._text[self._at] == ",":
                self._at += 1
                self._skip()
        self._at += 1

    def _scalar(self, path: tuple[str, ...]) -> Scalar:
        start = self._at
        raw = self._take(_STRING if self._text[start] == '"' else _OTHER)
        quote = '"' if raw.startswith('"') else ""
        value = json.loads(raw) if quote else raw
        problem = "" if raw == f"{quote}{value}{quote}" else "it has an escape"
        return Scalar(path, value, start, self._at, line_of(self._text, start), quote, problem)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        assert match is not None, "json.loads has read it"
        self._at = match.end()
        return match[0]

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()


_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*=[ \t]*(?P<raw>\"[^\"\n]*\"|'[^'\n]*'|[^\s#'\"]*)[ \t]*(?:#.*)?\r?$",
    re.M,
)


def env_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    scalars = []
    for match in _LINE.finditer(text):
        if wanted(name_of((match["name"],))):
            raw = match["raw"]
            quote = raw[0] if raw[:1] in ("'", '"') else ""
            value = raw[1:-1] if quote else raw
            problem = "it is made of other variables" if "$" in value else ""
            start, end = match.span("raw")
            line = text.count("\n", 0, start) + 1
            scalars.append(Scalar((match["name"],), value, start, end, line, quote, problem))
    return scalars


_READERS = {
    ".yaml": yaml_scalars, ".yml": yaml_scalars, ".toml": toml_scalars, ".json": json_scalars, ".env": env_scalars,
    ".sh": shell_scalars, ".bash": shell_scalars, ".slurm": shell_scalars, ".py": python_scalars,
}  # fmt: skip
CONFIGS = (".yaml", ".yml", ".toml", ".json", ".env")
SCRIPTS = (".sh", ".bash", ".slurm")


def kind_of_file(path: str) -> str | None:
    """Its ending, by which it is read; None for what is no file of settings."""
    name = os.path.basename(path)
    if name == ".env" or name.startswith(".env."):
        return ".env"
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in _READERS else None


def scalars_of(path: str, text: str, wanted: Wanted) -> list[Scalar]:
    """Raises Unreadable, and OomproofError where a package is missing."""
    kind = kind_of_file(path)
    return _READERS[kind](text, wanted) if kind is not None else []


def with_value(path: str, text: str, scalar: Scalar, new: str) -> str:
    """The text with that one value changed. Raises Unreadable where it would not be read back so."""
    try:
        changed = scalar.replaced(text, new)
        before = [(known.path, known.value) for known in scalars_of(path, text, lambda _: True)]
        after = [(known.path, known.value) for known in scalars_of(path, changed, lambda _: True)]
    except ValueError as error:
        raise Unreadable(str(error)) from error
    expected = [
        (of_path, new if (of_path, value) == (scalar.path, scalar.value) else value)
        for of_path, value in before
    ]
    differing = [at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
    if len(before) != len(after) or len(differing) != 1 or after[differing[0]] != expected[differing[0]]:
        raise Unreadable("it would not be read back as it was meant")
    return changed
