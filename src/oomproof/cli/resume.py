"""Resumes a run that `oomproof pause` or the guard paused, or a job of yours that a guard paused although it was not started
by oomproof.

When the guard had paused it because memory was short, your word counts: it is not paused again in that shortage.

  oomproof resume big
  oomproof resume 48213       the pid of a job that was not started by oomproof
  oomproof resume --all
"""

from __future__ import annotations

import argparse
import os

from oomproof.cli.command_parser import add_run
from oomproof.cli.pause import CARD_SECONDS, live_run
from oomproof.errors import USAGE, OomproofError
from oomproof.guard import freezer
from oomproof.guard.gpu_pause import GpuPause
from oomproof.guard.guard_actions import Actions, TaskThread
from oomproof.guard.job_handle import Job
from oomproof.guard.resumer import resume_tree
from oomproof.leaf.action_kinds import RESUME
from oomproof.leaf.proc_files import owner_of
from oomproof.ledger import paused_jobs
from oomproof.ledger.paused_jobs import PausedJob
from oomproof.machine.gpu import Query
from oomproof.printable import tell
from oomproof.recording import run_folders
from oomproof.units import format_duration, format_size

_STATES = ("paused", "unguarded")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest that is paused", "; or the pid of a paused job")
    parser.add_argument("--all", action="store_true", help="everything of yours that is paused")


def run(arguments: argparse.Namespace) -> int:
    if arguments.all:
        if arguments.run:
            raise OomproofError("--all resumes everything", "leave out the name, or --all", USAGE)
        return _resume_all()
    if (job := _paused_job(arguments.run)) is not None:
        _resume_job(job)
        return 0
    return _resume_run(live_run(arguments.run or _newest_paused(), states=_STATES))


def _resume_all() -> int:
    """One that cannot be resumed, such as a run whose card is full, does not keep the others from it."""
    jobs = [job for job in paused_jobs.read() if _is_mine(job)]
    runs = [run for run in run_folders.list_runs() if run.state() in _STATES and run.paused()]
    status = 0
    for job in jobs:
        _resume_job(job)
    for paused in runs:
        try:
            _resume_run(live_run(paused.id, states=_STATES))
        except OomproofError as error:
            tell(str(error))
            status = error.status
    if not jobs and not runs:
        tell("nothing is paused")
    return status


def _paused_job(text: str | None) -> PausedJob | None:
    """A job that was not started by us, named by its pid; without a name the only thing that is paused."""
    jobs = paused_jobs.read()
    if text is None:
        jobs = [job for job in jobs if _is_mine(job)]
        return jobs[-1] if jobs and _newest_paused() is None else None
    return next((job for job in jobs if text == str(job.pid)), None)


def _is_mine(job: PausedJob) -> bool:
    owner = owner_of(job.pid)
    return owner is None or os.getuid() in (0, owner)  # None: it has ended


def _resume_job(job: PausedJob) -> None:
    if not _is_mine(job):
        raise OomproofError(
            f"{job.name} (pid {job.pid}) is another user's", "its user, or root, can resume it"
        )
    resume_tree(job.pid, job.start, job.members, job.skip)
    paused_jobs.forget(job)
    tell(f"{job.name} (pid {job.pid}) resumed; it is not paused again by {job.by}")


def _resume_run(target: run_folders.Run) -> int:
    mark = target.pause_mark()
    job = Job(target.started())
    task_thread = TaskThread()
    try:
        if not mark and not job.freezer.is_paused() and not GpuPause(target.attempt).paused:
            tell(f"{target.name} is not paused; nothing to do")
            return 0
        actions = Actions(job, target.attempt, task_thread, [], by="user")
        if GpuPause(target.attempt).paused:
            # a guard that sees the pause only now must not pause it again
            freezer.mark_moving(target.attempt, True)
        actions.take(RESUME, "oomproof resume")
        _restore_gpu_memory(target, job)
        freezer.remove_mark(target.attempt, str(mark.get("id") or ""))  # not that of a pause begun since
        # the output of one that was adopted is not ours
        follow = "" if target.info.get("adopted") else f"; follow it: oomproof logs -f {target.name}"
        tell(f"{target.name} resumed{follow}")
        if mark.get("by") == "guard":
            tell(
                f"it was paused for lack of memory ({mark.get('why')}); it is not paused again in this shortage"
            )
    finally:
        task_thread.close()
        job.close()
    return 0


def _newest_paused() -> str | None:
    """An unguarded run is paused or not: a newer one that is not must not hide the one that is meant."""
    runs = run_folders.list_runs()
    return next((run.id for run in runs if run.state() in _STATES and run.paused()), None)


def _restore_gpu_memory(run: run_folders.Run, job: Job) -> None:
    """For one whose GPU memory was given back. Without free memory on the card it stays paused; nothing is lost."""
    pause = GpuPause(run.attempt)
    if not pause.paused:
        return
    result = pause.take_back(Query().answer(CARD_SECONDS).gpus)
    if result.done:
        tell(
            f"{format_size(result.size)} are on the card again, restored in {format_duration(result.seconds)}"
        )
    elif result.lost:
        raise OomproofError(
            f"{run.name} could not be restored: {result.problem}",
            "it will end with a CUDA error; start it again from its last checkpoint",
        )
    else:
        if run.pause_mark():
            job.freezer.pause()
            freezer.mark_moving(run.attempt, False)
        raise OomproofError(
            f"{run.name} cannot resume yet: {result.problem}",
            f"free memory on the card (nvidia-smi), then again: oomproof resume {run.name}",
        )
