"""Texts whose length nobody knows beforehand, as pipes and archives: every line, or of a long kernel log what matters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from oomproof.evidence.texts.reading import Lines, Marks, by_hand, numbered, transcoded
from oomproof.evidence.texts.streams import Stream

LARGE = 8 << 20  # bytes of a kernel log of which every line is read: some two seconds of work
_LOOK = 1 << 18
_KERNEL_LINE = re.compile(rb"^(?:<\d+>)?\[ *\d+\.\d+\]|^\d+,\d+,\d+,|\bkernel: ")


def is_large_kernel_log(path: str) -> bool:
    """A plain file too large to read every line of: only what an anchor marks is read then, at grep's speed."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) < LARGE:
            return False
        with open(path, "rb") as file:
            return _is_kernel_log(file.read(_LOOK))
    except OSError:
        return False


def _is_kernel_log(beginning: bytes) -> bool:
    lines = beginning[:_LOOK].splitlines()
    return sum(_KERNEL_LINE.search(line[:200]) is not None for line in lines) > 0.5 * len(lines)


def long_lines(path: str, anchors: Sequence[str], starts: Sequence[str], end: str) -> Lines:
    """``open_lines``, but behind the first ``LARGE`` bytes of a kernel log only the lines an anchor marks."""
    stream = Stream(path)
    return Lines(stream, _lines(transcoded(stream.blocks()), Marks(anchors, starts, end)))


def _lines(blocks: Iterator[bytes], marks: Marks) -> Iterator[tuple[int, bytes]]:
    left = [b""]
    last = 0
    for last, line in numbered(_beginning(blocks, left)):  # used behind the loop
        yield last, line
    if left[0]:
        for number, line in by_hand(chain(left, blocks), marks):
            yield last + number, line


def _beginning(blocks: Iterator[bytes], left: list[bytes]) -> Iterator[bytes]:
    """Whole lines up to ``LARGE`` bytes where it is a kernel log; ``left`` takes what begins behind them."""
    kernel: bool | None = None
    seen = 0
    for block in blocks:
        kernel = _is_kernel_log(block) if kernel is None else kernel
        seen += len(block)
        cut = block.rfind(b"\n") + 1
        if kernel and seen > LARGE and cut:
            left[0] = block[cut:] or next(blocks, b"")
            yield block[:cut]
            return
        yield block
