"""Whether an exception is a lack of memory, by the words that `oomproof why` knows; and which phase it came from."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator

from oomproof.causes import cause_of
from oomproof.evidence.texts.phases import Frame, of_functions
from oomproof.evidence.texts.training_parser import TrainingParser

# No memory of their own in the table of causes, since a log alone does not tell: but with a smaller batch both go away where they were one.
_BESIDES = ("dataloader-killed", "cudnn")
_DEPTH = 16  # of a chain of causes


def memory_cause(error: BaseException) -> str | None:
    """The slug of the cause where the exception, or one that it was raised from, is a lack of memory."""
    for part in _chain(error):
        if isinstance(part, MemoryError):
            return "python-memory-error"
        if not isinstance(part, Exception):
            continue
        for cause in _causes(part):
            if cause_of(cause).memory or cause in _BESIDES:
                return cause
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _DEPTH:
        part = waiting.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, BaseExceptionGroup):
            waiting.extend(part.exceptions)
        following = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
        if following is not None:
            waiting.append(following)


def _causes(error: Exception) -> list[str]:
    parser = TrainingParser("exception")
    lines = ["Traceback (most recent call last):", *"".join(_words(error)).splitlines()]
    for number, line in enumerate(lines, 1):
        parser.feed(number, line)
    return [finding.cause for finding in parser.finish()]


def _words(error: Exception) -> list[str]:
    try:
        return traceback.format_exception_only(error)
    except Exception:  # an exception of the user's whose text cannot be made
        return [type(error).__name__]


def phase_of(error: BaseException) -> str:
    """train, eval, generate, save, load; "" where the functions of its stack do not show one. A file's name alone decides nothing here."""
    frames: list[Frame] = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        line = linecache.getline(code.co_filename, step.tb_lineno).strip()
        frames.append((code.co_filename, code.co_qualname, line))
        step = step.tb_next
    return of_functions(frames)
