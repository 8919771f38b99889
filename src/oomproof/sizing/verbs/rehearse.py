"""The fire drill: meets the memory error of hour nine in minute two.

Runs the command unchanged, on this machine's own card (or CPU), for about two minutes: the largest batch of its own loader
first, then an evaluation, a generation and a checkpoint. Tells what each took of the card and of the host, and stops. Its
files are safe: what it writes goes to memory, and is thrown away; the network is off.

  oomproof rehearse -- python train.py --batch-size 32
  oomproof rehearse --then-run -- python train.py     starts it afresh afterwards, with what it needs reserved
  oomproof rehearse --time-limit 5m -- python train.py
  oomproof rehearse --json -- python train.py

Exit status: 0 all that was reached fits; 69 it does not, out of memory included; 75 not beside what runs now; 2 it could not be
rehearsed; the script's own where it failed by itself. With --then-run that of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from oomproof.errors import NEVER, NOT_NOW, USAGE, OomproofError
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import show_line, tell_line, terminal_columns
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.fit_verdict import Fit, Place, card_of, fit, ram_here
from oomproof.sizing.rehearsing import Rehearsal, rehearse
from oomproof.sizing.screens import rehearsal_report as report
from oomproof.units import format_duration, parse_duration

DEFAULT_TIME = "2m"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof rehearse [options] -- CMD ..."
    parser.add_argument(
        "--time-limit", metavar="TIME", default=DEFAULT_TIME, help="from its first batch on (default: 2m)"
    )
    parser.add_argument(
        "--then-run",
        action="store_true",
        help="start it afterwards with `oomproof run`, in a new process, if it fits",
    )
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="let it write to disk where its writes cannot be kept in memory",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the table")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(args: argparse.Namespace) -> int:
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise OomproofError("no command to rehearse", "oomproof rehearse -- python train.py", USAGE)
    seconds = parse_duration(args.time_limit)
    if seconds < 5:
        raise OomproofError(f"--time-limit {args.time_limit} is too short", "give at least 5s", USAGE)
    if sys.stderr.isatty():
        tell_line(f"rehearsing for {format_duration(seconds)} or so, once it has loaded…")
    rehearsal = rehearse(command, time_limit=seconds, allow_writes=args.allow_writes, tell=show_line)
    fits = fits_of(rehearsal)
    status = status_of(rehearsal, fits)
    if args.json:
        value = {**rehearsal.as_json(), "verdicts": [judged.as_json() for judged in fits], "status": status}
        print(json.dumps(value, indent=1))
    elif rehearsal.refused:
        tell_line(rehearsal.refused)
    else:
        print("\n".join(report.lines_of(rehearsal, fits, command, terminal_columns(100))), flush=True)
    if rehearsal.out_of_memory is not None and not args.json:
        tell_line(report.out_of_memory_text(rehearsal))
    if status == 0 and args.then_run:
        return _start(rehearsal, command)
    return status


def fits_of(rehearsal: Rehearsal) -> list[Fit]:
    """Of what was measured: the host's figure against this machine, the card's against the card."""
    if rehearsal.refused or rehearsal.out_of_memory is not None:
        return []
    places: list[tuple[Place, int]] = []
    if (host := rehearsal.peak("host")) is not None:
        places.append((_ram(), host))
    if (gpu := rehearsal.peak("gpu")) is not None and rehearsal.card_total:
        places.append((_card(rehearsal), gpu))
    return [fit(place, Estimate(need, need, need, {})) for place, need in places]


def _ram() -> Place:
    from oomproof.cli.check import look_at_ledger
    from oomproof.ledger.machine_facts import budget_of, gather

    facts = gather()
    snapshot, _ = look_at_ledger(facts)
    return ram_here(budget_of(facts, reserved=snapshot.budget.reserved if snapshot else 0))


def _card(rehearsal: Rehearsal) -> Place:
    total = rehearsal.card_total or 0
    place = card_of(total)
    free = max(0, total - rehearsal.card_others)
    return Place(
        "gpu",
        f"GPU {rehearsal.card}",
        free,
        total,
        f"{place.name}, others hold {_gib(rehearsal.card_others)}",
    )


def _gib(size: int) -> str:
    from oomproof.units import format_size

    return format_size(size)


def status_of(rehearsal: Rehearsal, fits: Sequence[Fit]) -> int:
    if rehearsal.refused:
        return rehearsal.status or USAGE
    if (oom := rehearsal.out_of_memory) is not None:
        return NOT_NOW if oom.others >= 1 << 30 else NEVER
    if any(judged.status == "never" for judged in fits):
        return NEVER
    return NOT_NOW if any(judged.status == "not-now" for judged in fits) else 0


def _start(rehearsal: Rehearsal, command: list[str]) -> int:
    """Afresh, in this process's place: nothing of the rehearsal is left in it."""
    words = [*OWN_COMMAND, "run", *report.needs(rehearsal), "--", *command]
    sys.stdout.flush()
    os.execvp(words[0], words)
