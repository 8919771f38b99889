"""The machine and its jobs, live: RAM, swap and cards as bars, a row a job, the selected one with its chart and its log.

Keys pause, save, stop and explain the selected run; ? lists them. It reads what the runs write down anyway, so it costs the
jobs nothing. The screen needs textual; without it, or into a pipe, the same is printed once.

  oomproof top                       the screen; q leaves it, the jobs stay as they are
  oomproof top -1                    once, as text
  oomproof top --every 5             a slow line: look every 5 seconds
  oomproof top --json | jq .jobs
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from oomproof.cli.command_parser import refuse
from oomproof.errors import OomproofError
from oomproof.live.live_reader import CardsOnce, LiveReader
from oomproof.live.live_snapshot import LiveSnapshot, to_json
from oomproof.printable import PLAIN, terminal_columns
from oomproof.runner.run_flags import seconds

_PIPE_WIDTH = 140
_EVERY, _LEAST = 2.0, 0.5


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-1", "--once", action="store_true", help="print it once, as text")
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON, once")
    parser.add_argument(
        "--every",
        type=seconds("--every"),
        metavar="SECONDS",
        help=f"time between two looks (default {_EVERY:g}, at least {_LEAST:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.once or arguments.json:
        refuse(arguments, ("every",), "is for the screen", "again and again as text: watch oomproof top -1")
    if arguments.json:
        print(json.dumps(to_json(_look()), indent=2))
        return 0
    if arguments.once or not _is_terminal():
        _print_once()
        return 0
    try:
        from oomproof.live.top_screen import TopApp
    except ImportError as error:
        raise OomproofError(
            f"the screen needs textual, which is not installed ({error})",
            "pip install textual; without it: oomproof top -1, or watch oomproof top -1",
        ) from error
    TopApp(max(_LEAST, arguments.every or _EVERY)).run()
    return 0


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _look() -> LiveSnapshot:
    reader = LiveReader(CardsOnce())
    try:
        return reader.read(all_trends=True)
    finally:
        reader.close()


def _print_once() -> None:
    from oomproof.live.top_layout import once
    from oomproof.reports.table_text import plain

    width = terminal_columns(_PIPE_WIDTH)
    text = "\n".join(plain(line) for line in once(_look(), width))
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    print(text if encoding.startswith("utf") else as_ascii(text))


def as_ascii(text: str) -> str:
    """For a terminal or pipe that takes no more."""
    return text.translate(PLAIN).encode("ascii", "replace").decode()
