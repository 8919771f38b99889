"""Runs of ours, logs, and the kills in a system's log, as the endings in which patterns are sought.

What is damaged is left out or empty."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from oomproof.causes import cause_of
from oomproof.diagnosis.cause_texts import job_of
from oomproof.diagnosis.conclusion import verdict_of
from oomproof.diagnosis.death_patterns import Ending, MemoryAtEnd
from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.silent_end import is_running, with_log_file
from oomproof.diagnosis.verdict import Verdict
from oomproof.errors import OomproofError
from oomproof.evidence import run_settings
from oomproof.evidence.json_files import part, string
from oomproof.evidence.log_file import closing_text, opening_lines
from oomproof.evidence.recording_tail import last_samples
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.kernel_report import holds_one_job
from oomproof.evidence.texts.kill_history import (
    SAME_KILL,
    JobLog,
    may_explain,
    oldest_first,
    told_once,
    wall_of,
)
from oomproof.evidence.texts.progress import is_finish
from oomproof.evidence.texts.task_jobs import family_of
from oomproof.evidence.texts.text_case import TextCase, read_texts
from oomproof.recording import run_folders, run_summary
from oomproof.recording.attempt import Attempt
from oomproof.recording.series import JobRow
from oomproof.records import replace

_TREND = 1800.0  # seconds before the end that say whether it still grew
_POINTS, _SECONDS = 8, 10.0  # of samples: fewer tell nothing


def runs_of(name: str) -> list[run_folders.Run]:
    """All runs of that name, id or script, oldest first. A name only one run has stands for its script.
    Raises OomproofError when there is none."""
    everything = run_folders.list_runs()
    matching = [run for run in everything if name in (run.info.get("name"), run.id)]
    matching = matching or [
        run for run in everything if name in (_script(run), os.path.basename(_script(run)))
    ]
    if not matching:
        matching = [run_folders.find(name)]
    if len(matching) == 1 and (script := _script(matching[0])):
        matching = [run for run in everything if _script(run) == script]
    return sorted(matching, key=lambda run: (run.created, run.id))


def _script(run: run_folders.Run) -> str:
    return string(part(run.info, "code").get("script")) or ""


def endings_of_runs(listed: Iterable[run_folders.Run]) -> list[Ending]:
    """Every attempt that has ended, with what its recording and its output tell."""
    endings = []
    listed = list(listed)
    # runs of one name are told apart by their ids
    names = {run.id: run.name for run in listed}
    alike = len(set(names.values())) < len(names)
    for run in listed:
        attempts = run.attempts()
        for attempt in attempts:
            label = run.id if alike else run.name
            label += f"/{attempt.number}" if len(attempts) > 1 else ""
            ending = _of_attempt(run.at(attempt.number) if len(attempts) > 1 else run, attempt, label)
            if ending is not None:
                endings.append(ending)
    return endings


def _of_attempt(run: run_folders.Run, attempt: Attempt, label: str) -> Ending | None:
    verdict = verdict_of(attempt)
    if verdict.cause == "not-a-crash" or verdict.kind.stopped_by == "person":
        return None  # still running, or ended because somebody wished it
    started, exited, recording = attempt.started(), attempt.exit(), attempt.recording()
    begin, end = started.get("wall") or run.created or None, exited.get("wall")
    last = recording.last_sample_time()
    if end is None and last is not None and recording.meta:
        end = last + recording.wall_offset
    text = _text(attempt.output_file)
    settings = run_settings.options(run.argv)
    code = {key: str(value) for key, value in part(run.info, "code").items() if isinstance(value, str)}
    progress = text.progress if text else None
    return Ending(
        label=label,
        cause=verdict.cause,
        died=not verdict.kind.good,
        wall=end or begin,
        device=run_settings.device(settings) or verdict.kind.device or _gpu_used(attempt),
        step=verdict.step if verdict.step is not None else progress.training_step if progress else None,
        total=progress.total if progress else None,
        epoch=progress.epoch if progress else None,
        phase=verdict.phase if verdict.phase != "unknown" else progress.phase if progress else "unknown",
        last_line=text.last_line if text else "",
        uptime=run_summary.lasted(started, exited, run.place[0], last, recording.wall_offset),
        memory=_memory(attempt, verdict),
        settings=settings,
        code=code,
    )


def _text(path: Path) -> TextCase | None:
    try:
        return read_texts([str(path)])
    except (OomproofError, OSError):
        return None  # no output was kept


def _gpu_used(attempt: Attempt) -> str | None:
    used = [sample.index for sample in last_samples(attempt.recording_file).samples.gpus if sample.job_used]
    return f"gpu {', '.join(map(str, used))}" if used else None


def _memory(attempt: Attempt, verdict: Verdict) -> MemoryAtEnd | None:
    seen = last_samples(attempt.recording_file).samples
    if seen.job is None:
        return None
    with attempt.recording().series() as series:
        points = [(row.t, row.use) for row in series.newest(JobRow, _TREND)]
    growing, rate = None, 0.0
    if len(points) >= _POINTS and points[-1][0] - points[0][0] >= _SECONDS:
        growing = seen.growth is not None
        rate = seen.growth.bytes_per_second if seen.growth is not None else 0.0
    available = seen.host.available if seen.host else None
    killed = verdict.victim.held if verdict.victim is not None and verdict.kind.kernel_kill else 0
    if (
        killed > seen.job.used
    ):  # the job lived on without what was killed: its last sample is not of that moment
        return MemoryAtEnd(killed)
    return MemoryAtEnd(seen.job.used, available, seen.job.headroom, rate, growing)


def endings_of_texts(paths: Iterable[str]) -> list[Ending]:
    """One for each log of a run, and one for each kill that a system's log tells, however often. Raises OomproofError
    for what cannot be read at all."""
    cases = [(path, read_texts([path])) for path in paths]
    kills = [finding for _, case in cases if _is_history(case) for finding in case.system]
    logs = [_of_text(path, case) for path, case in cases if not _is_history(case)]
    endings, left = _explained(logs, kills)
    return [*endings, *_kill_endings(left)]


def _of_text(path: str, case: TextCase) -> tuple[Ending, JobLog]:
    case = with_log_file(case)
    verdict = judge_texts(case)
    opening, tail = opening_lines(path), closing_text(path)
    settings = run_settings.told_in(opening)
    begin, end = run_settings.first_date("\n".join(opening[:200])), run_settings.last_date(tail)
    progress = case.progress
    cause, died = verdict.cause, not verdict.kind.good
    # whoever asks what several logs have in common gives those of dead jobs: one that counts without an end is one too
    stopped = progress.step is not None and progress.step != progress.total and not is_running(case)
    if cause == "not-a-crash" and stopped and not any(map(is_finish, tail.splitlines()[-30:])):
        cause, died = "silent-end", True
    ending = Ending(
        label=os.path.basename(path) if path != "-" else "-",
        cause=cause,
        died=died,
        wall=end,  # never the file's own date: a copy does not keep it
        device=run_settings.device(settings) or verdict.kind.device or None,
        step=progress.training_step,
        total=progress.total,
        epoch=progress.epoch,
        phase=verdict.phase,
        last_line=case.last_line,
        uptime=end - begin if begin is not None and end is not None and end > begin else progress.uptime,
        settings=settings,
    )
    return ending, JobLog(path, end)


def _is_history(case: TextCase) -> bool:
    """A kernel's or a journal's log that tells of kills: not the log of one run."""
    return case.progress.step is None and any(
        cause_of(finding.cause).kill and finding.victim is not None for finding in case.system
    )


def _kill_endings(findings: Sequence[Finding]) -> list[Ending]:
    """Oldest first. A worker and its parent, or a whole cgroup, killed in one shortage are one death."""
    deaths: list[list[Finding]] = []
    for finding in oldest_first(told_once(findings)):
        if not cause_of(finding.cause).kill or finding.victim is None or finding.victim.pid is None:
            continue
        last = next((death for death in reversed(deaths) if _one_death(death[-1], finding)), None)
        if last is not None:
            last.append(finding)
        else:
            deaths.append([finding])
    return [_of_kill(max(death, key=_held)) for death in deaths]


def _one_death(first: Finding, later: Finding) -> bool:
    if first.seconds is None or later.seconds is None or not 0 <= later.seconds - first.seconds <= SAME_KILL:
        return False
    mine, victim = job_of(first), later.victim
    if mine is not None and victim is not None and victim.pid in mine.pids:
        return True
    where, other = (finding.kernel.task_memcg or finding.cgroup for finding in (first, later))
    return where == other and holds_one_job(where)


def _held(finding: Finding) -> int:
    job, victim = job_of(finding), finding.victim
    own = (victim.anon_rss or 0) + (victim.shmem_rss or 0) if victim is not None else 0
    return job.held if job is not None and len(job.pids) > 1 else own or finding.guard.held or 0


def _of_kill(finding: Finding) -> Ending:
    victim, wall = finding.victim, wall_of(finding)
    assert victim is not None
    name = victim.name or "?"
    return Ending(
        label=f"{name} ({victim.pid})",
        cause=finding.cause,
        wall=wall,
        since_boot=finding.seconds if wall is None else None,
        memory=MemoryAtEnd(_held(finding) or None, finding.kernel.machine.free),
        job=family_of(name),
    )


def _explained(
    logs: Sequence[tuple[Ending, JobLog]], kills: Sequence[Finding]
) -> tuple[list[Ending], list[Finding]]:
    """(logs' endings, with the kill or crash that ended each; those that are of none of them). A date ties them, or that
    there is one killed job and one kill, as for `why` of the two."""
    left = list(kills)
    endings = []
    killed = [ending for ending, _ in logs if cause_of(ending.cause).unexplained]
    alone = len(killed) == 1 and len(_kill_endings(kills)) == 1
    for ending, log in logs:
        dated = [kill for kill in left if wall_of(kill) is not None and log.told is not None]
        possible = left if alone and cause_of(ending.cause).unexplained else dated
        mine = [kill for kill in possible if not cause_of(kill.cause).good and may_explain(kill, log)]
        if ending.died and mine:
            kill = min(mine, key=lambda kill: abs((wall_of(kill) or 0.0) - (log.told or 0.0)))
            left = [other for other in left if other not in mine]
            memory = ending.memory or _of_kill(kill).memory
            ending = replace(ending, cause=kill.cause, wall=wall_of(kill), memory=memory)
        endings.append(ending)
    return endings, left
