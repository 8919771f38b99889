"""Reads what faulthandler wrote: the Python stacks of a fatal signal, or those that were asked for. Pure."""

from __future__ import annotations

import re

from oomproof.records import dataclass

_FATAL = re.compile(r"^Fatal Python error: (.+)$")
_ASKED = re.compile(r"^--- ([\d.]+) (.*)$")
_THREAD = re.compile(r"^(Current thread|Thread|Stack) (?:0x[0-9a-f]+|\(most recent)")
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')
_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python\d|oomproof[/\\](?:agent|leaf)|<frozen"
)
_AGENT = re.compile(r"oomproof[/\\](?:agent|leaf)[/\\]")
_MADE = "<string>"
_MOST = 100  # frames of one stack


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int | None
    name: str

    @property
    def words(self) -> str:
        return f"{self.file}:{self.line if self.line is not None else '?'} in {self.name}"


@dataclass(frozen=True, slots=True)
class Dump:
    """One stack: of the thread that died, or of the one that was current when it was asked for."""

    fatal: str | None  # "Segmentation fault", …; None: on request
    time: float | None  # boottime of the request
    why: str
    frames: tuple[Frame, ...]  # innermost first


def parse(text: str) -> list[Dump]:
    """In the order they were written. Of several threads the current one counts, else the main one, which is last."""
    dumps: list[Dump] = []
    fatal: str | None = None
    time, why = None, ""
    current: list[Frame] = []
    last: list[Frame] = []
    is_current = False
    begun = False

    def close() -> None:
        if begun and (current or last or fatal):
            frames = tuple(current or last)
            dumps.append(Dump(fatal, time, why, frames if fatal else _without_agent(frames)))

    for line in text.splitlines():
        if match := _FATAL.match(line):
            close()
            fatal = match[1].replace("Floating-point", "Floating point")  # its name since Python 3.14
            time, why, current, last, is_current, begun = None, "", [], [], False, True
        elif match := _ASKED.match(line):
            close()
            fatal, time, why, current, last, is_current, begun = (
                None,
                _seconds(match[1]),
                match[2],
                [],
                [],
                False,
                True,
            )
        elif match := _THREAD.match(line):
            is_current, last, begun = match[1] == "Current thread", [], True
        elif match := _FRAME.match(line):
            frames = current if is_current else last
            if len(frames) < _MOST:
                frames.append(Frame(match[1], int(match[2]) if match[2].isdecimal() else None, match[3]))
    close()
    return dumps


def _without_agent(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The request may have come while our agent looked at the job's variables: the job stood where that was called."""
    at = next((number for number, frame in enumerate(frames) if not _AGENT.search(frame.file)), 0)
    return frames[at:]


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # a damaged line
        return None


def is_library(file: str) -> bool:
    return bool(_LIBRARY.search(file))


def users_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of the user's own code; of a library's where there is none."""
    own = own_frame(frames)
    if own is not None:
        return own
    return next((frame for frame in frames if frame.file != _MADE), frames[0] if frames else None)


def own_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of the user's own code, if it has any here.

    ``<string>`` is code that was made as it ran (a dataclass, a named tuple), or `python -c`; and of a process that
    multiprocessing started the first frame is such a program, which is no user's."""
    own = [frame for frame in frames if not is_library(frame.file)]
    in_files = [frame for frame in own if frame.file != _MADE]
    if in_files:
        return in_files[0]
    inline = bool(own) and frames[-1].file == _MADE
    if not inline or (len(frames) > 1 and "multiprocessing" in frames[-2].file):
        return None
    # beneath it, what a library made has no name of the user's: it runs as a module
    return next(frame for frame in own if frame.name != "<module>" or frame is frames[-1])


def where(frames: tuple[Frame, ...]) -> str:
    """The user's line, and the library call below it where that is another."""
    own = users_frame(frames)
    if own is None:
        return "no Python code was running"
    inner = next((frame for frame in frames if frame == own or frame.file != _MADE), own)
    return (
        own.words if inner == own else f"{own.words}, inside {inner.name} ({_short(inner.file)}:{inner.line})"
    )


def _short(path: str) -> str:
    parts = re.split(r"[/\\]", path)
    return "/".join(parts[-2:])
