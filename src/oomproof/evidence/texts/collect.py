"""Reads texts of any kind and mix: every line goes to every parser, what it is shows in what they find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oomproof.evidence.facts import Missing
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.guards import GuardParser
from oomproof.evidence.texts.kernel import KernelParser
from oomproof.evidence.texts.reading import open_lines
from oomproof.evidence.texts.training import TrainingParser


@dataclass(frozen=True, slots=True)
class TextCase:
    """What the texts say. ``system`` is the kernel's and the guards' word, ``training`` the jobs' own."""

    sources: tuple[str, ...]
    system: tuple[Finding, ...] = ()
    training: tuple[Finding, ...] = ()
    progress: Progress = field(default_factory=Progress)
    last_line: str = ""
    missing: tuple[Missing, ...] = ()


def read_texts(paths: Iterable[str]) -> TextCase:
    """One case over all texts. Raises OomproofError for what cannot be read at all."""
    sources, system, training = [], [], []
    progress, last_line = Progress(), ""
    for path in paths:
        sources.append(path)
        kernel, guards, job = KernelParser(path), GuardParser(path), TrainingParser(path)
        for number, line in open_lines(path):
            kernel.feed(number, line)
            guards.feed(number, line)
            job.feed(number, line)
        found = [*kernel.finish(), *guards.finish()]
        system.extend(sorted(found, key=lambda each: each.line))
        training.extend(job.finish())
        if job.progress.line:
            progress = job.progress
        last_line = job.end or last_line
    return TextCase(tuple(sources), tuple(system), tuple(training), progress, last_line)
