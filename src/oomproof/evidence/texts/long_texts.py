"""Long texts: the lines of them that may tell of a death, and those around them.

The lines of a long log differ in their numbers more than in their words. Without digits, blanks and the blocks of progress
bars 100 MB of training logs have some hundred different lines, and each of those is searched for the anchors once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.line_reader import LONGEST, Lines, numbered, pieces_of, transcoded
from oomproof.evidence.texts.text_stream import Stream
from oomproof.records import dataclass

Numbered = tuple[int, bytes]

LARGE = 8 << 20  # bytes of a kernel log of which every line is read: some two seconds of work
HEAD = 1 << 20  # bytes of another text of which every line is read: its beginning shows how it is written
TAIL = 1 << 19  # … and its end
_CHUNK = 1 << 18
_LOOK = 1 << 18
_KERNEL_LINE = re.compile(rb"^(?:<\d+>)?\[ *\d+\.\d+\]|^\d+,\d+,\d+,|\bkernel: ")
_SPAN_LINES = 6000  # behind the start of a kernel's report, up to its end
_SHAPES = 100_000  # different lines that are remembered
_USUAL = 256  # bytes of a line
_HITS = 40  # lines of one shape in a place, as the frames of a deep stack

_LINE_ENDS = bytes.maketrans(b"\r", b"\n")
_NUMBERS = b"0123456789.+-# =>" + bytes(range(0x80, 0xC0)) + b"\xe2"  # and the blocks of bars, in UTF-8
_HEXADECIMAL = _NUMBERS + b"abcdef:"


@dataclass(frozen=True, slots=True)
class Marks:
    """What marks a line, and what begins and ends a report of many lines."""

    anchors: tuple[bytes, ...]
    starts: tuple[bytes, ...]
    end: bytes

    @classmethod
    def of(cls, anchors: Iterable[str], starts: Iterable[str], end: str) -> Marks:
        encoded = sorted({anchor.encode() for anchor in anchors})
        return cls(shortest(encoded), tuple(start.encode() for start in starts), end.encode())


@dataclass(frozen=True, slots=True)
class Manner:
    """How a kind of text is skimmed. ``deleted``: bytes in which lines of one shape may differ; ``before``, ``after``: lines
    given around a marked one; ``last``: lines at the end of what is passed over, which show how far the program got;
    ``places``: how many places the lines of one shape may mark."""

    deleted: bytes
    before: int = 0
    after: int = 4  # what a mail program broke into several
    last: int = 0
    places: int = 1 << 60


KERNEL = Manner(_HEXADECIMAL)
PROGRAM = Manner(_NUMBERS, before=200, after=64, last=16, places=12)


class Skimmer:
    """``skim`` gives the lines of each chunk that matter, under their numbers."""

    def __init__(self, marks: Marks, manner: Manner, number: int = 1) -> None:
        self._marks, self._manner = marks, manner
        self._shapes: dict[
            bytes, tuple[bytes, ...]
        ] = {}  # of each that may mark a place, what its lines are searched for
        self._told: dict[bytes, tuple[int, int]] = {}  # the places that it has marked, and the lines
        self._anchors: dict[
            bytes, list[bytes]
        ] = {}  # as they stand in a shape, each with those as they stand in a line
        self.number = number  # of the chunk's first line
        self._until = 0  # lines of the next chunk that belong to a mark in this one
        self._in_report = False
        self._passed: list[Numbered] = []  # the last lines that were passed over
        self.look_for(marks.anchors)

    def look_for(self, anchors: Iterable[bytes]) -> None:
        """From now on for these, too."""
        for anchor in anchors:
            known = self._anchors.setdefault(self._shape(anchor), [])
            if anchor not in known:
                known.append(anchor)
        self._anchors.pop(b"", None)
        self._shapes.clear()

    def skim(self, chunk: bytes) -> Iterator[Numbered]:
        shaped = self._shape(chunk.removesuffix(b"\n")).split(b"\n")
        marked = self._marked(set(shaped), chunk)
        if marked or self._until > 0:
            yield from self._around(_lines(chunk.removesuffix(b"\n"), self.number), shaped, marked)
        elif self._manner.last:
            yield from self.finish()
            self._passed = _last_lines(chunk, self.number, self._manner.before)
        self.number += chunk.count(b"\n")

    def finish(self) -> list[Numbered]:
        return self._passed[-self._manner.last :] if self._manner.last else []

    def _shape(self, text: bytes) -> bytes:
        return text.translate(_LINE_ENDS, self._manner.deleted)

    def _marked(self, shapes: set[bytes], chunk: bytes) -> set[bytes]:
        known = self._shapes
        if len(known) > _SHAPES:
            known.clear()
        new = [shape for shape in shapes if shape not in known]
        text = b"\n".join(new)
        present = [anchor for anchor in self._anchors if anchor in text]
        for shape in new:
            held = [anchor for anchor in present if anchor in shape] if present else ()
            known[shape] = tuple(exact for anchor in held for exact in self._anchors[anchor])
        wanted = {anchor for shape in shapes for anchor in known[shape]}
        there = {anchor for anchor in wanted if anchor in chunk}  # a shape has lost the number in "type=1701"
        return {shape for shape in shapes if not there.isdisjoint(known[shape])} if there else set()

    def _around(
        self, lines: list[Numbered], shaped: Sequence[bytes], marked: set[bytes]
    ) -> Iterator[Numbered]:
        begin, until = 0, self._until - 1  # of the place that is being read
        for index in [index for index, shape in enumerate(shaped) if shape in marked]:
            line, shape = lines[index][1], shaped[index]
            if not any(anchor in line for anchor in self._shapes[shape]):
                continue
            places, hits = self._told.get(shape, (0, 0))
            self._told[shape] = places + (index > until), hits + 1
            if places >= self._manner.places or hits >= _HITS * self._manner.places:
                self._shapes[shape] = ()  # it comes again and again
                continue
            if index > until:
                yield from lines[begin : until + 1]
                yield from self._passed[-max(self._manner.before - index, self._manner.last) :]
                self._passed, self._in_report = [], False
                begin = max(until + 1, index - self._manner.before)
            until = self._reach(line, index, until)
        yield from lines[begin : until + 1]
        self._until = max(0, until + 1 - len(lines))
        if self._manner.last:
            yield from self.finish()
            self._passed = lines[until + 1 :][-self._manner.before :]

    def _reach(self, line: bytes, index: int, until: int) -> int:
        """The last line that belongs to this one."""
        if self._marks.end in line:
            self._in_report = False
            return index + self._manner.after
        if any(start in line for start in self._marks.starts):
            self._in_report = True
            return index + _SPAN_LINES
        return until if self._in_report else max(until, index + self._manner.after)


def _lines(chunk: bytes, number: int) -> list[Numbered]:
    """What carriage returns part has one number."""
    lines = chunk.split(b"\n")
    if b"\r" not in chunk:
        return list(enumerate(lines, number))
    return [(at, piece) for at, line in enumerate(lines, number) for piece in line.split(b"\r")]


def _last_lines(chunk: bytes, number: int, most: int) -> list[Numbered]:
    chunk = chunk.removesuffix(b"\n")
    begin = max(0, len(chunk) - most * _USUAL)
    lines = _lines(chunk[begin:], number + chunk.count(b"\n", 0, begin))
    return lines[begin > 0 :][-most:]


def _chunks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, as much as fits a processor's cache; an endless line is parted where a bar was redrawn."""
    rest = b""
    for block in blocks:
        data, at = rest + block, 0
        while len(data) - at >= _CHUNK:
            cut = data.rfind(b"\n", at, at + _CHUNK) + 1 or data.rfind(b"\r", at, at + _CHUNK) + 1
            cut = cut or at + _CHUNK
            yield data[at:cut]
            at = cut
        rest = data[at:]
    if rest:
        yield rest


class Skimmed(Lines):
    """The lines of one text; of a long one those that may matter. ``kernel_only``: a file of the kernel's that is too large to
    be looked through for anything else."""

    def __init__(self, path: str, marks: Marks, kernel: Marks | None = None) -> None:
        stream = Stream(path)
        self._skimmer: Skimmer | None = None
        self._more: list[bytes] = []
        large = (stream.size or 0) >= LARGE
        self.kernel_only = kernel is None or (large and _is_kernel_log(stream.first))
        self._marks, self._kernel = marks, kernel or marks
        super().__init__(stream, self._read(transcoded(stream.blocks_of_lines())))

    def look_for(self, anchors: Iterable[str]) -> None:
        """For these, too, once the beginning is read."""
        self._more = [anchor.encode() for anchor in anchors]

    def _read(self, blocks: Iterator[bytes]) -> Iterator[Numbered]:
        if self.kernel_only:
            return _skimmed(_chunks(blocks), Skimmer(self._kernel, KERNEL))
        return self._from_beginning(blocks)

    def _from_beginning(self, blocks: Iterator[bytes]) -> Iterator[Numbered]:
        chunks = _chunks(blocks)
        head: list[bytes] = []
        size, most = 0, HEAD
        for chunk in chunks:
            most = most if head else LARGE if _is_kernel_log(chunk) else HEAD
            head.append(chunk)
            size += len(chunk)
            if size >= most:
                break
        last = 0
        for last, line in numbered(iter(head)):  # used behind the loop
            yield last, line
        whole = not head or head[-1].endswith(b"\n")
        skimmer = Skimmer(self._marks, PROGRAM, last + whole)
        if most == LARGE:
            skimmer = Skimmer(self._kernel, KERNEL, last + whole)
        skimmer.look_for(self._more)
        yield from _skimmed(chunks, skimmer, TAIL if most == HEAD else 0)


def _skimmed(chunks: Iterator[bytes], skimmer: Skimmer, tail: int = 0) -> Iterator[Numbered]:
    """At least the last ``tail`` bytes are given whole."""
    held: list[bytes] = []
    for chunk in chunks:
        held.append(chunk)
        while sum(map(len, held[1:])) >= max(tail, 1):
            yield from _in_pieces(skimmer.skim(held.pop(0)))
    end = b"".join(held)
    cut = (end.rfind(b"\n", 0, -tail) + 1) if tail else len(end)
    if cut:
        yield from _in_pieces(skimmer.skim(end[:cut]))
    yield from _in_pieces(skimmer.finish())
    for number, line in numbered(iter([end[cut:]])):
        yield skimmer.number + number - 1, line


def _in_pieces(lines: Iterable[Numbered]) -> Iterator[Numbered]:
    for number, line in lines:
        if len(line) <= LONGEST:
            yield number, line
        else:
            yield from ((number, piece) for piece in pieces_of(line))


def _is_kernel_log(beginning: bytes) -> bool:
    lines = beginning[:_LOOK].splitlines()
    return sum(_KERNEL_LINE.search(line[:200]) is not None for line in lines) > 0.5 * len(lines)


def marked_lines(path: str, anchors: Iterable[str], starts: Iterable[str] = (), end: str = "\n") -> Lines:
    """The lines with an anchor in them, each with a few that follow, and all from one of ``starts`` to the next with ``end``."""
    return Skimmed(path, Marks.of(anchors, starts, end))
