"""The end of what a job printed, as its keeper kept it: the last line, and what the parsers find in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oomproof.evidence.case_file import Output
from oomproof.recording.attempt import Attempt
from oomproof.records import dataclass, field

_TAIL = 4 << 20  # half a second of reading; a chain of failures is told within kilobytes
_BLOCK = 1 << 20
_LAST = 16 << 10
_END = 256 << 10  # in which the last lines are looked for


def read_output(attempt: Attempt, parse: bool) -> Output:
    """``parse``: what the texts say, too; a run that ended well needs only its last line."""
    parts = _parts(attempt)
    name = attempt.output_file.name
    if not parts:
        return Output(reason=f"{name}: No such file or directory")
    if not sum(size for _, size in parts):
        return Output(reason=None, empty=True)
    try:
        last_line = _last_line(parts)
        if not parse:
            return Output(last_line, None, None)
        return _parsed(name, parts, last_line)
    except OSError as error:
        return Output(reason=f"{name}: {error.strerror}")


def _parts(attempt: Attempt) -> list[tuple[Path, int]]:
    """Those that there are, oldest first, with their sizes."""
    return [(path, size) for path in attempt.outputs if (size := _size(path)) is not None]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


@dataclass
class _Named:
    path: str
    notes: list[str] = field(default_factory=list)


def _parsed(name: str, parts: list[tuple[Path, int]], last_line: str) -> Output:
    """By the parsers that read any other text; a job's output may hold an engine's or a guard's words as well."""
    from oomproof.evidence.texts.guard_parser import GuardParser
    from oomproof.evidence.texts.kernel_parser import KernelParser
    from oomproof.evidence.texts.line_reader import LONGEST, Lines
    from oomproof.evidence.texts.text_case import TextCase
    from oomproof.evidence.texts.training_parser import TrainingParser

    def pieces() -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(data.split(b"\n"), first):
            for at in range(0, max(1, len(line)), LONGEST):
                yield number, line[at : at + LONGEST]

    skip = max(0, sum(size for _, size in parts) - _TAIL)
    first = 1 + sum(block.count(b"\n") for block in _blocks(parts, 0, skip))
    data = b"".join(_blocks(parts, skip, None))
    kernel, guards, job = KernelParser(name), GuardParser(name), TrainingParser(name)
    for number, line in Lines(_Named(name), pieces()):
        kernel.feed(number, line)
        guards.feed(number, line)
        job.feed(number, line)
    system = sorted([*kernel.finish(), *guards.finish()], key=lambda finding: finding.line)
    told = tuple(job.finish())
    text = TextCase((name,), tuple(system), told, job.progress, job.end)
    return Output(text.last_line or last_line, text, None)


def _blocks(parts: list[tuple[Path, int]], start: int, stop: int | None) -> Iterator[bytes]:
    """Bytes ``start`` to ``stop`` of the parts, one behind the other, up to the size they had."""
    before = 0
    for path, size in parts:
        begin = min(max(0, start - before), size)
        end = size if stop is None else min(max(0, stop - before), size)
        before += size
        if begin >= end:
            continue
        with open(path, "rb") as file:
            file.seek(begin)
            while begin < end and (block := file.read(min(_BLOCK, end - begin))):
                begin += len(block)
                yield block


def tail_text(attempt: Attempt, most: int) -> str:
    """The last bytes of what it printed, as text; nothing where there is none."""
    parts = _parts(attempt)
    try:
        data = b"".join(_blocks(parts, max(0, sum(size for _, size in parts) - most), None))
    except OSError:
        return ""
    return data.replace(b"\0", b"").decode("utf-8", "replace")


def last_lines(attempt: Attempt, count: int) -> list[str]:
    """The last lines it printed that say anything; of a bar that was drawn over itself, as it stood last."""
    lines = tail_text(attempt, _END).split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return [line for line in shown if line.strip()][-count:]


def _last_line(parts: list[tuple[Path, int]]) -> str:
    path, size = next(part for part in reversed(parts) if part[1])
    with open(path, "rb") as file:
        file.seek(max(0, size - _LAST))
        lines = file.read(_LAST).replace(b"\0", b"").replace(b"\r", b"\n").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), b"").decode("utf-8", "replace")
    return "".join(letter for letter in last if letter.isprintable()).strip()[-600:]


def contains(attempt: Attempt, words: bytes) -> bool:
    """Whether the job printed them anywhere."""
    before = b""
    try:
        for block in _blocks(_parts(attempt), 0, None):
            if words in before + block:
                return True
            before = block[-len(words) :]
    except OSError:
        return True  # not known: no claim is built on it
    return False
