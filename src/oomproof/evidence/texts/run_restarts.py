"""A log that several runs were appended to: the line that opened it comes again, so what failed above was another run's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.evidence.texts import progress as signs

_NO_DIGITS = str.maketrans("", "", "0123456789")
_SHORTEST = 20  # characters of a line that tells runs apart
_KEY = re.compile(r"[^\d\s][^\d]{10,60}")
_ANY_LINE = re.compile(
    r"^\s*(?:Traceback|File|warnings?\b|wandb:|[-=#*_]{4,}+\s*$|\s{2})|\bwarn|%\|", re.IGNORECASE
)
_FAILURE = re.compile(
    r"(?i)Traceback \(most recent|^\s*File \"|\w(?:Error|Exception)(?::|$)|\bkilled\b|\b(?:error|fatal|fail(?:ed|ure)|abort\w*|signal|oom|memory|nccl)\b"
)
# A launcher says that the next run or attempt begins
_ANNOUNCED = re.compile(
    r"^wandb: Agent Starting Run: \w|\d attempts left; will restart worker group|Restarting worker group|CANCELLED AT \S{10,30} DUE TO (?:JOB REQUEUE|PREEMPTION)"
    r"|^In ?\[\d{1,6}\]:"  # a notebook's next cell, a shell's next input
)
ANNOUNCING = ("In [", "Agent Starting Run", "estart", "REQUEUE", "PREEMPTION")
_OFTEN = 3  # openings without a failure between them: the line is one of many
_OPENINGS = 8  # of the first lines that tell something
_LOOK = 40  # lines
_CLOSE = 4  # lines
_LETTERS = re.compile(r"[^\W\d_]")
_FEWEST_LETTERS = 5


class RestartWatch:
    """``begin`` with the first lines, then ask of every block whether it may hold an opening, and of its lines which."""

    __slots__ = ("_quiet", "_shapes", "_started", "_until", "keys", "opened")

    def __init__(self) -> None:
        self._shapes: dict[str, str] = {}  # of the lines that opened the first run, each with its key
        self.keys: tuple[str, ...] = ()
        self._started = False
        self._quiet: dict[str, int] = {}
        self._until = 0  # the last line of the first opening
        self.opened = 0  # the line that opened the last run, where it is not the first

    def begin(self, block: Sequence[tuple[int, str]]) -> None:
        """The first lines that say anything are the opening; a title or a traceback opens no run, and what stands twice
        among them is one of many."""
        if self._started:
            return
        every = [(number, line) for number, line in block if line.strip()]
        written = every[:_LOOK]
        self._started = bool(written)
        seen = _often(every)
        for index, (number, line) in enumerate(written):
            if _FAILURE.search(line):
                break
            shape = _shape(line)
            if shape in seen:
                self._shapes.pop(shape, None)
            elif len(self._shapes) < _OPENINGS and (key := _key(line, shape, first=index == 0)):
                self._shapes[shape] = key
            seen.add(shape)
            self._until = number
        self.keys = tuple(self._shapes.values())

    def may_open(self, text: str) -> bool:
        return any(key in text for key in self.keys) or any(word in text for word in ANNOUNCING)

    def opens(self, number: int, line: str, failed: bool) -> bool:
        """Whether another run begins below a failure."""
        if _ANNOUNCED.search(line[:400]):
            self.opened = number
            return failed
        shape = _shape(line)
        if number <= self._until or shape not in self._shapes:
            return False
        self._quiet[shape] = 0 if failed else self._quiet.get(shape, 0) + 1
        if self._quiet[shape] > _OFTEN:
            del self._shapes[shape]
            self.keys = tuple(self._shapes.values())
        elif not self.opened or number - self.opened > _LOOK:  # all of an opening, not only its last line
            self.opened = number
        return failed


def _often(lines: Sequence[tuple[int, str]]) -> set[str]:
    """What comes again every few lines, and not only twice: another program's heartbeat."""
    last: dict[str, int] = {}
    close: set[str] = set()
    often: set[str] = set()
    for at, (_, line) in enumerate(lines):
        shape = _shape(line)
        if at - last.get(shape, -_CLOSE) < _CLOSE:
            (often if shape in close else close).add(shape)
        last[shape] = at
    return often


def _key(line: str, shape: str, first: bool) -> str:
    """What tells that the line may come again; empty for a line that opens nothing."""
    if len(shape) < _SHORTEST or line.startswith(("#", ">")) or _ANY_LINE.search(line):
        return ""
    if not first and (len(_LETTERS.findall(shape)) < _FEWEST_LETTERS or signs.read_sign(line) is not None):
        return ""
    key = _KEY.search(line)
    return key[0] if key else ""


def _shape(line: str) -> str:
    return line.strip()[:160].translate(_NO_DIGITS)
