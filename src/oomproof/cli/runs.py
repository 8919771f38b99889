"""The history of runs: how each went, what it held at most, how it ended.

  oomproof runs                         the newest 20, newest first (--all: all)
  oomproof runs show [RUN]              one in full, with a chart and the verdict
  oomproof runs compare BEFORE AFTER    peaks, times, settings and code side by side
  oomproof runs export RUN --csv        the samples, for a spreadsheet
  oomproof runs prune --keep 50         which recordings would go; --yes removes them

RUN is an id, a unique beginning or end of one, or a name (the newest of that name).
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

from oomproof.cli.damaged_runs import readable
from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.errors import USAGE, OomproofError
from oomproof.recording import run_folders
from oomproof.recording.series import Unreadable
from oomproof.reports import run_tables as report
from oomproof.units import parse_size

if TYPE_CHECKING:
    from oomproof.recording.prune import Rules


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--all", action="store_true", help="all runs, not only the newest 20")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="one run in full")
    show.add_argument("run", nargs="?", metavar="RUN", help="default: the newest")
    compare = actions.add_parser("compare", help="two runs side by side")
    compare.add_argument("before", metavar="BEFORE")
    compare.add_argument("after", metavar="AFTER")
    export = actions.add_parser("export", help="the samples of one run")
    export.add_argument("run", nargs="?", metavar="RUN", help="default: the newest")
    export.add_argument(
        "--csv", action="store_true", help="comma-separated, on standard output (the only form so far)"
    )
    prune = actions.add_parser("prune", help="remove old recordings; without --yes it only says which")
    prune.add_argument("--keep", type=_count, metavar="N", help="keep the newest N runs")
    prune.add_argument("--older-than", metavar="AGE", help="remove runs older than this: 30d, 8w, a date")
    prune.add_argument("--total", metavar="SIZE", help="keep the newest that fit into this size: 2G")
    prune.add_argument("--dry-run", action="store_true", help="only say which (the default)")
    prune.add_argument("--yes", action="store_true", help="remove them")
    for action in (show, compare, prune):
        # SUPPRESS: `runs --json show X` and `runs show X --json` both count
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable output"
        )


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs")
    return int(text)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def run(arguments: argparse.Namespace) -> int:
    action = arguments.action or "list"
    verbs = {"list": _list, "show": _show, "compare": _compare, "export": _export, "prune": _prune}
    return verbs[action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    listed = run_folders.list_runs()
    shown = listed if arguments.all or arguments.json else listed[:20]
    summaries = report.summaries_of(shown)
    if arguments.json:
        print(json.dumps({"schema": 1, "runs": [summary.as_json() for summary in summaries]}, indent=1))
        return 0
    print(report.history(summaries, _width()))
    if len(listed) > len(shown):
        print(f"({len(listed) - len(shown)} older: oomproof runs --all)")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    shown = run_folders.find(arguments.run)
    with readable(shown):
        return _show_one(arguments, shown)


def _show_one(arguments: argparse.Namespace, shown: run_folders.Run) -> int:
    if arguments.json:
        told = conclusion_of(shown)
        value = {
            "schema": 1,
            "run": report.summarize(shown, told).as_json(),
            "info": shown.info,
            "exit": shown.exit(),
            "agent": report.agent_text(shown),
            "phases": report.phases_json(shown),
        }
        print(json.dumps({**value, "verdict": told.as_json if told else None}, indent=1))
        return 0
    print(report.show(shown, _width()))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    before, after = run_folders.find(arguments.before), run_folders.find(arguments.after)
    with readable(before, after):
        if arguments.json:
            rows = [{"what": a, "before": b, "after": c} for a, b, c in report.compare_rows(before, after)]
            print(json.dumps({"schema": 1, "before": before.id, "after": after.id, "rows": rows}, indent=1))
        else:
            print(report.compare(before, after, _width()))
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
    try:
        with recording.series() as series:
            for t, *values in series.exported():
                out.writerow([f"{t + recording.wall_offset:.3f}", *values])
    except Unreadable as error:
        raise OomproofError(
            f"{exported.id}: the recording cannot be read from here on: {error}",
            "see what there is: oomproof runs show " + exported.id,
        ) from error
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from oomproof.recording import prune
    from oomproof.reports.prune_report import pruned

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
        rows = [
            {"id": stored.run.id, "name": stored.run.name, "created": stored.created, "bytes": stored.size,
             "problem": failed.get(stored.run.id)}
            for stored in going
        ]  # fmt: skip
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
