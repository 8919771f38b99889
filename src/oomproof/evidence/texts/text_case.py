"""Reads texts of any kind and mix: every line goes to every parser, what it is shows in what they find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from oomproof.causes import cause_of
from oomproof.evidence.case_file import Missing
from oomproof.evidence.log_file import LogFile
from oomproof.evidence.run_settings import command_in
from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.beliefs import ANCHORS as BELIEF_ANCHORS
from oomproof.evidence.texts.beliefs import beliefs_in
from oomproof.evidence.texts.collected_lines import Collected
from oomproof.evidence.texts.finding import Finding, Progress
from oomproof.evidence.texts.guard_parser import ANCHORS as guard_anchors
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.kernel_parser import ANCHORS as kernel_anchors
from oomproof.evidence.texts.kernel_parser import CUT_ANCHORS, REPORT_END, REPORT_STARTS, KernelParser
from oomproof.evidence.texts.kill_history import JobLog, dated, of_others, told_once
from oomproof.evidence.texts.line_gate import AFTER_A_FAILURE, GATE_BEYOND_ASCII
from oomproof.evidence.texts.log_tail import SYSTEM
from oomproof.evidence.texts.long_texts import Marks, Skimmed
from oomproof.evidence.texts.newest_first import Ordered
from oomproof.evidence.texts.notebooks import Outputs
from oomproof.evidence.texts.program_sources import Reported
from oomproof.evidence.texts.quoted_source import Examples
from oomproof.evidence.texts.run_restarts import ANNOUNCING
from oomproof.evidence.texts.screen_lines import Unwrapped
from oomproof.evidence.texts.training_parser import PASSED_OVER, TrainingParser
from oomproof.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class TextCase:
    """What the texts say. ``system`` is the kernel's and the guards' word, ``training`` the jobs' own; ``others`` are
    kills that another text tells and that cannot be of the job."""

    sources: tuple[str, ...]
    system: tuple[Finding, ...] = ()
    training: tuple[Finding, ...] = ()
    progress: Progress = field(default_factory=Progress)
    last_line: str = ""
    command: tuple[str, ...] = ()  # the training's, where the opening of a text tells it
    missing: tuple[Missing, ...] = ()
    others: tuple[Finding, ...] = ()
    system_logs: tuple[str, ...] = ()  # those of the sources that are the kernel's or the journal's
    beliefs: frozenset[str] = frozenset()  # supposed cures that the texts mention
    no_log: bool = False  # people's words only: a post without any line that a program printed
    log_file: LogFile | None = None  # what this machine knows of the training log, where it was asked


_ANCHORS = (*kernel_anchors, *guard_anchors)
_SHORT = shortest((*CUT_ANCHORS, *guard_anchors))
_SYSTEM_MARKS = Marks.of(_ANCHORS, REPORT_STARTS, REPORT_END)
_AFTER = tuple(anchor for anchor in AFTER_A_FAILURE if anchor != "raining ")  # which stands beside most bars
_QUOTES = ("@@ -", "```")
_MARKS = Marks.of(
    (*_SHORT, *GATE_BEYOND_ASCII, *_AFTER, *ANNOUNCING, *BELIEF_ANCHORS, *_QUOTES),
    REPORT_STARTS,
    REPORT_END,
)
_STARTERS = ("slurm", "kubelet", "container", "exit-code")
_OPENING = 200  # lines of each text
_LINE = 400  # characters of a line that may name a cure
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


def _of_an_attempt(finding: Finding) -> bool:
    """Who starts jobs again tells of one attempt; the kernel and its guards tell of a process that is gone."""
    return cause_of(finding.cause).killed_by == "engine" or finding.guard.by in _STARTERS


def _of_last_run(
    system: list[Finding], training: list[Finding], opened: int
) -> tuple[list[Finding], list[Finding]]:
    """Of a job's log with several runs in it: what ended an earlier one is no death of the last, if that had its own."""
    roots = [finding for finding in training if finding.job.role == "root"]
    deaths = [finding for finding in system if finding.cause != "not-a-crash"]
    if not opened or not any(finding.line > opened for finding in (*roots, *deaths)):
        return system, training
    if any(finding.line > opened for finding in roots):
        return [finding for finding in system if finding.line > opened], training
    return system, [_as_noise(finding) if finding.line < opened else finding for finding in training]


def _as_noise(finding: Finding) -> Finding:
    return replace(finding, job=replace(finding.job, role="noise"))


def _as_it_is(finding: Finding) -> Finding:
    return finding


def read_texts(paths: Iterable[str]) -> TextCase:
    """One case over all texts. Raises OomproofError for what cannot be read at all."""
    sources: list[str] = []
    system: list[Finding] = []
    training: list[Finding] = []
    missing: list[Missing] = []
    command: tuple[str, ...] = ()
    logs: list[JobLog] = []
    system_logs: list[str] = []
    beliefs: set[str] = set()
    progress, last_line = Progress(), ""
    posts = 0
    for path in paths:
        sources.append(path)
        kernel, guards, job = KernelParser(path), GuardParser(path), TrainingParser(path)
        true: Callable[[Finding], Finding] = _as_it_is
        raw = Skimmed(path, _MARKS, _SYSTEM_MARKS)
        if raw.kernel_only:
            for number, line in raw:
                kernel.feed(number, line)
                guards.feed(number, line)
        else:
            lines = Ordered(Collected(Unwrapped(Reported(Outputs(raw)))))
            true = lines.true
            examples = Examples()
            last = 0
            for batch in _batches(lines):
                if batch[-1][0] - last > PASSED_OVER:
                    examples = Examples()
                last = batch[-1][0]
                batch = [(number, "" if examples.inside(line) else line) for number, line in batch]
                if not command and batch[0][0] <= _OPENING:
                    command = command_in(line for _, line in batch)
                _feed_system(kernel, guards, batch)
                beliefs |= beliefs_in("\n".join([line[:_LINE] for _, line in batch]))
                for number, line in batch:
                    job.feed(number, line)
                raw.look_for(job.openings)
            # said once all is read, with the file's name in front
            notes = [note.removeprefix(f"{path} ") for note in raw.notes]
            missing.extend(
                Missing(path, note, "copy or unpack it again, or give only the part around the death")
                for note in notes
            )
        findings = [true(finding) for finding in (*kernel.finish(), *guards.finish())]
        told = [true(finding) for finding in job.finish()]
        findings = [
            finding
            for finding in findings
            if not (_of_an_attempt(finding) and job.finished_after(finding.line))
        ]
        written = _written(path)
        findings, told = _of_last_run(findings, told, job.opened)
        posts += job.is_post and not findings
        system.extend(dated(sorted(findings, key=lambda finding: finding.sort_key), written or time.time()))
        known = {finding.line for finding in findings}
        # the kernel's own line is no complaint of a job
        told = [finding for finding in told if finding.line not in known or finding.cause != "other-error"]
        training.extend(told)
        if not findings and (told or job.progress.text):
            pids = tuple(pid for finding in told for pid in finding.pids)
            logs.append(JobLog(path, job.last_date(), written, pids))
        if job.progress.line and (job.progress.text or not progress.text):
            # a heading alone does not outdo another text's steps
            progress = replace(job.progress, source=path)
        elif not job.end or SYSTEM.search(job.end[:200]):
            system_logs.append(path)
        if not findings or not last_line:  # a kernel's log behind it does not hide how the job's own ended
            last_line = job.end or last_line
    system = told_once(system)
    others = of_others(system, logs)
    return TextCase(
        tuple(sources),
        tuple(finding for finding in system if finding not in others),
        tuple(training),
        progress,
        last_line,
        command,
        tuple(missing),
        tuple(others),
        tuple(system_logs),
        frozenset(beliefs),
        no_log=posts == len(sources),
    )


def _written(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime if path != "-" else None
    except OSError:
        return None
