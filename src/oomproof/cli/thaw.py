"""Lets a run go on that `oomproof freeze` or the guard made stand still.

When the guard had paused it because memory was short, your word counts: it is not paused again in that shortage.

  oomproof thaw big
"""

from __future__ import annotations

import argparse

from oomproof.cli.freeze import living, tell
from oomproof.guard import freezing
from oomproof.guard.actions import Actions, Errands
from oomproof.guard.job import Job


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
        if not mark and not job.freezer.is_frozen():
            tell(f"{found.name} does not stand still; nothing to do")
            return 0
        Actions(job, found.attempt, errands, [], by="user").take("thaw", "oomproof thaw")
        freezing.remove_mark(found.attempt)
        tell(f"{found.name} goes on; follow it: oomproof logs -f {found.name}")
        if mark.get("by") == "guard":
            tell(
                f"it was paused for want of memory ({mark.get('why')}); it is not paused again in this shortage"
            )
    finally:
        errands.close()
        job.close()
    return 0
