"""Makes a run stand still until `oomproof resume`: nothing is lost, it goes on where it was.

What it holds stays in memory, unless there is swap on a disk and the kernel can push it out there (cgroup v2, Linux 5.19).
The guard pauses and resumes by itself when memory runs short; a run that you paused is left to you.
With --gpu its GPU memory is given back as well: the driver (570 or newer) moves it into the job's host memory, another job
can have the card, and `oomproof resume` restores it. Without --gpu a paused job keeps what it holds of the card.

  oomproof pause big
  oomproof pause big --gpu
  oomproof resume big

`oomproof freeze` and `oomproof thaw` are the older names of the two.
"""

from __future__ import annotations

import argparse
import sys
import threading

from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.guard import freezing, timeouts
from oomproof.guard.actions import Actions, Errands
from oomproof.guard.gpu_pause import GpuPause, Result, held_by, host_room_problem
from oomproof.guard.host_view import HostView
from oomproof.guard.job import Job
from oomproof.guard.push_out import PushOut
from oomproof.machine import swap
from oomproof.machine.gpu import Query
from oomproof.recording import runs
from oomproof.units import format_duration, format_size

CARD_SECONDS = 10.0  # a driver that has to wake its cards takes some
_STILL_SECONDS = 10.0  # a process that waits for a slow disk stands still when the disk has answered


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="give its GPU memory back too, into its host memory (driver 570 or newer)",
    )


def run(arguments: argparse.Namespace) -> int:
    found = living(arguments.run)
    mark = found.frozen()
    if mark.get("by") == "user" and not (arguments.gpu and not GpuPause(found.attempt).paused):
        tell(f"{found.name} stands still already; let it go on: oomproof resume {found.name}")
        return 0
    job = Job(found.started())
    errands = Errands()
    try:
        # first: from now on it is not the guard's
        pause = freezing.new_id()
        freezing.write_mark(found.attempt, "user", "oomproof pause", pause=pause, moving=arguments.gpu)
        if arguments.gpu:
            tell(_give_gpu_back(found, job))
            freezing.write_mark(found.attempt, "user", "oomproof pause", pause=pause)
        Actions(job, found.attempt, errands, [], by="user").take("freeze", "oomproof pause")
        if not job.freezer.wait_frozen(_STILL_SECONDS):
            tell(
                f"not all of {found.name} stands still yet: a process of it waits inside the kernel; see "
                f"ps -o pid,stat,wchan:30,cmd -p {job.leader}"
            )
        tell(f"{found.name} stands still ({job.freezer.how}); {_freed(job)}")
        for one in timeouts.look(job.pids(), found.argv, found.info.get("env") or {}):
            tell(f"while it stands still: {one.text}")
        tell(f"let it go on: oomproof resume {found.name}")
    finally:
        errands.close()
        job.close()
    return 0


def living(text: str | None, status: int = OUR_FAILURE) -> runs.Run:
    """The run, which must have a job that lives and can be reached. One that has lost its keeper gets a new one."""
    found = runs.find_here(text)
    if found.state() == "starting":
        raise OomproofError(f"{found.name} is just starting", "try again in a moment")
    if not found.keeper_lives():
        if not found.job_lives():
            raise OomproofError(
                f"{found.name} is not running ({found.state()})", "list what runs: oomproof runs", status
            )
        from oomproof.runner.stand_in import revive

        revive(found)
        tell(f"the process that kept {found.name} was killed; a new one keeps it from now on")
    if not isinstance(found.started().get("job"), dict):
        raise OomproofError(
            f"the pids of {found.name} are not known: its started.json is missing or damaged",
            f"look for its processes: grep -ls OOMPROOF_RUN={found.id} /proc/[0-9]*/environ",
        )
    return found


def tell(text: str) -> None:
    print(f"oomproof: {text}", file=sys.stderr)


def _give_gpu_back(found: runs.Run, job: Job) -> str:
    """Before it stands still: its own CUDA threads move the memory."""
    job.freezer.thaw()  # harmless for one that runs
    settings = found.info.get("settings") or {}
    pids = job.pids()
    held = held_by(pids, Query().answer(CARD_SECONDS).gpus)
    size = sum(held.values())
    left = job.limit_left(job.memory())
    available = HostView().room()[0]
    problem = host_room_problem(size, available, int(settings.get("floor", 0)), left)
    result = Result(False, problem=problem) if problem else GpuPause(found.attempt).give_back(pids, held)
    if not result.done:
        freezing.remove_mark(found.attempt)
        cure = (
            "it will end with a CUDA error"
            if result.lost
            else f"it runs on; without the card: oomproof pause {found.name}"
        )
        raise OomproofError(f"the GPU memory of {found.name} cannot be given back: {result.problem}", cure)
    return (
        f"{format_size(result.size)} of GPU memory went to its host memory in {format_duration(result.seconds)}; "
        "the card is free for others"
    )


def _freed(job: Job) -> str:
    """Pushes it out where that can be, and says what RAM won."""
    held = job.memory()
    size = format_size(held.use) if held else "what it holds"
    if not swap.disk(swap.read())[1]:
        return f"only its growth is stopped: there is no disk swap to push {size} out to"
    push = PushOut(job.reclaim)
    if not push.possible:
        return f"only its growth is stopped: pushing {size} out needs cgroup v2 and Linux 5.19"
    freed: list[int] = []
    done = threading.Event()

    def finished(amount: int) -> None:
        freed.append(amount)
        done.set()

    push.start(job.memory, finished)
    done.wait()
    push.close()
    return f"pushed {format_size(freed[0])} of {size} out to swap"
