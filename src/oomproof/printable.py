"""What may go to a terminal: everything of ours that is printed passes here.

A log line, a process's name or an argument may hold bytes that clear the screen, hide a line or turn its order round.
They are shown as they are written in JSON (``\\u001b``), so that JSON stays whole too. The job's own output does not
pass here: it is relayed as it is."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Any, TextIO

# C0 but newline and tab, DEL, C1, line separators, marks that reorder or hide text, halves of surrogates (bytes that are
# no text). Joiners of letters and emoji stay.
_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
# what charts, bars and sentences of ours are drawn with, and its like for a stream without it; drawings keep their width
PLAIN: dict[int, int | str] = {
    **str.maketrans("█▓░·│┊›–…┄▁▂▃▄▅▆▇─└−→×•µ", "#%:.|!>-.-__--==#-+->x*u"),
    **{ord(ours): like for ours, like in zip("≥≤«»“”‘’", (">=", "<=", *'""""', *"''"), strict=True)},
}
PLAIN_ERRORS = "oomproof-plain"  # the name of its error handler
_UNSAFE = re.compile(f"[{_CONTROLS}]")
_UNSAFE_IN_LINE = re.compile(f"[\n\t{_CONTROLS}]")


def printable(text: str) -> str:
    """``text`` with nothing in it that a terminal obeys, but newlines and tabs."""
    return _UNSAFE.sub(_shown, text)


def one_line(text: str) -> str:
    """The same for a name: its newlines would begin a line that looks like ours."""
    return _UNSAFE_IN_LINE.sub(_shown, text)


def plain_characters(error: UnicodeError) -> tuple[str, int]:
    """What the stream's encoding has no character for: its like where we drew it, else as it is written in Python."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def allow_any_text(*streams: TextIO) -> None:
    """An argument or a log may hold what these streams cannot encode."""
    codecs.register_error(PLAIN_ERRORS, plain_characters)
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN_ERRORS)


def as_message(text: str) -> str:
    """With our name before each line that does not belong to the one above it."""
    return "\n".join(
        line if line.startswith(" ") or not line else f"oomproof: {line}" for line in text.split("\n")
    )


def tell(text: str) -> None:
    """A message of ours."""
    print(as_message(text), file=sys.stderr, flush=True)


def tell_line(text: str) -> None:
    """A message that quotes somebody."""
    tell(one_line(text))


def message_width() -> int | None:
    """The columns of the terminal that standard error is; None where it is none: a file or a pipe gets whole lines."""
    try:
        return os.get_terminal_size(2).columns or None
    except OSError:
        return None


def folded_message(text: str, width: int | None) -> str:
    """A message at a terminal: its long lines broken at spaces, what follows indented."""
    lines = text.split("\n")
    if width is None or all(len(line) <= width for line in lines):
        return text
    folded_lines: list[str] = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip(" "))]
        if " -- " in line:  # a command to copy: the terminal breaks it without a newline
            folded_lines.append(line)
        else:
            folded_lines += folded(line[len(indent) :], width, indent, indent + "  ")
    return "\n".join(folded_lines)


def folded(
    text: str,
    width: int,
    first: str,
    hanging: str,
    *,
    commands: Sequence[str] = (),
    break_long_words: bool = False,
) -> list[str]:
    """Lines of at most that width, ``first`` before the first of them and ``hanging`` before the others. Each of the text's
    ``commands`` has a line of its own, however long: what is copied by a click on it is the command alone."""
    if len(first) + len(text) <= width:
        return [first + text]
    import textwrap  # not for a run that ended well

    lines: list[str] = []
    for command in (*commands, ""):
        before, found, after = text.partition(command) if command else (text, "", "")
        if command and not found:
            continue
        text = after
        if before := before.strip():
            lines += textwrap.wrap(
                before.lstrip(",; ") if lines else before,
                width,
                initial_indent=hanging if lines else first,
                subsequent_indent=hanging,
                break_long_words=break_long_words,
                break_on_hyphens=False,
            )
        if found:
            lines.append((hanging if lines else first) + command)
    return lines or [first]


def show_line(line: str) -> None:
    """Of a command's own output."""
    print(line, file=sys.stderr, flush=True)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PrintableStream:
    """Standard output or error: what is printed there is printable. Colours of ours go through ``inner``."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        self.inner.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MessageStream(PrintableStream):
    """Standard error. A reader that has gone or a full disk behind it costs the message, never what it is about."""

    def write(self, text: str) -> int:
        shown = folded_message(text, message_width()) if text.startswith("oomproof: ") else text
        with contextlib.suppress(OSError):
            super().write(shown)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.inner.flush()


def coloured_stream(stream: IO[str]) -> IO[str]:
    """The stream for text that was made printable before its colours were put in."""
    return stream.inner if isinstance(stream, PrintableStream) else stream


def wants_colour(stream: IO[str]) -> bool:
    """A terminal, and nobody said otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_columns(otherwise: int = 80) -> int:
    """As shutil tells it, without the import of all its archives. ``otherwise``: where there is no terminal."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    try:
        return os.get_terminal_size(1).columns or otherwise
    except OSError:
        return otherwise
