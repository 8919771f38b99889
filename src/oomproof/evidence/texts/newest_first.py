"""Texts whose first line is the latest (`journalctl -r`, `dmesg | tac`): found out, and read from their end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.line_prefixes import goes_back, strip
from oomproof.records import replace

_BEGINNING = 1 << 20  # bytes in which a text's direction is looked for
_HELD = 8 << 20  # bytes that can be turned round; a longer text is taken as it comes
_OBJECT = 160  # what a held line takes beside its characters
_LOOKS = 1000  # lines whose stamps are compared


class Ordered:
    """The lines of one text, oldest first, under ascending numbers; ``true`` gives a finding its own line again."""

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        rest = iter(lines)
        held = _held(rest, _BEGINNING)
        self.reversed = falls([line for _, line in held])
        if self.reversed:
            held += _held(rest, _HELD)
            beyond = list(islice(rest, 1))
            rest, self.reversed = chain(beyond, rest), not beyond
        self._last = held[-1][0] if held else 0
        self._lines: Iterator[tuple[int, str]] = chain(held, rest)
        if self.reversed:
            self._lines = ((self._last + 1 - number, line) for number, line in reversed(held))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self._lines

    def true(self, finding: Finding) -> Finding:
        if not self.reversed:
            return finding
        return replace(finding, line=self._last + 1 - finding.line, newest_first=True)


def _held(lines: Iterator[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    held: list[tuple[int, str]] = []
    while most > 0 and (part := next(lines, None)) is not None:
        held.append(part)
        most -= len(part[1]) + _OBJECT
    return held


def falls(lines: Sequence[str]) -> bool:
    """Whether the stamps of a system's log go back in time from line to line."""
    step = len(lines) // _LOOKS + 1
    down = up = 0
    before: float | None = None
    kinds = set()
    for line in lines[::step]:
        stamp = strip(line[:400]) if line[:1] != "{" else strip(line)
        # the clock of a job's own lines may jump; kernels and journals sign theirs
        if stamp.order is None or not (stamp.tag or _boot(line)):
            continue
        kinds.add(stamp.wall)
        if before is not None and stamp.order != before:
            if goes_back(before, stamp):
                down += 1
            else:
                up += 1
        before = stamp.order
    return down > 4 * up and len(kinds) == 1


def _boot(line: str) -> bool:
    return line.startswith(("[", "<"))
