"""Any log as numbered lines in bounded memory: whole, or only what an anchor string marks."""

from __future__ import annotations

import codecs
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Protocol

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.text_stream import Stream, UnreadableText

__all__ = [
    "LONGEST", "Lines", "Marks", "Reach", "UnreadableText", "by_hand", "marked_lines", "numbered", "open_lines", "transcoded",
]  # fmt: skip

LONGEST = 64 * 1024  # bytes of one piece; a longer line comes in several, under one number
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\-_])")
_AFTER = 4  # lines read behind a marked one: what a mail program broke into several
_SPAN_LINES = 6000  # and behind the start of a report, up to its end


class Source(Protocol):
    """Whoever gives the bytes: what it is called, and what could not be read of it."""

    path: str
    notes: list[str]


class Lines:
    """An iterator of (number, text). A redrawn progress bar gives its segments under one number;
    ``notes`` says, once read, what could not be."""

    def __init__(self, stream: Source, pieces: Iterator[tuple[int, bytes]]) -> None:
        self.source = stream.path
        self.notes = stream.notes
        self._decode = _Decoder()
        self._pieces = pieces
        self._ready: Iterator[tuple[int, str]] = iter(())

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> tuple[int, str]:
        while True:
            for line in self._ready:
                return line
            number, piece = next(self._pieces)
            if b"\r" not in piece and b"\x1b" not in piece and b"\x00" not in piece:
                return number, self._decode(piece)
            self._ready = self._segments(number, piece)

    def _segments(self, number: int, piece: bytes) -> Iterator[tuple[int, str]]:
        text = self._decode(piece.replace(b"\x00", b""))
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        segments = [segment for segment in text.split("\r") if segment.strip()]
        return iter([(number, segment) for segment in segments] or [(number, "")])


class _Decoder:
    """UTF-8; a file that never showed any, but bytes that are none, is Latin-1."""

    def __init__(self) -> None:
        self._utf8 = False

    def __call__(self, data: bytes) -> str:
        if data.isascii():
            return data.decode("ascii")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace") if self._utf8 else data.decode("latin-1")
        self._utf8 = True
        # a page's blanks that no line breaks at: a program wrote plain ones
        return (
            text.replace("\xa0", " ").replace("\u202f", " ") if "\xa0" in text or "\u202f" in text else text
        )


def open_lines(path: str) -> Lines:
    """Every line of a text; ``-`` is standard input. Raises ``UnreadableText`` at once where there is none."""
    stream = Stream(path)
    return Lines(stream, numbered(transcoded(stream.blocks_of_lines())))


def transcoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 (PowerShell's ``>``) as UTF-8, by its byte order mark; anything else as it is."""
    first = next(blocks, b"")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        decode = codecs.getincrementaldecoder("utf-16")("replace").decode
        yield decode(first).encode("utf-8", "replace")
        for block in blocks:
            yield decode(block).encode("utf-8", "replace")
        return
    yield first.removeprefix(b"\xef\xbb\xbf")
    yield from blocks


def numbered(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number, rest = 1, b""
    for block in blocks:
        lines = block.split(b"\n")
        if rest:
            lines[0] = rest + lines[0]
        rest = lines.pop()
        for line in lines:
            if len(line) > LONGEST:
                for piece in _pieces(line):
                    yield number, piece
            else:
                yield number, line
            number += 1
        if len(rest) > LONGEST:
            *whole, rest = _pieces(rest)
            for piece in whole:
                yield number, piece
    if rest:
        yield number, rest


def _pieces(line: bytes) -> list[bytes]:
    """At most LONGEST bytes each, parted where a bar was redrawn if it was."""
    pieces, at = [], 0
    while len(line) - at > LONGEST:
        cut = line.rfind(b"\r", at + 1, at + LONGEST)
        cut = cut if cut > 0 else at + LONGEST
        pieces.append(line[at:cut])
        at = cut
    pieces.append(line[at:])
    return pieces


# Logs of gigabytes: only the lines that matter, with the reports they begin


def marked_lines(
    path: str, anchors: Sequence[str], starts: Sequence[str] = (), end: str = "", grep: str | None = "grep"
) -> Lines:
    """The lines with an anchor in them, each with a few that follow, and all lines from one of ``starts`` to
    the next with ``end``. `grep -F` marks them where the text is a plain file; else we do, more slowly."""
    stream = Stream(path)
    command = shutil.which(grep) if grep else None
    marks = Marks(anchors, starts, end)
    if command is not None and stream.size is not None and not _is_utf16(stream):
        stream.close()
        return Lines(stream, _by_grep(command, path, stream.size, marks))
    return Lines(stream, by_hand(transcoded(stream.blocks_of_lines()), marks))


def _is_utf16(stream: Stream) -> bool:
    return stream.first.startswith((b"\xff\xfe", b"\xfe\xff"))


class Marks:
    """Which lines of a huge log matter, and up to where."""

    def __init__(self, anchors: Sequence[str], starts: Sequence[str], end: str) -> None:
        self.anchors = shortest(sorted({anchor.encode() for anchor in anchors}))
        self.starts = tuple(candidate.encode() for candidate in starts)
        self.end = end.encode() or b"\n"

    def on(self, text: bytes) -> bool:
        return any(anchor in text for anchor in self.anchors)


class Reach:
    """Up to which line the text belongs to the marks seen so far."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.until = 0
        self._span = False

    def mark(self, number: int, line: bytes) -> None:
        if self._marks.end in line:
            self.until, self._span = number + _AFTER, False
        elif any(anchor in line for anchor in self._marks.starts):
            self.until, self._span = number + _SPAN_LINES, True
        elif not self._span or number > self.until:
            self.until, self._span = max(self.until, number + _AFTER), False


def by_hand(blocks: Iterator[bytes], marks: Marks) -> Iterator[tuple[int, bytes]]:
    """Chunks without a mark are only counted; a chunk fits a processor's cache."""
    reach = Reach(marks)
    number = 1
    for chunk in _chunks(blocks):
        if number > reach.until and not marks.on(chunk):
            number += chunk.count(b"\n")
            continue
        whole = chunk.endswith(b"\n")
        lines = chunk.split(b"\n")
        if whole:
            lines.pop()
        for line in lines:
            if marks.on(line):
                reach.mark(number, line)
            if number <= reach.until:
                yield number, line
            number += 1
        number -= not whole  # the rest of a line longer than a chunk follows under its number


def _chunks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Some 64 KiB of whole lines at a time; of a longer line, pieces."""
    rest = b""
    for block in blocks:
        data, at = rest + block, 0
        while len(data) - at > LONGEST:
            cut = data.rfind(b"\n", at, at + LONGEST) + 1
            cut = cut if cut > at else at + LONGEST
            yield data[at:cut]
            at = cut
        rest = data[at:]
    if rest:
        yield rest


def _by_grep(command: str, path: str, size: int, marks: Marks) -> Iterator[tuple[int, bytes]]:
    with tempfile.NamedTemporaryFile(prefix="oomproof-anchors-") as anchors, open(path, "rb") as file:
        anchors.write(b"\n".join(marks.anchors) + b"\n")
        anchors.flush()
        process = subprocess.Popen(
            [command, "-a", "-n", "-b", "-F", "-f", anchors.name],
            stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"LC_ALL": "C"},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            with open(path, "rb") as beside:
                yield from _around(process.stdout, beside, size, marks)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


def _around(hits: Iterable[bytes], file: IO[bytes], size: int, marks: Marks) -> Iterator[tuple[int, bytes]]:
    """grep's "line:offset:text" and, read beside it, the lines between that belong to it."""
    reach = Reach(marks)
    done = number = 0  # bytes and lines already given out
    for hit in hits:
        here, offset, text = hit.split(b":", 2)
        at, line_number = int(offset), int(here)
        if at >= size:
            break
        for line in _between(file, done, at, reach.until - number):
            number += 1
            yield number, line
        number, done = line_number, at + len(text)
        line = text.rstrip(b"\n")
        yield number, line[: LONGEST * 4]
        reach.mark(number, line)
    for line in _between(file, done, size, reach.until - number):
        number += 1
        yield number, line


def _between(file: IO[bytes], start: int, stop: int, most: int) -> Iterator[bytes]:
    """At most that many lines from byte ``start``, before byte ``stop``."""
    if most <= 0 or start >= stop:
        return
    file.seek(start)
    for _ in range(most):
        line = file.readline(min(stop - start, LONGEST * 4))
        start += len(line)
        if not line:
            return
        while start < stop and not line.endswith(b"\n"):  # an endless line: its beginning is enough
            more = file.readline(min(stop - start, LONGEST * 4))
            start += len(more)
            if not more or more.endswith(b"\n"):
                break
        yield line.rstrip(b"\n")
        if start >= stop:
            return
