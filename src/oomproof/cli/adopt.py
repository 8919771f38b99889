"""Takes a process that runs already, with everything below it, under watch: recorded, guarded, its need reserved.

It is guarded by signals only: a limit can be put around a job when it starts, not later. Ctrl-C leaves it running.

  oomproof adopt 4242
  oomproof adopt 4242 --name big --need 19G
  oomproof adopt 4242 --name big --detach     then: oomproof wait big

Exit status: the process's own where it can be learnt (always since Linux 6.15, before only if its parent is slow), else
125: only its parent knows.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from oomproof.alerts.alert_channel import Alerts
from oomproof.cli.background import run_in_background
from oomproof.cli.run_end import exit_status, tell_end
from oomproof.errors import USAGE, OomproofError
from oomproof.recording import run_folders
from oomproof.records import replace
from oomproof.runner.admission_request import Asked
from oomproof.runner.adoption import Adopted, take, watch
from oomproof.runner.run_flags import OUTPUT, SIZE_FIRST, add_flags, of_adopt, typed
from oomproof.runner.supervise import Order


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", help="the job's first process; its children come along")
    add_flags(parser, adopt=True)[OUTPUT].add_argument(
        "--detach", action="store_true", help="return at once; the guard runs in the background"
    )


def run(arguments: argparse.Namespace) -> int:
    if not arguments.pid.isdigit():
        raise OomproofError(
            f"{arguments.pid!r} is not a pid", "find it: oomproof check, or pgrep -f train.py", USAGE
        )
    chosen = of_adopt(vars(arguments))
    if chosen.need == SIZE_FIRST:
        raise OomproofError(
            "--need auto is for what has not started yet", "give a size, such as --need 19G", USAGE
        )
    adopted = take(int(arguments.pid))
    asked = Asked(need=chosen.need, ledger=chosen.ledger)
    # nothing gets into a Python that runs already
    order = Order(
        adopted.argv,
        replace(chosen, no_agent=True),
        arguments.detach,
        agent=False,
        asked=asked,
        typed=typed(vars(arguments)),
        alerts=Alerts(chosen.alert_settings()),
    )
    if arguments.detach:
        return run_in_background(lambda said: _watch(adopted, order, quiet=True, said=said))
    return _watch(adopted, order, quiet=False)


def _watch(adopted: Adopted, order: Order, quiet: bool, said: Any = None) -> int:
    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    run = run_folders.new_run()

    def started(told: list[str]) -> None:
        text = (
            f"watching pid {adopted.pid} by signals only: no limit can be put around a job that runs already"
        )
        if said is not None:
            said(run.id, text)
            return
        say(f"oomproof: run {run.name}: {text}")
        for line in told:
            say(f"oomproof: {line}")
        say("oomproof: Ctrl-C leaves it running, unguarded")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ended = watch(run, adopted, order, say, started)
    except OomproofError:
        if not run.attempt.started_file.exists():
            from shutil import rmtree

            rmtree(run.folder, ignore_errors=True)
        raise
    finally:
        os.close(adopted.pidfd)
    if not ended:
        order.alerts.close()
        say(
            f"\noomproof: left; pid {adopted.pid} keeps running, unguarded. To guard it again: oomproof watch {run.name}"
        )
        return 0
    from oomproof.diagnosis.conclusion import conclude
    from oomproof.reports.verdict_text import three_lines

    conclusion = conclude(run)
    say(three_lines(conclusion.verdict))
    if (run.exit() or {}).get("status") is None:
        say("oomproof: its exit status cannot be known: only its parent has learnt it")
    status = exit_status(run, conclusion)
    tell_end(order.alerts, run, conclusion, status)
    return status
