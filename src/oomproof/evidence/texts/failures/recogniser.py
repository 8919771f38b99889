"""What a recogniser is told and what it answers."""

from __future__ import annotations

import re

from oomproof.evidence.texts.finding import GpuNumbers, JobFacts, Kind
from oomproof.records import dataclass

__all__ = ["FailureText", "Hit", "Kind", "is_message"]


@dataclass(frozen=True, slots=True)
class FailureText:
    text: str  # the line, or "Type: message" with the lines that belong to it
    raised: str = ""  # the exception's type where the text is one
    level: str = ""
    files: str = ""  # the traceback's files and functions, one a line, outermost first
    library: str = ""  # "jax" or "tensorflow" once the log has named one

    @property
    def quiet(self) -> bool:
        """Printed as a warning or as information: its writer did not think that it died."""
        return not self.raised and self.level in ("WARNING", "INFO", "DEBUG")


_NAMED = re.compile(r"(?:Error|error|failed|what\(\)|Exception)\W*(?:\w+\W*){0,4}$")


def is_message(sentence: re.Match[str] | None, said: FailureText, strict: bool = False) -> bool:
    """A line that is the message, not a sentence about one: at its start, after an error's name, in quotes.
    ``strict``: an error's name a few words before it is not enough."""
    if sentence is None:
        return False
    before = sentence.string[: sentence.start()].rstrip().lstrip("#>*.… ")
    if (
        not before
        or before.isdigit()  # the number of a row that was not printed any more
        or before.endswith((":", "'", '"', "`", "]", ")", "NCCL WARN", "!!!", " -", "：", "**"))
        or said.level in ("ERROR", "FATAL", "CRITICAL")
    ):
        return True
    return not strict and bool(_NAMED.search(before[-80:]))


@dataclass(frozen=True, slots=True)
class Hit:
    cause: str
    says: str
    strength: float = 0.9
    kind: Kind = "failure"
    gpu: GpuNumbers | None = None
    pids: tuple[int, ...] = ()
    facts: JobFacts = JobFacts()  # frozen
