"""Asks a running job to write a checkpoint now and to continue.

The Hugging Face Trainer and Lightning answer at the end of their step, without a change to the script.

  oomproof save big
"""

from __future__ import annotations

import argparse
import sys
import time

from oomproof.cli.command_parser import add_run
from oomproof.errors import OomproofError
from oomproof.guard.guard_actions import action_record
from oomproof.leaf.action_kinds import SAVE
from oomproof.machine.clock import boottime
from oomproof.recording import run_folders
from oomproof.runner.run_flags import seconds
from oomproof.units import format_duration

_TICK = 0.1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest that runs")
    parser.add_argument(
        "--timeout",
        type=seconds("--timeout"),
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for it (default 600)",
    )


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find_alive(arguments.run, ("running",))
    if target.waits():
        begun = target.attempt.was_begun()  # it waits for its next attempt
        raise OomproofError(
            f"{target.name} {'does not run now' if begun else 'was not started yet'}: it waits",
            f"see for what: oomproof runs show {target.name}",
        )
    if not target.keeper_lives():
        raise OomproofError(
            f"{target.name} is not running ({target.state()})",
            f"see how it ended: oomproof runs show {run_folders.to_type(target)}; list what runs: oomproof runs",
        )
    attempt = target.attempt
    listening = attempt.listeners("save")
    if not listening:
        raise OomproofError(
            f"nothing in {target.name} answers a request to save",
            "a Hugging Face Trainer and Lightning do, once they train; a plain loop can only be asked to save and "
            f"stop, if it looks for OOMPROOF_STOP_FILE: oomproof stop {target.name}",
        )
    began = boottime()
    attempt.ask_to_save("oomproof save")
    attempt.add_action(action_record("user", SAVE, "oomproof save"))
    print(f"oomproof: asked {', '.join(listening)} to save", file=sys.stderr)
    deadline = time.monotonic() + arguments.timeout
    while time.monotonic() < deadline:
        if not attempt.save_file.exists():
            print(f"oomproof: {_saved(target, began)}; {target.name} continues", file=sys.stderr)
            return 0
        if target.exit() or not target.keeper_lives():
            raise OomproofError(
                f"{target.name} ended before it saved", f"see why: oomproof why {run_folders.to_type(target)}"
            )
        time.sleep(_TICK)
    raise OomproofError(
        f"not saved within {format_duration(arguments.timeout)}",
        f"the request stands, and is answered at the end of a step; to take it back: rm {attempt.save_file}",
    )


def _saved(run: run_folders.Run, since: float) -> str:
    """The words of whoever saved; the recording has them a moment after the file is gone."""
    for _ in range(30):
        with run.attempt.recording().series() as series:
            told = [event.text for event in series.events("saved", last=1) if event.t >= since]
        if told:
            return told[0]
        time.sleep(_TICK)
    return "saved"
