"""What a running job's variables hold, now: names, sizes, the same data held twice, and what grew since the last look.

The agent inside the job looks at the variables of its running functions, the globals of your own modules and the attributes
of your objects, for at most 0.4 s, between two steps or between two lines of Python. Sizes are estimated from samples; no
value leaves the job. Of a run that has ended, the last look is shown.

  oomproof inspect big
  oomproof inspect big --json
"""

from __future__ import annotations

import argparse
import json
import time

from oomproof.cli.command_parser import add_run
from oomproof.errors import USAGE, OomproofError
from oomproof.leaf.attempt_names import FAULT
from oomproof.machine.clock import boottime
from oomproof.printable import terminal_columns
from oomproof.recording import census_record, run_folders
from oomproof.recording.census_record import Census
from oomproof.recording.stack_dumps import where
from oomproof.reports.census_text import census_json, census_lines
from oomproof.runner import census_request, stack_request
from oomproof.runner.run_flags import seconds
from oomproof.units import format_duration

_TICK, _AGAIN = 0.02, 1.0  # seconds between two looks for the answer, and between two signals
_TIMEOUT = 10.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the newest that runs")
    parser.add_argument(
        "--pid", type=int, metavar="PID", help="a process of it (default: the one that holds most)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds("--timeout"),
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"how long to wait for its answer (default {_TIMEOUT:g})",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON")


def run(arguments: argparse.Namespace) -> int:
    target = run_folders.find_here(arguments.run, ("running", "unguarded"))
    folder = target.attempt.agent_folder
    if target.job_lives() or target.keeper_lives():
        pid = _ask(target, arguments.pid, arguments.timeout)
    else:
        pid = arguments.pid
    censuses = census_record.read_all(folder, pid)
    if not censuses:
        raise OomproofError(
            f"{target.name} is not running ({target.state()}), and its variables were not looked at while it did",
            f"why it ended: oomproof why {run_folders.to_type(target)}; next time: oomproof run --census 10m -- CMD",
        )
    censuses = [census for census in censuses if census.pid == censuses[-1].pid]
    started = target.place[0]
    if arguments.json:
        print(json.dumps(census_json(target.id, censuses, started), indent=2))
    else:
        print("\n".join(census_lines(target.name, censuses, started, terminal_columns())))
    return 0


def _ask(target: run_folders.Run, wanted: int | None, timeout: float) -> int:
    """The process that has answered."""
    folder, name = target.attempt.agent_folder, target.name
    if target.paused():
        raise OomproofError(f"{name} is paused and cannot answer", f"resume it: oomproof resume {name}")
    able = census_request.able(folder)
    if wanted is not None and wanted not in able:
        listed = ", ".join(map(str, able[:8])) or "none"
        raise OomproofError(f"pid {wanted} of {name} does not answer", f"processes that do: {listed}", USAGE)
    if not able:
        absent = not any(folder.glob(f"*-{FAULT}")) if folder.exists() else True
        raise OomproofError(
            f"no process of {name} can be asked: "
            + ("the agent is absent" if absent else "its Python does not listen"),
            "only Python 3.8 and newer can, not a free-threaded one, not with --no-agent, python -I, -E or -S, nor where the program handles "
            "SIGRTMIN+12 itself; see docs/inspect.md",
        )
    pid, request = wanted if wanted is not None else able[0], f"{boottime():.6f}"
    if not census_request.ask(folder, pid, request, "oomproof inspect"):
        raise OomproofError(f"cannot write into {folder}", "is its disk full?")
    if _answered(target, pid, request, timeout) is None:
        raise OomproofError(
            f"pid {pid} of {name} did not answer within {format_duration(timeout)}{_stands_at(target, pid)}",
            "its main thread waits or is inside one long native call: try again later, or with a longer --timeout",
        )
    return pid


def _answered(target: run_folders.Run, pid: int, request: str, timeout: float) -> Census | None:
    folder, begun = target.attempt.agent_folder, time.monotonic()
    again = begun + _AGAIN
    while (now := time.monotonic()) < begun + timeout:
        if (census := census_request.answer(folder, pid, request)) is not None:
            return census
        if now >= again:  # it waits for the end of a step, and may have left its steps since
            census_request.ask_again(folder, pid)
            again = now + _AGAIN
        if not target.job_lives():
            raise OomproofError(
                f"{target.name} ended before it answered",
                f"see why: oomproof why {run_folders.to_type(target)}",
            )
        time.sleep(_TICK)
    return None


def _stands_at(target: run_folders.Run, pid: int) -> str:
    """Where its main thread is, by the stack that faulthandler writes even then."""
    stack = stack_request.stack_now(target.attempt.agent_folder, pid, "oomproof inspect")
    return f": it is at {where(stack.frames)}" if stack is not None and stack.frames else ""
