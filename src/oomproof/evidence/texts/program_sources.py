"""Texts that are a program, a change of one, or what a search found in one: the deaths in them are quoted, not reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from oomproof.evidence.texts.quoted_source import only_mentions

Numbered = tuple[int, str]

_LOOK_SIZE = 512 << 10  # characters: longer sources are few, and logs begin otherwise
_BEGINS = re.compile(
    r"#!.{0,80}python|#(?! \S+/)|[furb]{0,2}(?:\"\"\"|''')|(?:import|from|def|class|async def|with|if|try:) ?\S?|@\w|[A-Za-z_]\w*(?:: ?[\w\[\], .|]{1,60})? = \S"
)
_FOUND = re.compile(
    r"(?P<file>[\w./@+-]{1,200}\.(?:py|pyx|pyi|c|cc|cpp|cu|cuh|h|hpp|go|rs|java|js|jsx|ts|tsx|rb|scala|kt|jl|lua|md|rst|ya?ml|toml|sh|html|patch|diff|po))"
    r"(?P<mark>[:-])(?P<line>\d{1,7})(?P=mark)(?P<rest>.*)"
)
_NEARLY_ALL = 0.9
_FEWEST = 2  # hits of a search
_HUNK = re.compile(r"@@ -\d+(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@")
_ANY_HUNK = "@@ -"


class Reported:
    """The lines of one text, with those of a program, of a search in one and of a change's hunks left blank."""

    def __init__(self, lines: Iterable[Numbered]) -> None:
        rest = iter(lines)
        held: list[Numbered] = []
        size = 0
        for part in rest:
            held.append(part)
            size += len(part[1]) + 1
            if size > _LOOK_SIZE or not (_may_be_source(held) or _FOUND.match(part[1])):
                break
        whole = size <= _LOOK_SIZE
        every: Iterator[Numbered] = chain(held, rest)
        self.quotes = whole and _is_source([line for _, line in held])
        self._lines = ((number, "") for number, _ in held) if self.quotes else _without_hunks(every)

    def __iter__(self) -> Iterator[Numbered]:
        return self._lines


def _may_be_source(held: Sequence[Numbered]) -> bool:
    first = next((line for _, line in held if line.strip()), "")
    return not first or _BEGINS.match(first) is not None


def _is_source(lines: Sequence[str]) -> bool:
    return _found_by_search(lines) or _parses("\n".join(lines))


def _parses(text: str) -> bool:
    """No log is Python that imports or defines something."""
    import ast  # few texts need them
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    says = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return any(isinstance(node, says) for node in body)


def _found_by_search(lines: Sequence[str]) -> bool:
    """`grep -n` in sources: the lines of each file ascend. A logger that names its own line comes back to it."""
    written = [line for line in lines if line.strip() and line != "--"]
    hits = [hit for line in written if (hit := _FOUND.match(line))]
    if len(hits) < max(_FEWEST, _NEARLY_ALL * len(written)):
        return False
    last: dict[str, int] = {}
    for hit in hits:
        if int(hit["line"]) <= last.get(hit["file"], -1):
            return False
        last[hit["file"]] = int(hit["line"])
    code = sum(hit["rest"][:1] in (" ", "\t", "") or only_mentions(hit["rest"]) for hit in hits)
    return 2 * code >= len(hits)


def _without_hunks(lines: Iterable[Numbered]) -> Iterator[Numbered]:
    old = new = 0  # lines of the hunk that are still to come
    for number, line in lines:
        if (old > 0 or new > 0) and line[:1] in ("", " ", "+", "-", "\\"):
            old -= line[:1] in ("", " ", "-")
            new -= line[:1] in ("", " ", "+")
            yield number, ""
            continue
        old = new = 0
        if line.startswith(_ANY_HUNK) and (hunk := _HUNK.match(line)):
            old, new = int(hunk["old"] or 1), int(hunk["new"] or 1)
        yield number, line
