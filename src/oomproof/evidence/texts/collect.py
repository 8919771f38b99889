"""Reads texts of any kind and mix: every line goes to every parser, what it is shows in what they find."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from oomproof.evidence.facts import Missing
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.guards import ANCHORS as guard_anchors
from oomproof.evidence.texts.guards import GuardParser
from oomproof.evidence.texts.kernel import ANCHORS as kernel_anchors
from oomproof.evidence.texts.kernel import REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.reading import marked_lines, open_lines
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


_LARGE = 32 << 20
_KERNEL_LINE = re.compile(rb"^(?:<\d+>)?\[ *\d+\.\d+\]|^\d+,\d+,\d+,|\bkernel: ")


def _is_large_kernel_log(path: str) -> bool:
    """A kernel log too large to read every line of: only what an anchor marks is read then, at grep's speed."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) < _LARGE:
            return False
        with open(path, "rb") as file:
            lines = file.read(1 << 18).splitlines()
    except OSError:
        return False
    return sum(_KERNEL_LINE.search(line[:200]) is not None for line in lines) > 0.5 * len(lines)


def read_texts(paths: Iterable[str]) -> TextCase:
    """One case over all texts. Raises OomproofError for what cannot be read at all."""
    sources, system, training = [], [], []
    missing: list[Missing] = []
    progress, last_line = Progress(), ""
    for path in paths:
        sources.append(path)
        kernel, guards, job = KernelParser(path), GuardParser(path), TrainingParser(path)
        if _is_large_kernel_log(path):
            anchors = (*kernel_anchors, *guard_anchors)
            for number, line in marked_lines(path, anchors, REPORT_STARTS, REPORT_END):
                kernel.feed(number, line)
                guards.feed(number, line)
        else:
            lines = open_lines(path)
            for number, line in lines:
                kernel.feed(number, line)
                guards.feed(number, line)
                job.feed(number, line)
            # said once all is read, with the file's name in front
            notes = [note.removeprefix(f"{path} ") for note in lines.notes]
            missing.extend(Missing(path, note, "copy or unpack it again") for note in notes)
        found = [*kernel.finish(), *guards.finish()]
        system.extend(sorted(found, key=lambda each: each.line))
        training.extend(job.finish())
        if job.progress.line:
            progress = job.progress
        last_line = job.end or last_line
    return TextCase(tuple(sources), tuple(system), tuple(training), progress, last_line, tuple(missing))
