"""The history of runs: how each went, what it held at most, how it ended.

  oomproof runs                         the newest 20, newest first (--all: all)
  oomproof runs show [RUN]              one in full, with a chart and the verdict
  oomproof runs compare BEFORE AFTER    peaks, times, settings and code side by side
  oomproof runs export RUN --csv        the samples, for a spreadsheet
  oomproof runs kills                   what was killed for memory on this machine, how often, when next
  oomproof runs --failed                only those that did not end well
  oomproof runs rm RUN...               removes them, after a question; never a running one
  oomproof runs prune --keep 50         which recordings would go; --yes removes them

RUN is an id, a unique beginning or end of one, or a name (the newest of that name).
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from oomproof.cli.command_parser import count, refuse
from oomproof.cli.damaged_runs import readable
from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.errors import USAGE, OomproofError
from oomproof.printable import coloured_stream, terminal_columns, wants_colour
from oomproof.recording import run_folders, spill_record
from oomproof.recording.series import Unreadable
from oomproof.reports import run_comparison, run_screen
from oomproof.reports import run_tables as report
from oomproof.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomproof.recording.prune import Rules, Stored
    from oomproof.recording.series import Series

_DAY = 86400.0
_SHOW = """One run in full: its settings, a chart of its memory, what happened, its verdict.

  oomproof runs show
  oomproof runs show big
  oomproof runs show big/1      its first attempt (run --retry)
"""
_COMPARE = """Two runs side by side: peaks, times, settings and code.

  oomproof runs compare before after
"""
_EXPORT = """The samples of one run, for a spreadsheet.

  oomproof runs export big --csv > big.csv
"""
_KILLS = """What was killed for memory on this machine: when, by whom, what it held, and when the next is due.

  oomproof runs kills
  oomproof runs kills --since 30d
"""
_RM = """Removes runs, after a question; never a running one.

  oomproof runs rm big
  oomproof runs rm --yes big small
"""
_PRUNE = """Says which recordings would go; --yes removes them.

  oomproof runs prune --keep 50
  oomproof runs prune --older-than 30d --total 2G --yes
"""
_CLEANS_UP = 5.0  # seconds that a run which has ended is given for its verdict


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--all", action="store_true", help="all runs, not only the newest 20")
    parser.add_argument("--failed", action="store_true", help="only runs that did not end well")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="one run in full", description=_SHOW)
    show.add_argument("run", nargs="?", metavar="RUN", help="default: the newest")
    compare = actions.add_parser("compare", help="two runs side by side", description=_COMPARE)
    compare.add_argument("before", metavar="BEFORE", help="id, part of an id, or name")
    compare.add_argument("after", metavar="AFTER", help="the run beside it")
    export = actions.add_parser("export", help="the samples of one run", description=_EXPORT)
    export.add_argument("run", nargs="?", metavar="RUN", help="default: the newest")
    export.add_argument(
        "--csv", action="store_true", help="comma-separated, on standard output (the only form so far)"
    )
    kills = actions.add_parser(
        "kills", help="what was killed for memory on this machine, and how often", description=_KILLS
    )
    kills.add_argument(
        "--since", metavar="WHEN", help='"2 hours ago", 30d, a date (default: all that is known)'
    )
    kills.add_argument(
        "--keep", action="store_true", help="write them down, so that they outlive the logs; print nothing"
    )
    kills.add_argument("--system", action="store_true", help="with --keep: for all users; needs root")
    rm = actions.add_parser("rm", help="remove runs: recording, output, verdict", description=_RM)
    rm.add_argument("runs", nargs="+", metavar="RUN", help="id, the end of an id, or name (the newest of it)")
    rm.add_argument("--yes", action="store_true", help="do not ask")
    prune = actions.add_parser(
        "prune", help="remove old recordings; without --yes it only says which", description=_PRUNE
    )
    prune.add_argument("--keep", type=count("runs"), metavar="N", help="keep the newest N runs")
    prune.add_argument("--older-than", metavar="AGE", help="remove runs older than this: 30d, 8w, a date")
    prune.add_argument("--total", metavar="SIZE", help="keep the newest that fit into this size: 2G")
    prune.add_argument("--dry-run", action="store_true", help="only say which (the default)")
    prune.add_argument("--yes", action="store_true", help="remove them")
    for action in (show, compare, kills, rm, prune):
        # SUPPRESS: `runs --json show X` and `runs show X --json` both count
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable output"
        )


def _width() -> int:
    """Of a pipe wide enough that no end is cut; charts have their own."""
    return terminal_columns(140)


def _print(text: str, coloured: bool) -> None:
    """``coloured``: made printable before the colours were put in."""
    print(text, file=coloured_stream(sys.stdout) if coloured else sys.stdout)


def run(arguments: argparse.Namespace) -> int:
    action = arguments.action or "list"
    if action != "list":
        refuse(arguments, ("all", "failed"), "goes with the list of runs", "oomproof runs")
    if action == "export":
        refuse(arguments, ("json",), "does not go with export", "oomproof runs export RUN --csv")
    verbs = {
        "list": _list, "show": _show, "compare": _compare, "export": _export, "kills": _kills, "rm": _remove, "prune": _prune,
    }  # fmt: skip
    return verbs[action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    listed = run_folders.list_runs()
    most = len(listed) if arguments.all or arguments.json else 20
    summaries = list(islice(report.summaries_of(listed, arguments.failed), most))
    if arguments.json:
        print(json.dumps({"schema": 1, "runs": [summary.as_json() for summary in summaries]}, indent=1))
        return 0
    if arguments.failed and not summaries:
        print(f"none of {len(listed)} runs failed")
        return 0
    colour = wants_colour(sys.stdout)
    _print(report.history(summaries, _width(), colour), colour)
    if len(listed) > len(summaries) == most:
        print(
            "(older ones: oomproof runs --all)"
            if arguments.failed
            else f"({len(listed) - most} older: oomproof runs --all)"
        )
    return 0


def _kills(arguments: argparse.Namespace) -> int:
    from oomproof.diagnosis.outage_verdict import system_history
    from oomproof.evidence import stored_kills
    from oomproof.evidence.system_kills import system_kills
    from oomproof.evidence.time_expressions import parse_since
    from oomproof.reports.system_kill_table import system_text

    since = parse_since(arguments.since, time.time()) if arguments.since else 0.0
    if arguments.system and not arguments.keep:
        raise OomproofError("--system goes with --keep", "sudo oomproof runs kills --keep --system", USAGE)
    if arguments.keep:
        refuse(
            arguments,
            ("json",),
            "does not go with --keep, which prints nothing",
            "oomproof runs kills --json",
        )
        since = since or stored_kills.last_time(arguments.system) - _DAY  # not each time the whole journal
        stored_kills.keep(system_kills(max(0.0, since), kept=()).kills, arguments.system)
        return 0
    history = system_history(since)
    if arguments.json:
        print(json.dumps(history.to_json(), indent=1))
    else:
        print(system_text(history, width=_width()))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    shown = run_folders.find(arguments.run)
    with readable(shown):
        return _show_one(arguments, shown)


def _show_one(arguments: argparse.Namespace, shown: run_folders.Run) -> int:
    if arguments.json:
        from oomproof.reports.run_tables import attempts_json

        told = conclusion_of(shown)
        value = {
            "schema": 1,
            "run": report.summarize(shown, told).as_json(),
            "info": shown.info,
            "exit": shown.exit(),
            "attempts": attempts_json(shown),
            "agent": run_screen.agent_text(shown),
            "phases": run_screen.phases_json(shown),
            "spill": spill.as_json() if (spill := spill_record.read(shown.attempt)) else None,
        }
        print(json.dumps({**value, "verdict": told.as_json if told else None}, indent=1))
        return 0
    colour = wants_colour(sys.stdout)
    _print(run_screen.show(shown, _width(), colour), colour)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    before, after = run_folders.find(arguments.before), run_folders.find(arguments.after)
    with readable(before, after):
        if arguments.json:
            rows = [
                {"what": a, "before": b, "after": c} for a, b, c in run_comparison.compare_rows(before, after)
            ]
            print(json.dumps({"schema": 1, "before": before.id, "after": after.id, "rows": rows}, indent=1))
        else:
            print(run_comparison.compare(before, after, _width()))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    exported = run_folders.find(arguments.run)
    recording = exported.attempt.recording()
    if recording.problem:
        raise OomproofError(
            f"{exported.id}: {recording.problem}", "see what there is: oomproof runs show " + exported.id
        )
    out = csv.writer(sys.stdout, lineterminator="\n")
    names = ["wall_seconds", "anon", "shmem", "file", "swap", "kernel", "limit_headroom", "processes"]
    out.writerow([*names, "host_available", "host_swap_free"])
    with recording.series() as series:
        for t, *values in _exported(series, exported):
            out.writerow([f"{t + recording.wall_offset:.3f}", *values])
    return 0


def _exported(series: Series, exported: run_folders.Run) -> Iterator[tuple[Any, ...]]:
    """What reading raises is the recording's; what writing raises, a reader that has gone or a full disk, is not."""
    try:
        yield from series.exported()
    except Unreadable as error:
        raise OomproofError(
            f"{exported.id}: the recording cannot be read from here on: {error}",
            "see what there is: oomproof runs show " + exported.id,
        ) from error


def _cleaned_up(run: run_folders.Run) -> Stored:
    """`oomproof stop big && oomproof runs rm big`: one that has just ended is being judged for a moment."""
    from oomproof.recording import prune

    deadline = time.monotonic() + _CLEANS_UP
    while (stored := prune.stored(run)).alive and run.state() == "ended" and time.monotonic() < deadline:
        time.sleep(0.05)
    return stored


def _remove(arguments: argparse.Namespace) -> int:
    from oomproof.recording import prune
    from oomproof.reports.run_tables import removed

    # what cannot be undone takes no beginning of an id: a day would do for its only run
    named = dict.fromkeys(run_folders.find(text, beginnings=False) for text in arguments.runs)
    if (part := next((run for run in named if run.number is not None), None)) is not None:
        name = run_folders.to_type(part.at(None))
        hint = f"remove the run with all its attempts: oomproof runs rm {name}"
        raise OomproofError("one attempt alone cannot be removed", hint, USAGE)
    chosen = [_cleaned_up(run) for run in named]
    alive = next((stored.run for stored in chosen if stored.alive), None)
    if alive is not None and alive.state() == "ended":
        raise OomproofError(
            f"{alive.name} has ended, and its verdict is still being written; nothing was removed",
            "try again in a moment",
        )
    if alive is not None:
        raise OomproofError(
            f"{alive.name} has not ended ({alive.state()}); nothing was removed",
            f"stop it first: oomproof stop {alive.name}",
            USAGE,
        )
    if not arguments.yes:
        if arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            hint = f"add --yes: oomproof runs rm --yes {shlex.join(arguments.runs)}"
            raise OomproofError("nothing was removed: there is no terminal to ask on", hint, USAGE)
        print(removed(chosen, {}, done=False))
        if input("Remove? This cannot be undone. [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 1
    failed = {stored.run.id: why for stored in chosen if (why := prune.remove(stored.run)) is not None}
    if arguments.json:
        rows = [stored.as_json(failed.get(stored.run.id)) for stored in chosen]
        freed = sum(stored.size for stored in chosen if stored.run.id not in failed)
        print(json.dumps({"schema": 1, "removed": True, "runs": rows, "bytes": freed}, indent=1))
    else:
        print(removed(chosen, failed, done=True))
    return 1 if failed else 0


def _prune(arguments: argparse.Namespace) -> int:
    from oomproof.recording import prune
    from oomproof.reports.run_tables import pruned

    if arguments.yes and arguments.dry_run:
        raise OomproofError("--yes removes, --dry-run does not", "give one of them", USAGE)
    rules = _rules(arguments)
    stored_runs = [prune.stored(run) for run in run_folders.list_runs()]
    used = sum(stored_run.size for stored_run in stored_runs)
    going = prune.choose(stored_runs, rules)
    failed = {}
    for stored in going if arguments.yes else ():
        if (why := prune.remove(stored.run)) is not None:
            failed[stored.run.id] = why
    freed = sum(stored.size for stored in going if stored.run.id not in failed)
    if arguments.json:
        rows = [stored.as_json(failed.get(stored.run.id)) for stored in going]
        value = {
            "schema": 1,
            "removed": arguments.yes,
            "runs": rows,
            "bytes": freed,
            "kept": len(stored_runs) - len(going),
        }
        print(json.dumps(value, indent=1))
        return 1 if failed else 0
    print(pruned(going, failed, len(stored_runs), used, freed, arguments.yes, rules == prune.Rules()))
    return 1 if failed else 0


def _rules(arguments: argparse.Namespace) -> Rules:
    from oomproof.evidence.time_expressions import parse_since
    from oomproof.recording.prune import Rules

    return Rules(
        arguments.keep,
        parse_since(arguments.older_than, time.time()) if arguments.older_than else None,
        parse_size(arguments.total) if arguments.total else None,
    )
