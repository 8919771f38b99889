"""Commands to start a run stay whole where a text is folded: half of a command is another one."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMAND = re.compile(r"(?<![\w/])(?:\w+=\S+ )*(?:oomproof (?:run|profile)|gdb) ")
_GLUE = "\ue000"  # nobody's


def restored(lines: Iterable[str]) -> list[str]:
    """The lines of a folded text; what is copied by a click on the line of a command is the command alone."""
    return [(line.rstrip(",;") if _GLUE in line else line).replace(_GLUE, " ") for line in lines]


def has_command(glued_text: str) -> bool:
    return _GLUE in glued_text


def glued(text: str) -> str:
    """With another character for the spaces of such commands."""
    parts, at = [], 0
    for match in _COMMAND.finditer(text):
        if match.start() < at:
            continue
        end = _end_of_command(text, match.end())
        if " -- " in text[match.start() : end] or " --args " in text[match.start() : end]:
            parts += [text[at : match.start()], text[match.start() : end].replace(" ", _GLUE)]
            at = end
    return "".join(parts) + text[at:]


def _end_of_command(text: str, at: int) -> int:
    """Where our own sentence goes on: what `shlex.join` wrote has none of these outside of quotes."""
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
