"""Waits for a run to end and exits with the job's own status.

75 (not now, for want of memory) when it gave up waiting, or when the guard asked it to stop and it exited with code 0.

  oomproof wait big && ./next-step.sh
"""

from __future__ import annotations

import argparse
import sys
import time

from oomproof.cli.command_parser import add_run
from oomproof.errors import NOT_NOW, OomproofError
from oomproof.printable import coloured_stream
from oomproof.recording import run_folders

_TICK = 0.1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest, first of those that run")


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find_here(arguments.run, run_folders.ALIVE)
    # The guard judges a moment after the keeper has gone, and may begin another attempt; without one, this is how it looks from here.
    while target.folder.exists() and (
        target.waits() or target.keeper_lives() or target.state() == "starting" or target.guard_lives()
    ):
        time.sleep(_TICK)
    if not target.folder.exists():
        raise OomproofError(f"{target.name} gave up waiting: it was never started", "", NOT_NOW)
    from oomproof.cli.run_end import exit_status  # after the wait, which may take days
    from oomproof.diagnosis.conclusion import conclusion_of
    from oomproof.reports.verdict_text import at_end

    told = conclusion_of(target)
    if told is not None:
        print(at_end(told.verdict, sys.stderr), file=coloured_stream(sys.stderr))
    return exit_status(target, told)
