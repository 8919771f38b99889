"""Texts whose length nobody knows beforehand, as pipes and archives: every line, or of a long kernel log what matters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain

from oomproof.evidence.texts.line_reader import Lines, Marks, Reach, by_hand, numbered, transcoded
from oomproof.evidence.texts.text_stream import Stream

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
    return Lines(
        stream,
        _lines(transcoded(stream.blocks_of_lines()), Marks(anchors, starts, end), shutil.which("grep")),
    )


def _lines(blocks: Iterator[bytes], marks: Marks, grep: str | None) -> Iterator[tuple[int, bytes]]:
    left = [b""]
    last = 0
    for last, line in numbered(_beginning(blocks, left)):  # used behind the loop
        yield last, line
    if left[0]:
        rest = chain(left, blocks)
        for number, line in _by_grep(rest, marks, grep) if grep else by_hand(rest, marks):
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


_PIECE = 4 << 20  # bytes given to one grep: it starts in milliseconds and searches ten times as fast as we do


def _by_grep(blocks: Iterator[bytes], marks: Marks, grep: str) -> Iterator[tuple[int, bytes]]:
    reach = Reach(marks)
    number = 1
    with tempfile.NamedTemporaryFile(prefix="oomproof-anchors-") as anchors:
        anchors.write(b"\n".join(marks.anchors) + b"\n")
        anchors.flush()
        for piece in _whole_lines(blocks):
            hits = _hits([grep, "-a", "-n", "-F", "-f", anchors.name], piece)
            if hits or number <= reach.until:
                for at, line in enumerate(piece.removesuffix(b"\n").split(b"\n"), number):
                    if at - number + 1 in hits:
                        reach.mark(at, line)
                    if at <= reach.until:
                        yield at, line
            number += piece.count(b"\n")


def _hits(command: list[str], piece: bytes) -> set[int]:
    done = subprocess.run(command, input=piece, capture_output=True, env={"LC_ALL": "C"}, check=False)
    if done.returncode > 1:
        raise OSError(f"grep failed: {done.stderr.decode(errors='replace').strip()}")
    return {int(line.split(b":", 1)[0]) for line in done.stdout.splitlines() if line[:1].isdigit()}


def _whole_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Some megabytes at a time that end with a line; of an endless line, pieces."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size < _PIECE:
            continue
        data = b"".join(held)
        cut = data.rfind(b"\n") + 1 or len(data)
        yield data[:cut]
        held = [data[cut:]] if cut < len(data) else []
        size = len(data) - cut
    if held:
        yield b"".join(held)
