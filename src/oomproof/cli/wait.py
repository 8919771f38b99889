"""Waits for a run to end and exits with the job's own status; 75 when it gave up waiting for room.

oomproof wait big && ./next-step.sh
"""

from __future__ import annotations

import argparse
import sys
import time

from oomproof.cli.status import exit_status
from oomproof.errors import NOT_NOW, OomproofError
from oomproof.recording import runs

_TICK = 0.1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )


def run(arguments: argparse.Namespace) -> int:
    found = runs.find_here(arguments.run)
    while found.waits():
        time.sleep(_TICK)
    while found.folder.exists() and (found.keeper_lives() or found.state() == "starting"):
        time.sleep(_TICK)
    if not found.folder.exists():
        raise OomproofError(f"{found.name} gave up waiting: it was never started", "", NOT_NOW)
    # The guard judges a moment after the keeper has gone; without one, this is how it looks from here.
    while found.guard_lives():
        time.sleep(_TICK)
    from oomproof.diagnosis.conclusion import conclusion_of
    from oomproof.reports.verdict import fitted, three_lines

    told = conclusion_of(found)
    if told is not None:
        print(fitted(three_lines(told.verdict), sys.stderr), file=sys.stderr)
    return exit_status(found, told)
