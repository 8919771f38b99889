"""The same command, smaller: which argument says how many workers, how many fit, and the line to type. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from oomproof.evidence.case_file import CaseFile
from oomproof.leaf.command_lines import shell_line
from oomproof.records import dataclass, replace

_SAME_SAMPLE = 2.0  # seconds; loaders start new workers every epoch, only those of the end count
_SEEN = 0.5  # of what the job held
_SAME_SHORTAGE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """``count``: that lived at the end. ``each``: bytes of its own, 0: not known. ``held``: by the whole job at that moment."""

    count: int = 0
    each: int = 0
    held: int | None = None


def worker_figures(case: CaseFile, held: int | None) -> WorkerFigures:
    """``held``: what the job is known to have held. Samples tell pages of their own exactly, the kernel's list by an estimate, in which some
    may not be full yet; but a job that dies within a second of its workers' start was never sampled with them."""
    sampled = _sampled(case, held)
    return sampled if sampled.each else _of_kernel(case) or sampled


def _sampled(case: CaseFile, held: int | None) -> WorkerFigures:
    """Of workers that were seen before they had filled, nobody knows: what was seen of all processes is then far from what the job held."""
    newest = max((process.last for process in case.samples.processes.values()), default=0.0)
    alive = [process for process in case.samples.processes.values() if process.last >= newest - _SAME_SAMPLE]
    workers = [process for process in alive if process.role == "worker"]
    shares = [worker.share for worker in workers if worker.share is not None]
    each = sum(shares) // len(shares) if shares and len(shares) == len(workers) else 0
    seen = sum(process.used for process in alive)
    known = held is None or seen >= _SEEN * held
    return WorkerFigures(
        len(workers), each if known else 0, case.samples.job.used if case.samples.job is not None else None
    )


def _of_kernel(case: CaseFile) -> WorkerFigures | None:
    """By the reports of the last shortage: the kernel takes workers one by one. Its first list shows all of them, a later one how large they
    became."""
    kills = [kill for kill in case.kernel.our_kills if kill.sure]
    last = max((kill.time for kill in kills), default=0.0)
    jobs = [kill.job for kill in kills if kill.job is not None and last - kill.time <= _SAME_SHORTAGE]
    first = max(jobs, key=lambda job: job.workers, default=None)
    if first is None or not first.workers:
        return None
    each = max(job.each for job in jobs)
    return WorkerFigures(first.workers, each, max(first.held, first.workers * each))


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
