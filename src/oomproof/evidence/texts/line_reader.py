"""Any log as numbered lines in bounded memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Protocol

from oomproof.evidence.texts.text_stream import Stream, UnreadableText

__all__ = ["LONGEST", "Lines", "UnreadableText", "numbered", "open_lines", "pieces_of", "transcoded"]

LONGEST = 64 * 1024  # bytes of one piece; a longer line comes in several, under one number
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\-_])")


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
                for piece in pieces_of(line):
                    yield number, piece
            else:
                yield number, line
            number += 1
        if len(rest) > LONGEST:
            *whole, rest = pieces_of(rest)
            for piece in whole:
                yield number, piece
    if rest:
        yield number, rest


def pieces_of(line: bytes) -> list[bytes]:
    """At most LONGEST bytes each, parted where a bar was redrawn if it was."""
    pieces, at = [], 0
    while len(line) - at > LONGEST:
        cut = line.rfind(b"\r", at + 1, at + LONGEST)
        cut = cut if cut > 0 else at + LONGEST
        pieces.append(line[at:cut])
        at = cut
    pieces.append(line[at:])
    return pieces
