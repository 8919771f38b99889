"""Arguments in a launch script: ``--batch-size 64``, ``--batch-size=64``, or ``$BATCH`` with the line that sets it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from oomproof.records import dataclass
from oomproof.remedies.config_formats.scalars import Scalar, Wanted, line_of, name_of

# what may stand in a word: quoted parts, an escaped character, anything that neither ends a word nor begins a comment
_PIECE = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\(?:.|\n)|[^\s;&|()<>'\"\\]", re.S)
_VARIABLE = re.compile(
    r"\"?\$(?:\{(?P<braced>[A-Za-z_]\w*)(?P<default>:?-[^}]*)?\}|(?P<bare>[A-Za-z_]\w*))\"?"
)
_KEYWORDS = (
    "export",
    "readonly",
    "local",
    "if",
    "then",
    "elif",
    "else",
    "while",
    "until",
    "do",
    "time",
    "exec",
    "!",
    "{",
)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.S)


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    start: int
    is_first: bool  # of its command: there NAME=value sets a variable

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def shell_scalars(text: str, wanted: Wanted) -> list[Scalar]:
    """Under the name of the argument, whatever variable holds it."""
    words = list(words_of(text))
    scalars: list[Scalar] = []
    for at, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if not name.startswith("-") and not (
            equals and not word.is_first and re.match(r"[+~]{0,2}[A-Za-z_]", name)
        ):
            continue
        if not wanted(name_of((name,))):
            continue
        if equals:
            start = word.start + len(name) + 1
            scalars.append(_value(text, words, name, text[start : word.end], start))
        elif at + 1 < len(words) and not words[at + 1].is_first and not words[at + 1].text.startswith("-"):
            following = words[at + 1]
            scalars.append(_value(text, words, name, following.text, following.start))
    return scalars


def words_of(text: str) -> Iterator[Word]:
    """Those a shell would see, with their places; here-documents are not told apart."""
    at, is_first = 0, True
    while at < len(text):
        character = text[at]
        if character == "#":
            at = text.find("\n", at)
            if at < 0:
                return
        elif character in ";&|()\n<>":
            is_first = is_first or character not in "<>"
            at += 1
        elif character.isspace():
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        else:
            start = at
            while at < len(text) and (piece := _PIECE.match(text, at)) and not text.startswith("\\\n", at):
                at = piece.end()
            if at == start:  # a quote without its other half
                at += 1
                continue
            yield Word(text[start:at], start, is_first)
            is_first = is_first and _goes_on(text[start:at])


def _goes_on(word: str) -> bool:
    """Whether the command itself is still to come."""
    return word in _KEYWORDS or _ASSIGNMENT.fullmatch(word) is not None


def _value(text: str, words: list[Word], name: str, raw: str, start: int) -> Scalar:
    variable = _VARIABLE.fullmatch(raw)
    if variable is None:
        return _literal(
            text, name, raw, start, "it is made of other variables" if "$" in raw or "`" in raw else ""
        )
    called = variable["braced"] or variable["bare"]
    setters = [
        (word, match)
        for word in words
        if word.is_first and (match := _ASSIGNMENT.fullmatch(word.text)) and match["name"] == called
    ]
    looped = any(word.text == called and before.text in ("for", "read") for before, word in pairwise(words))
    if len(setters) == 1 and not variable["default"] and not looped:
        word, match = setters[0]
        inner = match["value"]
        problem = "it is made of other variables" if "$" in inner or "`" in inner else ""
        return _literal(text, name, inner, word.start + match.start("value"), problem)
    times = "set nowhere in it" if not setters and not looped else "set in more than one place"
    if variable["default"]:
        times = "one that the caller may set"
    return Scalar(
        (name,), raw, start, start + len(raw), line_of(text, start), "", f"its variable {called} is {times}"
    )


def _literal(text: str, name: str, raw: str, start: int, problem: str) -> Scalar:
    quote = raw[0] if raw[:1] in ("'", '"') and raw[-1:] == raw[:1] and len(raw) > 1 else ""
    value = raw[1:-1] if quote else raw
    if not problem and ("\\" in raw or "'" in value or '"' in value):
        problem = "it has an escape"
    return Scalar((name,), value, start, start + len(raw), line_of(text, start), quote, problem)
