"""Lets a run go on that `oomproof pause` or the guard made stand still.

When the guard had paused it because memory was short, your word counts: it is not paused again in that shortage.

  oomproof resume big
"""

from __future__ import annotations

import argparse

from oomproof.cli.pause import CARD_SECONDS, living, tell
from oomproof.errors import OomproofError
from oomproof.guard import freezing
from oomproof.guard.actions import Actions, Errands
from oomproof.guard.gpu_pause import GpuPause
from oomproof.guard.job import Job
from oomproof.machine.gpu import Query
from oomproof.recording import runs
from oomproof.units import format_duration, format_size


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )


def run(arguments: argparse.Namespace) -> int:
    found = living(arguments.run)
    mark = found.frozen()
    job = Job(found.started())
    errands = Errands()
    try:
        if not mark and not job.freezer.is_frozen() and not GpuPause(found.attempt).paused:
            tell(f"{found.name} does not stand still; nothing to do")
            return 0
        actions = Actions(job, found.attempt, errands, [], by="user")
        actions.take("thaw", "oomproof resume")
        _give_the_card_again(found, job)
        freezing.remove_mark(found.attempt, str(mark.get("id") or ""))  # not that of a pause begun since
        tell(f"{found.name} goes on; follow it: oomproof logs -f {found.name}")
        if mark.get("by") == "guard":
            tell(
                f"it was paused for want of memory ({mark.get('why')}); it is not paused again in this shortage"
            )
    finally:
        errands.close()
        job.close()
    return 0


def _give_the_card_again(found: runs.Run, job: Job) -> None:
    """For one whose GPU memory was given back. Without room on the card it goes on standing still; nothing is lost."""
    pause = GpuPause(found.attempt)
    if not pause.paused:
        return
    result = pause.take_back(Query().answer(CARD_SECONDS).gpus)
    if result.done:
        tell(
            f"{format_size(result.size)} are on the card again, restored in {format_duration(result.seconds)}"
        )
    elif result.lost:
        raise OomproofError(
            f"{found.name} could not be restored: {result.problem}",
            "it will end with a CUDA error; start it again from its last checkpoint",
        )
    else:
        if found.frozen():
            job.freezer.freeze()
        raise OomproofError(
            f"{found.name} cannot go on yet: {result.problem}",
            f"make room on the card (nvidia-smi), then again: oomproof resume {found.name}",
        )
