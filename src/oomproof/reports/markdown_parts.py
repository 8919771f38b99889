"""Markdown's own words: text that shows as it was whatever a job printed, code, fences, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def text(words: str) -> str:
    """One line that shows as it was, whatever a job printed."""
    line = " ".join(words.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", line)


def code(words: str) -> str:
    line = " ".join(words.split()) or " "
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def fence(words: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", words)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{words}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], ready: bool = False) -> str:
    """A table; ``ready`` cells are Markdown already, but for the bar that would split them."""
    lines = [
        "| " + " | ".join((re.sub(r"(?<!\\)\|", r"\\|", cell) if ready else text(cell)) or " " for cell in row) + " |"
        for row in rows
    ]  # fmt: skip
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines])
