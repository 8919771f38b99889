"""Reads texts of any kind and mix: every line goes to every parser, what it is shows in what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from oomproof.evidence.case_file import Missing
from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.guard_parser import ANCHORS as guard_anchors
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.kernel_parser import ANCHORS as kernel_anchors
from oomproof.evidence.texts.kernel_parser import REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.line_reader import marked_lines
from oomproof.evidence.texts.long_texts import is_large_kernel_log, long_lines
from oomproof.evidence.texts.newest_first import Ordered
from oomproof.evidence.texts.training_parser import TrainingParser
from oomproof.records import dataclass, field


@dataclass(frozen=True, slots=True)
class TextCase:
    """What the texts say. ``system`` is the kernel's and the guards' word, ``training`` the jobs' own."""

    sources: tuple[str, ...]
    system: tuple[Finding, ...] = ()
    training: tuple[Finding, ...] = ()
    progress: Progress = field(default_factory=Progress)
    last_line: str = ""
    opening: tuple[str, ...] = ()  # the first lines of the jobs' own texts, where they tell their command
    missing: tuple[Missing, ...] = ()


_ANCHORS = (*kernel_anchors, *guard_anchors)
_SHORT = shortest(_ANCHORS)
_OPENING = 200  # lines of each text
_BATCH = 128  # lines searched for anchors in one go: a tenth of the work of searching each


def _batches(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rest = iter(lines)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _feed_system(kernel: KernelParser, guards: GuardParser, batch: list[tuple[int, str]]) -> None:
    if not kernel.reading(batch[0][0]) and not guards.reading():
        text = "\n".join([line for _, line in batch])
        if not any(anchor in text for anchor in _SHORT):
            return
    for number, line in batch:
        kernel.feed(number, line)
        guards.feed(number, line)


def _as_it_is(finding: Finding) -> Finding:
    return finding


def read_texts(paths: Iterable[str]) -> TextCase:
    """One case over all texts. Raises OomproofError for what cannot be read at all."""
    sources: list[str] = []
    system: list[Finding] = []
    training: list[Finding] = []
    missing: list[Missing] = []
    opening: list[str] = []
    progress, last_line = Progress(), ""
    for path in paths:
        sources.append(path)
        kernel, guards, job = KernelParser(path), GuardParser(path), TrainingParser(path)
        true: Callable[[Finding], Finding] = _as_it_is
        if is_large_kernel_log(path):
            for number, line in marked_lines(path, _ANCHORS, REPORT_STARTS, REPORT_END):
                kernel.feed(number, line)
                guards.feed(number, line)
        else:
            raw = long_lines(path, _ANCHORS, REPORT_STARTS, REPORT_END)
            lines = Ordered(raw)
            true = lines.true
            for batch in _batches(lines):
                opening += [line[:4000] for number, line in batch if number <= _OPENING]
                _feed_system(kernel, guards, batch)
                for number, line in batch:
                    job.feed(number, line)
            # said once all is read, with the file's name in front
            notes = [note.removeprefix(f"{path} ") for note in raw.notes]
            missing.extend(Missing(path, note, "copy or unpack it again") for note in notes)
        findings = [true(finding) for finding in (*kernel.finish(), *guards.finish())]
        system.extend(sorted(findings, key=lambda finding: finding.sort_key))
        training.extend(true(finding) for finding in job.finish())
        if job.progress.line and (job.progress.text or not progress.text):
            progress = job.progress  # a heading alone does not outdo another text's steps
        last_line = job.end or last_line
    return TextCase(
        tuple(sources), tuple(system), tuple(training), progress, last_line, tuple(opening), tuple(missing)
    )
