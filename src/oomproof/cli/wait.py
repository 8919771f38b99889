"""Waits for a run to end and exits with the job's own status; 75 when it gave up waiting for room.

oomproof wait big && ./next-step.sh
"""

from __future__ import annotations

import argparse
import sys
import time

from oomproof.cli.exit_status import exit_status
from oomproof.errors import NOT_NOW, OomproofError
from oomproof.printable import coloured_stream
from oomproof.recording import run_folders

_TICK = 0.1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="id, part of an id, or name (default: the newest)"
    )


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find_here(arguments.run)
    while target.waits():
        time.sleep(_TICK)
    while target.folder.exists() and (target.keeper_lives() or target.state() == "starting"):
        time.sleep(_TICK)
    if not target.folder.exists():
        raise OomproofError(f"{target.name} gave up waiting: it was never started", "", NOT_NOW)
    # The guard judges a moment after the keeper has gone; without one, this is how it looks from here.
    while target.guard_lives():
        time.sleep(_TICK)
    from oomproof.diagnosis.conclusion import conclusion_of
    from oomproof.reports.verdict_text import fitted, three_lines

    told = conclusion_of(target)
    if told is not None:
        print(
            fitted(three_lines(told.verdict), sys.stderr, told.verdict.kind.tone),
            file=coloured_stream(sys.stderr),
        )
    return exit_status(target, told)
