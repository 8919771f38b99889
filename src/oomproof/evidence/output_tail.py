"""The end of what the job printed: bytes of any kind in, clean lines and the last Python error out."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

TAIL = 64 * 1024
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RANK = re.compile(r"^\[(?:rank)?\d+\]:\s?|^\(\w+ pid=\d+(?:, ip=[\d.]+)?\)\s?")  # torchrun, Ray
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:?)$")
_ERRORISH = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Timeout")
_MESSAGE_LINES = 12  # CUDA's and DataLoader's messages run over several lines


@dataclass(frozen=True, slots=True)
class PythonError:
    """One traceback's last line(s). ``at`` counts lines from the end of the output: 0 is the very last."""

    type: str
    message: str  # its first line
    at: int
    more: str = ""  # what was printed after it: the rest of a long message, or something else altogether
    chained: bool = False  # another traceback names this one as its origin

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def line(self) -> str:
        """Short enough for a headline."""
        return self.text if len(self.text) <= 160 else self.text[:159] + "…"


@dataclass(frozen=True, slots=True)
class OutputTail:
    lines: tuple[str, ...] = ()
    errors: tuple[PythonError, ...] = ()  # oldest first
    reason: str | None = "no output was recorded"  # why there is nothing

    def last(self, count: int) -> str:
        return "\n".join(self.lines[-count:])


def clean(data: bytes) -> list[str]:
    """Lines a person would have seen: colours and NULs gone, a progress bar's redraws as lines."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        # a tail may begin inside a character; only then is it not simply Latin-1
        text = data.decode("utf-8", "replace")
        if text.count("\ufffd") > 4:
            text = data.decode("latin-1")
    text = _ANSI.sub("", text.replace("\0", ""))
    lines = [_RANK.sub("", line.rstrip()) for line in re.split(r"\r\n|\r|\n", text)]
    return [line for line in lines if line]


def _exception_line(lines: list[str], start: int, margin: int) -> tuple[int, re.Match[str]] | None:
    """The exception that ends the traceback at ``start``. Progress bars and other threads may have written
    between its frames: a line that looks like no exception and has frames after it is theirs."""
    for index in range(start + 1, len(lines)):
        body = lines[index][margin:]
        if body.startswith((" ", "\t")):
            continue  # frames, source lines, carets
        if body.startswith((_TRACEBACK, *_CHAINED)):
            return None
        match = _EXCEPTION.match(body)
        if match is None:
            continue
        frames_follow = index + 1 < len(lines) and lines[index + 1][margin:].startswith(" ")
        if frames_follow and not match["type"].endswith(_ERRORISH):
            continue
        return index, match
    return None


def find_errors(lines: list[str]) -> tuple[PythonError, ...]:
    """The exception under each traceback. One that was cut off before its exception yields nothing."""
    errors: list[PythonError] = []
    for start, line in enumerate(lines):
        if not line.lstrip().startswith(_TRACEBACK):
            continue
        found = _exception_line(lines, start, len(line) - len(line.lstrip()))
        if found is None:
            continue
        index, match = found
        more: list[str] = []
        chained = False
        for after in lines[index + 1 : index + _MESSAGE_LINES]:
            chained = after.lstrip().startswith(_CHAINED)
            if chained or _TRACEBACK in after:
                break
            more.append(after)
        errors.append(
            PythonError(
                match["type"],
                (match["message"] or "").strip(),
                len(lines) - 1 - index,
                "\n".join(more),
                chained,
            )
        )
    return tuple(errors)


def parse(data: bytes) -> OutputTail:
    lines = clean(data)
    return OutputTail(tuple(lines), find_errors(lines), None if lines else "the job printed nothing")


def read(path: str | os.PathLike[str]) -> OutputTail:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            return parse(file.read(TAIL))
    except OSError as error:
        return OutputTail(reason=f"{os.path.basename(path)}: {error.strerror}")
