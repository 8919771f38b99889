"""Shows in 20 seconds what oomproof does: a leaking job is seen, warned about, asked to save and stop, explained.

Nothing else on the machine is touched: the job lives under a limit of 256 MiB.

  oomproof demo
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from oomproof.alerts.receivers import OFF
from oomproof.errors import INTERRUPTED, NOT_NOW
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import terminal_columns
from oomproof.recording import run_folders

JOB = Path(__file__).with_name("demo_job.py")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults()


def run(arguments: argparse.Namespace) -> int:
    _say(
        "A training whose list of past batches grows by 14 MiB a second, under a limit of 256 MiB:",
        "  $ oomproof run --limit 256M --grace 4 --name demo -- python leaking_training.py",
        "",
    )
    # As a user would: a command of its own, with the terminal as it is.
    command = [*OWN_COMMAND, "run", "--limit", "256M", "--grace", "4"]
    job = [sys.executable, "-P", str(JOB)]  # its folder holds an inspect.py
    done = subprocess.run([*command, "--name", "demo", "--", *job], check=False, env={**os.environ, OFF: "1"})
    if done.returncode not in (NOT_NOW, INTERRUPTED):
        _say("", f"The demo did not go as planned (status {done.returncode}): oomproof runs show demo")
        return done.returncode
    if done.returncode == INTERRUPTED:
        return INTERRUPTED
    from oomproof.reports.run_screen import show

    _say("", "And it is all on record, also after a crash or a reboot:", "  $ oomproof runs show demo", "")
    sys.stdout.flush()
    print(show(run_folders.find("demo"), terminal_columns()))
    _say("", "Now yours:  oomproof run -- python train.py")
    return 0


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
