"""Pauses a run until `oomproof resume`: nothing is lost, it continues where it was.

What it holds stays in memory, unless there is swap on a disk and the kernel can push it out there (cgroup v2, Linux 5.19).
The guard pauses and resumes by itself when memory runs short; a run that you paused is left to you.
With --gpu its GPU memory is given back as well: the driver (570 or newer) moves it into the job's host memory, another job
can have the card, and `oomproof resume` restores it. Without --gpu a paused job keeps what it holds of the card.

  oomproof pause big
  oomproof pause big --gpu
  oomproof resume big
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Collection

from oomproof.cli.command_parser import add_run
from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.guard import freezer, pause_timeouts
from oomproof.guard.gpu_pause import GpuPause, Result, held_by, host_memory_problem
from oomproof.guard.guard_actions import Actions, TaskThread
from oomproof.guard.host_view import HostView
from oomproof.guard.job_handle import Job
from oomproof.guard.swap_out import PushOut
from oomproof.leaf.action_kinds import PAUSE
from oomproof.machine import swap
from oomproof.machine.gpu import Query
from oomproof.printable import tell
from oomproof.recording import run_folders
from oomproof.units import format_duration, format_size

CARD_SECONDS = 10.0  # a driver that has to wake its cards takes some
_PAUSE_SECONDS = 10.0  # a process that waits for a slow disk stops when the disk has answered


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest that runs")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="give its GPU memory back too, into its host memory (driver 570 or newer)",
    )


def run(arguments: argparse.Namespace) -> int:
    target = live_run(arguments.run, states=("running", "unguarded"))
    mark = target.pause_mark()
    if mark.get("by") == "user" and not (arguments.gpu and not GpuPause(target.attempt).paused):
        tell(f"{target.name} is already paused; to resume it: oomproof resume {target.name}")
        return 0
    job = Job(target.started())
    task_thread = TaskThread()
    try:
        # first: from now on it is not the guard's
        pause = freezer.new_id()
        freezer.write_mark(target.attempt, "user", "oomproof pause", pause=pause, moving=arguments.gpu)
        if arguments.gpu:
            tell(_give_gpu_back(target, job))
            freezer.write_mark(target.attempt, "user", "oomproof pause", pause=pause)
        Actions(job, target.attempt, task_thread, [], by="user").take(PAUSE, "oomproof pause")
        if not job.freezer.wait_paused(_PAUSE_SECONDS):
            tell(
                f"not all of {target.name} is paused yet: one of its processes waits inside the kernel; see "
                f"ps -o pid,stat,wchan:30,cmd -p {job.leader}"
            )
        tell(f"{target.name} is paused ({job.freezer.how}); {_freed(job)}")
        for timeout in pause_timeouts.look(job.pids(), target.argv, target.info.get("env") or {}):
            tell(f"while it is paused: {timeout.text}")
        tell(f"to resume it: oomproof resume {target.name}")
    finally:
        task_thread.close()
        job.close()
    return 0


def live_run(text: str | None, status: int = OUR_FAILURE, states: Collection[str] = ()) -> run_folders.Run:
    """The run, which must have a job that lives and can be reached. One that has lost its keeper gets a new one."""
    run = run_folders.find_alive(text, states, status)
    if run.state() == "starting":
        raise OomproofError(f"{run.name} is just starting", "try again in a moment")
    if not run.keeper_lives():
        if not run.job_lives():
            raise OomproofError(
                f"{run.name} is not running ({run.state()})", "list what runs: oomproof runs", status
            )
        from oomproof.runner.stand_in import revive

        revive(run)
        tell(f"the keeper of {run.name} was killed; a new one has taken over")
    if not isinstance(run.started().get("job"), dict):
        raise OomproofError(
            f"the pids of {run.name} are not known: its started.json is missing or damaged",
            f"look for its processes: grep -ls OOMPROOF_RUN={run.id} /proc/[0-9]*/environ",
        )
    return run


def _give_gpu_back(run: run_folders.Run, job: Job) -> str:
    """Before it is paused: its own CUDA threads move the memory."""
    job.freezer.resume()  # harmless for one that runs
    settings = run.info.get("settings") or {}
    pids = job.pids()
    held = held_by(pids, Query().answer(CARD_SECONDS).gpus)
    size = sum(held.values())
    left = job.limit_left(job.memory())
    available = HostView().headroom()[0]
    problem = host_memory_problem(size, available, int(settings.get("floor", 0)), left)
    result = Result(False, problem=problem) if problem else GpuPause(run.attempt).give_back(pids, held)
    if not result.done:
        freezer.remove_mark(run.attempt)
        hint = (
            "it will end with a CUDA error"
            if result.lost
            else f"it keeps running; to pause it without the card: oomproof pause {run.name}"
        )
        raise OomproofError(f"the GPU memory of {run.name} cannot be given back: {result.problem}", hint)
    return (
        f"{format_size(result.size)} of GPU memory moved to its host memory in {format_duration(result.seconds)}; "
        "the card is free for others"
    )


def _freed(job: Job) -> str:
    """Pushes it out where that can be, and says what RAM won."""
    held = job.memory()
    size = f"{format_size(held.use)} of memory" if held else "memory"
    if not swap.disk(swap.read())[1]:
        return f"it keeps its {size}: there is no disk swap to push it out to"
    push = PushOut(job.reclaim)
    if not push.possible:
        return f"it keeps its {size}: pushing it out to swap needs cgroup v2 and Linux 5.19"
    freed: list[int] = []
    done = threading.Event()

    def finished(amount: int) -> None:
        freed.append(amount)
        done.set()

    push.start(job.memory, finished)
    done.wait()
    push.close()
    return f"pushed {format_size(freed[0])} of its {size} out to swap"
