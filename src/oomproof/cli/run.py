"""Runs any command under watch: recorded, kept inside its memory limit, explained when it dies.

The command's arguments, its terminal and its exit status stay as they are. Without --limit the kernel keeps only the
machine's floor free, so a job that used to run still runs. When memory runs short the job is warned about, paused while
another run can finish and free memory, else asked to save and stop (the stop file, --stop-signal), then ended, before the
kernel picks a victim.

  oomproof run -- python train.py --epochs 3
  oomproof run --limit 20G --name big -- python train.py
  oomproof run --stop-signal USR1 --grace 60 -- python train.py
  oomproof run --detach -- python train.py        then: oomproof logs -f, oomproof wait
  oomproof run --protect -- python train.py       newer runs give way first
  oomproof run --need 19G -- python train.py      starts when 19 GiB are free and reserved by nobody
  oomproof run --need auto -- python train.py     sizes it first, on a virtual GPU, and reserves that
  oomproof run --spill 8G -- python train.py      the one batch that does not fit the GPU runs slowly
  oomproof run --retry 3 -- python train.py --batch-size 64 --workers 16
  oomproof run --alert-desktop -- python train.py   tells you when memory runs short, or it has died

Exit status: the job's own, 128+signal when it was killed; 2 usage, 125 our failure, 126/127 cannot execute/not found,
75 not now, for want of memory (--no-wait, --wait-max; also when the guard asked the job to stop and it exited with code 0)
or the same job runs already, 69 can never fit on this machine. With OOMPROOF_DISABLE=1 in the environment it is the command
alone: no guard, no limit, no recording.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oomproof.errors import USAGE, OomproofError
from oomproof.runner.run_flags import OUTPUT, add_flags, of_run, truth

if TYPE_CHECKING:
    import argparse


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof run [options] -- CMD ..."
    output = add_flags(parser)[OUTPUT]
    output.add_argument(
        "--detach",
        action="store_true",
        help="return at once; follow with `oomproof logs -f`, `oomproof wait`",
    )
    output.add_argument("-v", "--verbose", action="store_true", help="say more at the start and at the end")
    output.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="say nothing unless oomproof acted or failed, or the job ran out of memory",
    )
    output.add_argument("--report", metavar="FILE", help="write the verdict there as JSON (schema 1)")
    parser.add_argument("command", nargs="...", metavar="-- CMD ...", help="the command, after --")


def run(arguments: argparse.Namespace) -> int:
    argv: list[str] = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise OomproofError("no command to run", "oomproof run -- python train.py", USAGE)
    disabled = truth(os.environ.get("OOMPROOF_DISABLE", ""))
    chosen = None if disabled else of_run(vars(arguments))
    from oomproof.cli.run_command import run_alone, run_command

    return run_alone(argv, arguments) if chosen is None else run_command(argv, chosen, arguments)
