"""The same command, smaller: which argument says how many workers, how many fit, and the line to type. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from oomproof.leaf.command_lines import shell_line
from oomproof.records import dataclass, replace

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
    in_line: bool = False  # the word is a line of shell that holds both

    def typed(self, value: int) -> str:
        return f"{self.name}{'=' if self.joined else ' '}{value}"


def bare_name(name: str) -> str:
    """``batch_size`` of ``--batch-size`` and ``data.batch_size``."""
    return name.lstrip("-+~").rpartition(".")[2].replace("-", "_").lower()


def find_argument(argv: Sequence[str], pattern: re.Pattern[str] = WORKERS) -> Argument | None:
    """The argument with a whole number whose name fits, without dashes and prefix; the last wins, as in every parser."""
    if (line := shell_line(argv)) is not None:
        return _in_shell_line(argv, line, pattern)
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


def _in_shell_line(argv: Sequence[str], line: str, pattern: re.Pattern[str]) -> Argument | None:
    """The same in ``sh -c 'python train.py --workers 16'``, where it stands there once."""
    try:
        found = find_argument(shlex.split(line), pattern)
    except ValueError:  # a quote without its other half
        return None
    if found is None or len(_typed_in(line, found)) != 1:
        return None
    return replace(found, at=list(argv).index(line), in_line=True)


def _typed_in(line: str, argument: Argument) -> list[re.Match[str]]:
    return list(re.finditer(rf"(?<!\S){re.escape(argument.typed(argument.value))}(?![\w.])", line))


def with_value(argv: Sequence[str], argument: Argument, value: int) -> tuple[str, ...]:
    if argument.in_line:
        line = argv[argument.at]
        (typed,) = _typed_in(line, argument)
        changed = line[: typed.start()] + argument.typed(value) + line[typed.end() :]
        return (*argv[: argument.at], changed, *argv[argument.at + 1 :])
    changed = argument.typed(value) if argument.joined else str(value)
    return (*argv[: argument.at], changed, *argv[argument.at + 1 :])


def workers_that_fit(workers: int, each: int, rest: int, available: int) -> int | None:
    """How many of ``workers`` fit into ``available`` bytes beside ``rest``; None where all of them do, or nothing is known
    of one. 0: the loader then runs in the main process."""
    if each <= 0 or workers <= 0 or rest + workers * each <= available:
        return None
    return max(0, min(workers - 1, (available - rest) // each))
