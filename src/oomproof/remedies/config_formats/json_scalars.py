"""Values in JSON, with their places: the standard library's reader tells none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from oomproof.remedies.config_formats.scalars import Scalar, Unreadable, Wanted, line_of, name_of

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
