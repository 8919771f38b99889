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
from oomproof.evidence.texts.reading import Lines, marked_lines, open_lines
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


def read_lines(source: str, lines: Iterable[tuple[int, str]], job: bool = True) -> TextCase:
    """One text, already opened. ``job`` False: only the kernel's and the guards' words are sought."""
    kernel, guards, training = KernelParser(source), GuardParser(source), TrainingParser(source)
    for number, line in lines:
        kernel.feed(number, line)
        guards.feed(number, line)
        if job:
            training.feed(number, line)
    system = sorted([*kernel.finish(), *guards.finish()], key=lambda each: each.line)
    told = tuple(training.finish())
    notes = lines.notes if isinstance(lines, Lines) else []  # known once all is read
    missing = tuple(Missing(source, _without_name(note), "copy or unpack it again") for note in notes)
    return TextCase((source,), tuple(system), told, training.progress, training.end, missing)


def _without_name(note: str) -> str:
    """A stream names its file at the beginning of what it notes; the reader is told which anyway."""
    return note[note.find("could be read") :] if "could be read" in note else note


def read_texts(paths: Iterable[str]) -> TextCase:
    """One case over all texts, each under its file's name, or its path where two have one name.
    Raises OomproofError for what cannot be read at all."""
    found: list[TextCase] = []
    paths = list(paths)
    names = [os.path.basename(path) for path in paths]
    for path, name in zip(paths, names if len(set(names)) == len(names) else paths, strict=True):
        if _is_large_kernel_log(path):
            anchors = (*kernel_anchors, *guard_anchors)
            found.append(read_lines(name, marked_lines(path, anchors, REPORT_STARTS, REPORT_END), job=False))
        else:
            found.append(read_lines(name, open_lines(path)))
    progress = [each.progress for each in found if each.progress.line]
    last_lines = [each.last_line for each in found if each.last_line]
    return TextCase(
        tuple(source for each in found for source in each.sources),
        tuple(one for each in found for one in each.system),
        tuple(one for each in found for one in each.training),
        progress[-1] if progress else Progress(),
        last_lines[-1] if last_lines else "",
        tuple(one for each in found for one in each.missing),
    )
