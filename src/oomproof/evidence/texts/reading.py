"""Any log as numbered lines in bounded memory: whole, or only what an anchor string marks."""

from __future__ import annotations

import codecs
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from oomproof.evidence.texts.streams import Stream, UnreadableText

__all__ = ["LONGEST", "Lines", "UnreadableText", "marked_lines", "open_lines"]

LONGEST = 64 * 1024  # bytes of one piece; a longer line comes in several, under one number
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\-_])")
_AFTER = 4  # lines read behind a marked one: what a mail program broke into several
_SPAN_LINES = 6000  # and behind the start of a report, up to its end


class Lines:
    """An iterator of (number, text). A redrawn progress bar gives its segments under one number;
    ``notes`` says, once read, what could not be."""

    def __init__(self, stream: Stream, pieces: Iterator[tuple[int, bytes]]) -> None:
        self.source = stream.path
        self.notes = stream.notes
        self._decode = _Decoder()
        self._pieces = pieces
        self._ready: Iterator[tuple[int, str]] = iter(())

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> tuple[int, str]:
        while True:
            for each in self._ready:
                return each
            number, piece = next(self._pieces)
            if b"\r" not in piece and b"\x1b" not in piece and b"\x00" not in piece:
                return number, self._decode(piece)
            self._ready = self._segments(number, piece)

    def _segments(self, number: int, piece: bytes) -> Iterator[tuple[int, str]]:
        text = self._decode(piece.replace(b"\x00", b""))
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        segments = [each for each in text.split("\r") if each.strip()]
        return iter([(number, each) for each in segments] or [(number, "")])


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
        return text


def open_lines(path: str) -> Lines:
    """Every line of a text; ``-`` is standard input. Raises ``UnreadableText`` at once where there is none."""
    stream = Stream(path)
    return Lines(stream, _numbered(_transcoded(stream.blocks())))


def _transcoded(blocks: Iterator[bytes]) -> Iterator[bytes]:
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


def _numbered(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
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
    marks = _Marks(anchors, starts, end)
    if command is not None and stream.size is not None and not _is_utf16(stream):
        stream.close()
        return Lines(stream, _by_grep(command, path, stream.size, marks))
    return Lines(stream, _by_hand(_numbered(_transcoded(stream.blocks())), marks))


def _is_utf16(stream: Stream) -> bool:
    return stream._first.startswith((b"\xff\xfe", b"\xfe\xff"))


class _Marks:
    def __init__(self, anchors: Sequence[str], starts: Sequence[str], end: str) -> None:
        self.anchors = [each.encode() for each in anchors]
        self.starts = tuple(each.encode() for each in starts)
        self.end = end.encode() or b"\n"
        # the longest first letters shared make the alternation quicker
        self.pattern = re.compile(b"|".join(re.escape(each) for each in sorted(self.anchors)))

    def reach(self, line: bytes) -> int:
        """How many lines behind this one belong to it."""
        return _SPAN_LINES if any(each in line for each in self.starts) else _AFTER


def _by_hand(lines: Iterator[tuple[int, bytes]], marks: _Marks) -> Iterator[tuple[int, bytes]]:
    until, span = 0, False
    search = marks.pattern.search
    for number, line in lines:
        if search(line) is not None:
            reach = marks.reach(line)
            if marks.end in line:
                until, span = number + _AFTER, False
            elif reach > _AFTER or not span:
                until, span = max(until, number + reach), span or reach > _AFTER
        elif number > until:
            span = False
            continue
        yield number, line


def _by_grep(command: str, path: str, size: int, marks: _Marks) -> Iterator[tuple[int, bytes]]:
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


def _around(hits: Iterator[bytes], file: object, size: int, marks: _Marks) -> Iterator[tuple[int, bytes]]:
    """grep's "line:offset:text" and, read beside it, the lines between that belong to it."""
    done = 0  # bytes already given out
    until = 0  # the line up to which the text belongs to the last mark
    number = 0  # the last line given out
    span = False
    for hit in hits:
        line_number, offset, text = hit.split(b":", 2)
        at, here = int(offset), int(line_number)
        if at >= size:
            return
        if at < done:
            continue
        if number < until and number + 1 < here:
            for number, done, line in _read_on(file, done, at, number, until):
                yield number, line
        yield here, text.rstrip(b"\n")[: LONGEST * 4]
        number, done = here, at + len(text)
        reach = marks.reach(text)
        if marks.end in text:
            until, span = here + _AFTER, False
        elif reach > _AFTER or not (span and here <= until):
            span = reach > _AFTER
            until = max(until, here + reach) if span else here + reach
    if number and number < until:
        for number, done, line in _read_on(file, done, size, number, until):
            yield number, line


def _read_on(
    file: object, start: int, stop: int, number: int, until: int
) -> Iterator[tuple[int, int, bytes]]:
    """Lines from byte ``start``, before ``stop``, up to the line ``until``."""
    reader = file  # an open binary file
    reader.seek(start)  # type: ignore[attr-defined]
    while start < stop and number < until:
        line = reader.readline(min(stop - start, 1 << 20))  # type: ignore[attr-defined]
        if not line:
            return
        start += len(line)
        if line.endswith(b"\n") or start >= stop:
            number += 1
        yield number, start, line.rstrip(b"\n")[: LONGEST * 4]
