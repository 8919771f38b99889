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

from oomproof.cli.damage import readable
from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.errors import USAGE, OomproofError
from oomproof.recording import runs
from oomproof.recording.series import Unreadable
from oomproof.reports import runs as report
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
        raise argparse.ArgumentTypeError(f"{text!r} is no number of runs")
    return int(text)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def run(arguments: argparse.Namespace) -> int:
    action = arguments.action or "list"
    verbs = {"list": _list, "show": _show, "compare": _compare, "export": _export, "prune": _prune}
    return verbs[action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found = runs.list_runs()
    shown = found if arguments.all or arguments.json else found[:20]
    summaries = report.summaries_of(shown)
    if arguments.json:
        print(json.dumps({"schema": 1, "runs": [one.as_json() for one in summaries]}, indent=1))
        return 0
    print(report.history(summaries, _width()))
    if len(found) > len(shown):
        print(f"({len(found) - len(shown)} older: oomproof runs --all)")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    found = runs.find(arguments.run)
    with readable(found):
        return _show_one(arguments, found)


def _show_one(arguments: argparse.Namespace, found: runs.Run) -> int:
    if arguments.json:
        told = conclusion_of(found)
        value = {
            "schema": 1,
            "run": report.summarize(found, told).as_json(),
            "info": found.info,
            "exit": found.exit(),
            "agent": report.agent_words(found),
            "phases": report.phases_json(found),
        }
        print(json.dumps({**value, "verdict": told.as_json if told else None}, indent=1))
        return 0
    print(report.show(found, _width()))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    before, after = runs.find(arguments.before), runs.find(arguments.after)
    with readable(before, after):
        if arguments.json:
            rows = [{"what": a, "before": b, "after": c} for a, b, c in report.compare_rows(before, after)]
            print(json.dumps({"schema": 1, "before": before.id, "after": after.id, "rows": rows}, indent=1))
        else:
            print(report.compare(before, after, _width()))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    found = runs.find(arguments.run)
    recording = found.attempt.recording()
    if recording.problem:
        raise OomproofError(
            f"{found.id}: {recording.problem}", "see what there is: oomproof runs show " + found.id
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
            f"{found.id}: the recording cannot be read from here on: {error}",
            "see what there is: oomproof runs show " + found.id,
        ) from error
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from oomproof.recording import prune
    from oomproof.reports.pruned import pruned

    if arguments.yes and arguments.dry_run:
        raise OomproofError("--yes removes, --dry-run does not", "give one of them", USAGE)
    rules = _rules(arguments)
    found = [prune.stored(run) for run in runs.list_runs()]
    used = sum(each.size for each in found)
    going = prune.choose(found, rules)
    failed = {}
    for each in going if arguments.yes else ():
        if (why := prune.remove(each.run)) is not None:
            failed[each.run.id] = why
    freed = sum(each.size for each in going if each.run.id not in failed)
    if arguments.json:
        rows = [
            {"id": each.run.id, "name": each.run.name, "created": each.created, "bytes": each.size,
             "problem": failed.get(each.run.id)}
            for each in going
        ]  # fmt: skip
        value = {
            "schema": 1,
            "removed": arguments.yes,
            "runs": rows,
            "bytes": freed,
            "kept": len(found) - len(going),
        }
        print(json.dumps(value, indent=1))
        return 1 if failed else 0
    print(pruned(going, failed, len(found), used, freed, arguments.yes, rules == prune.Rules()))
    return 1 if failed else 0


def _rules(arguments: argparse.Namespace) -> Rules:
    from oomproof.evidence.since import parse_since
    from oomproof.recording.prune import Rules

    return Rules(
        arguments.keep,
        parse_since(arguments.older_than, time.time()) if arguments.older_than else None,
        parse_size(arguments.total) if arguments.total else None,
    )
