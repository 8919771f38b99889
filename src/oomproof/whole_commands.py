"""Commands to start a run stay whole where a text is folded: half of a command is another one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

_COMMAND = re.compile(r"(?<![\w/])(?:\w+=\S+ )*(?:oomproof (?:run|profile)|gdb) ")


def folded(text: str, width: int, first: str, hanging: str, *, break_long_words: bool = False) -> list[str]:
    """Lines of at most that width, ``first`` before the first of them and ``hanging`` before the others. A command has a
    line of its own, however long: what is copied by a click on it is the command alone."""
    if len(first) + len(text) <= width:
        return [first + text]
    lines: list[str] = []
    for is_command, part in _parts(text):
        indent = hanging if lines else first
        if is_command:
            lines.append(indent + part)
            continue
        lines += textwrap.wrap(
            part.lstrip(",; ") if lines else part,
            width,
            initial_indent=indent,
            subsequent_indent=hanging,
            break_long_words=break_long_words,
            break_on_hyphens=False,
        )
    return lines or [first]


def commands_in(text: str) -> list[tuple[str, str]]:
    """(what is said before it, the command), each that starts a run."""
    found, before = [], ""
    for is_command, part in _parts(text):
        if is_command:
            found.append((before.lstrip(",; ").rstrip(": "), part))
        before = "" if is_command else part
    return found


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it is a command, its text), without the spaces between them."""
    at = 0
    for match in _COMMAND.finditer(text):
        if match.start() < at:
            continue
        end = _end_of_command(text, match.end())
        if " -- " in text[match.start() : end] or " --args " in text[match.start() : end]:
            if before := text[at : match.start()].rstrip():
                yield False, before.lstrip() if at else before
            yield True, text[match.start() : end]
            at = end
    if after := text[at:].rstrip():
        yield False, after.lstrip() if at else after


def _end_of_command(text: str, at: int) -> int:
    """Where our own sentence continues: what `shlex.join` wrote has none of these outside of quotes."""
    quote = ""
    while at < len(text):
        if quote and text[at] == "\\":
            at += 1
        elif text[at] == quote:
            quote = ""
        elif not quote and text[at] in "'\"":
            quote = text[at]
        elif not quote and text.startswith(("; ", ", ", " ("), at):
            return at
        at += 1
    return len(text)
