"""The same command, smaller: which argument says how many workers, how many fit, and the line to type. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.records import dataclass

# timm and torchvision's examples say -j; Hugging Face says dataloader_num_workers; datasets.map says num_proc
WORKERS = re.compile(
    r"^(?:[a-z]+_)?(?:num_|n_|nb_|max_)?(?:workers|loader_workers|worker_processes)$|^num_proc$|^nw$|^j$"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """``--workers 16``, ``--workers=16`` or ``data.workers=16`` on a command line."""

    name: str  # as typed, with its dashes
    value: int
    at: int  # the word that holds the value
    joined: bool  # name and value are one word

    def typed(self, value: int) -> str:
        return f"{self.name}{'=' if self.joined else ' '}{value}"


def bare_name(name: str) -> str:
    """``batch_size`` of ``--batch-size`` and ``data.batch_size``."""
    return name.lstrip("-+~").rpartition(".")[2].replace("-", "_").lower()


def find_argument(argv: Sequence[str], pattern: re.Pattern[str] = WORKERS) -> Argument | None:
    """The argument with a whole number whose name fits, without dashes and prefix; the last wins, as in every parser."""
    found = None
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if not equals and name.startswith("-") and at + 1 < len(argv):
            value = argv[at + 1]
        key = bare_name(name)
        named = name.startswith("-") or (equals and re.match(r"[+~]{0,2}[A-Za-z_]", name))
        if named and pattern.match(key) and value.isdecimal() and len(value) < 6:
            found = Argument(name, int(value), at if equals else at + 1, bool(equals))
    return found


def with_value(argv: Sequence[str], argument: Argument, value: int) -> tuple[str, ...]:
    changed = argument.typed(value) if argument.joined else str(value)
    return (*argv[: argument.at], changed, *argv[argument.at + 1 :])


def workers_that_fit(workers: int, each: int, rest: int, available: int) -> int | None:
    """How many of ``workers`` fit into ``available`` bytes beside ``rest``; None where all of them do, or nothing is known
    of one. 0: the loader then runs in the main process."""
    if each <= 0 or workers <= 0 or rest + workers * each <= available:
        return None
    return max(0, min(workers - 1, (available - rest) // each))
