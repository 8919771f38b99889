"""One value in a file of settings: under which keys it stands, and where its text is. What is changed is that text and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

from oomproof.diagnosis.smaller_command import bare_name
from oomproof.records import dataclass

Wanted = Callable[[str], bool]  # whether a name is of interest

# wandb's sweep files and JSON schemas say ``batch: {value: 64}``; dataclasses and click say default=64
_HOLDERS = ("value", "default")
_PLAIN = re.compile(r"[A-Za-z0-9_.+:/,-]*")


@dataclass(frozen=True, slots=True)
class Scalar:
    """``value`` as the program sees it; its text, with its quotes, is at ``start`` to ``end``. ``problem``: why it cannot be changed."""

    path: tuple[str, ...]
    value: str
    start: int
    end: int
    line: int
    quote: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """What it is called: ``batch_size`` of ``train.batch_size`` and of ``parameters.batch_size.value``."""
        return name_of(self.path)

    @property
    def key(self) -> str:
        return ".".join(self.path)

    def replaced(self, text: str, new: str) -> str:
        """Raises ValueError for what would not be read back as it is."""
        if not _PLAIN.fullmatch(new) or (not new and not self.quote):
            raise ValueError(f"{new!r} is no plain value")
        return f"{text[: self.start]}{self.quote}{new}{self.quote}{text[self.end :]}"


def name_of(path: tuple[str, ...]) -> str:
    last = path[-1]
    if last in _HOLDERS and len(path) > 1:
        last = path[-2]
    return bare_name(last)


class Unreadable(Exception):
    """The file is not what its name says; the message says where."""


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
