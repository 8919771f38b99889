"""What a page quotes of the job itself: the stack it died in, with the lines of the user's source, and the end of its log."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from oomproof.evidence.agent_files import crashes, newest_stack
from oomproof.evidence.gpu_oom import GpuOom
from oomproof.evidence.job_output import last_lines
from oomproof.evidence.texts.text_stream import Stream
from oomproof.recording import stack_dumps
from oomproof.recording.attempt import Attempt
from oomproof.recording.stack_dumps import Frame
from oomproof.records import dataclass
from oomproof.reports.redaction import Redactor
from oomproof.units import format_size


def read_capped(path: Path, cap: int) -> tuple[str, str | None]:
    """(the text, what was cut or could not be read). Raises OomproofError for what is no text.

    Cuts fall between lines: half a token would no longer look like one, and would pass the redaction."""
    stream = Stream(str(path))
    head_size, tail_size = cap // 4, cap - cap // 4
    head, tail, total = bytearray(), bytearray(), 0
    for block in stream.blocks():
        total += len(block)
        space = head_size - len(head)
        head += block[:space] if space > 0 else b""
        tail += block[max(0, space) :]
        if len(tail) > 2 * tail_size + (1 << 20):
            del tail[: len(tail) - tail_size]
    notes = list(stream.notes)
    encoding = _encoding(bytes(head[:4096]))
    if total <= cap:
        return _decoded(bytes(head + tail), encoding), "; ".join(notes) or None
    last = bytes(tail[-tail_size:])
    if encoding != "utf-8" and (total - len(last)) % 2:
        last = last[1:]  # UTF-16's pairs stay together
    first_text, last_text = _decoded(bytes(head), encoding), _decoded(last, encoding)
    first_text = first_text[: max(first_text.rfind(end) for end in "\n\r") + 1]
    begin = min((at for end in "\n\r" if (at := last_text.find(end)) >= 0), default=len(last_text))
    words = f"about {format_size(total - cap)} of {format_size(total)}"
    notes.append(f"{words} cut out of the middle")
    return f"{first_text}\n[… oomproof cut {words} here …]\n{last_text[begin + 1 :]}", "; ".join(notes)


def _encoding(first: bytes) -> str:
    if first.startswith(b"\xff\xfe"):
        return "utf-16-le"
    return "utf-16-be" if first.startswith(b"\xfe\xff") else "utf-8"


def _decoded(data: bytes, encoding: str) -> str:
    """As UTF-8; what is none of it is Latin-1, but for a character cut at either end."""
    if encoding != "utf-8":
        return data.decode(encoding, "replace").removeprefix("\ufeff")
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    return text if text.count("\ufffd") <= 4 else data.replace(b"\0", b"").decode("latin-1")


LINES = 50  # of the log
_AROUND = 3  # lines of source before and after
_FRAMES = 20
_OWN = 8  # frames whose source is shown: the innermost
_LONGEST_FILE = 2 << 20
_LONGEST_LINE = 400  # characters
_HEADER = "Traceback (most recent call last)"
_TRACED = re.compile(r'^\s*File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})$')
_WORDS = re.compile(r"^(.{1,500}):(\d{1,9}) in (.{1,200})$")  # as the agent tells a frame


@dataclass(frozen=True, slots=True)
class ShownFrame:
    frame: Frame
    own: bool  # of the user's code
    source: tuple[tuple[int, str], ...] = ()  # (number, line)
    changed: bool = False  # the file was written after the run ended: its lines may have moved


@dataclass(frozen=True, slots=True)
class Stack:
    title: str
    frames: tuple[ShownFrame, ...]  # innermost first


def log_of(attempt: Attempt, redactor: Redactor) -> tuple[str, ...]:
    """The last lines the job printed; a bar that was drawn over itself counts once. Masked together: a key has lines."""
    return _masked(last_lines(attempt, LINES), redactor)


def log_of_text(path: str, redactor: Redactor) -> tuple[str, ...]:
    from oomproof.errors import OomproofError

    try:
        text, _ = read_capped(Path(path), 256 << 10)
    except (OSError, OomproofError):
        return ()
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return _masked([line for line in lines if line.strip()][-LINES:], redactor)


def _masked(lines: Sequence[str], redactor: Redactor) -> tuple[str, ...]:
    return (
        tuple(line[:_LONGEST_LINE] for line in redactor.text("\n".join(lines), "log").split("\n"))
        if lines
        else ()
    )


def stack_of(
    attempt: Attempt,
    oom: GpuOom | None,
    log: Sequence[str],
    redactor: Redactor,
    *,
    ended: float | None = None,
    folder: str = "",
    source: bool = True,
) -> Stack | None:
    """Where the code stood: of the crash, of the error it printed, of the allocation that failed, of the last request."""
    found = _found(attempt, oom, log)
    if found is None:
        return None
    title, frames = found
    shown: list[ShownFrame] = []
    left = _OWN
    place: str | None = None
    for frame in frames[:_FRAMES]:
        own = not stack_dumps.is_library(frame.file)
        again = frame.words.rpartition(" in ")[0] == place  # a comprehension is a frame of its own
        place = frame.words.rpartition(" in ")[0]
        around, changed = (
            _source(frame, folder, ended) if source and own and left and not again else ((), False)
        )
        left -= bool(around)
        told = Frame(redactor.text(frame.file, "stack"), frame.line, redactor.text(frame.name, "stack"))
        text = redactor.text("\n".join(line for _, line in around), "source").split("\n") if around else []
        numbered = tuple(
            (number, line[:_LONGEST_LINE]) for (number, _), line in zip(around, text, strict=False)
        )
        shown.append(ShownFrame(told, own, numbered, changed))
    return Stack(title, tuple(shown))


def stack_of_text(lines: Sequence[str], source: bool = True) -> Stack | None:
    """Of a log from anywhere, already masked: the frames as they stand there, with the line of code printed below each.
    No file is opened: a path of another machine is another file here."""
    begin = _last_header(lines)
    if begin is None:
        return None
    shown: list[ShownFrame] = []
    for at in range(begin, len(lines)):
        if (match := _TRACED.match(lines[at])) is None:
            continue
        frame = Frame(match[1], int(match[2]), match[3])
        below = lines[at + 1] if at + 1 < len(lines) else ""
        printed = source and below.startswith("    ") and not _TRACED.match(below)
        own = not stack_dumps.is_library(frame.file)
        shown.append(ShownFrame(frame, own, ((int(match[2]), below.strip()),) if printed and own else ()))
    return Stack("The last traceback in it", tuple(reversed(shown))[:_FRAMES]) if shown else None


def _found(attempt: Attempt, oom: GpuOom | None, log: Sequence[str]) -> tuple[str, tuple[Frame, ...]] | None:
    if crashed := [crash for crash in crashes(attempt.agent_folder) if crash.frames]:
        crash = crashed[-1]
        return f"{crash.kind} in process {crash.pid}", crash.frames
    if oom is not None and (frames := tuple(frame for line in oom.stack if (frame := _told(line)))):
        return "The allocation that failed", frames
    if frames := _traceback(log):
        return "The last traceback it printed", frames
    if (newest := newest_stack(attempt.agent_folder)) is not None:
        why = newest.why or "at the last request"
        return why[:1].upper() + why[1:], newest.frames
    return None


def _told(line: str) -> Frame | None:
    match = _WORDS.match(line)
    return Frame(match[1], int(match[2]), match[3]) if match else None


def _traceback(log: Sequence[str]) -> tuple[Frame, ...]:
    """The frames of the last one that the log's end still has whole or in part, innermost first."""
    begin = _last_header(log)
    if begin is None:
        return ()
    frames = [
        Frame(match[1], int(match[2]), match[3]) for line in log[begin:] if (match := _TRACED.match(line))
    ]
    return tuple(reversed(frames))


def _last_header(log: Sequence[str]) -> int | None:
    return max((number for number, line in enumerate(log) if _HEADER in line), default=None)


def _source(frame: Frame, folder: str, ended: float | None) -> tuple[tuple[tuple[int, str], ...], bool]:
    """The lines around; none of what is no plain Python file that this user may read. A job can print any path: no other
    kind of file is ever quoted."""
    if frame.line is None or not frame.file.endswith(".py"):
        return (), False
    try:
        path = os.path.join(folder, frame.file)
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_FILE:
                return (), False
            lines = file.read(_LONGEST_FILE).decode("utf-8", "replace").split("\n")
    except (OSError, ValueError):
        return (), False
    first = max(1, frame.line - _AROUND)
    around = lines[first - 1 : frame.line + _AROUND]
    if not 1 <= frame.line <= len(lines):
        return (), False
    return tuple(enumerate((line.rstrip("\r") for line in around), first)), bool(
        ended and status.st_mtime > ended
    )


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to would keep us for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
