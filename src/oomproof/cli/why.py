"""Says why a job died, with proof: a run of ours, or any text that a death left behind.

  oomproof why                     the last run
  oomproof why big                 the run called big
  oomproof why train.log           a training log, a kernel log, a journal, in any mix; .gz, .xz, .zst too
  dmesg | oomproof why -           from standard input
  oomproof why --json train.log kern.log

An existing file's name wins over a run's name. Texts in which nothing died are told so, with status 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from oomproof.diagnosis.verdict import Verdict, from_json
from oomproof.recording import runs


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="RUN|FILE", help="a run, or files; default: the last run")
    parser.add_argument("--json", action="store_true", help="schema 1, for machines")
    parser.add_argument("--short", action="store_true", help="only the three lines")


def run(arguments: argparse.Namespace) -> int:
    verdict = _verdict(arguments.what)
    if arguments.json:
        print(json.dumps(verdict.to_json(), indent=1))
        return 0
    from oomproof.reports.verdict import long_form, three_lines

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print((three_lines if arguments.short else long_form)(verdict, colour=colour))
    return 0


def _verdict(what: list[str]) -> Verdict:
    if what and (len(what) > 1 or what[0] == "-" or os.path.exists(what[0])):
        from oomproof.diagnosis.from_texts import judge_texts
        from oomproof.evidence.texts.collect import read_texts

        return judge_texts(read_texts(what))
    found = runs.find(what[0] if what else None)
    from oomproof.diagnosis.judge import judge
    from oomproof.evidence.collect import collect

    kept = runs.read_json(found.attempt / "verdict.json")
    if kept.get("verdict"):
        try:
            return from_json(kept)
        except (KeyError, TypeError, ValueError):
            pass  # written by another version: judge afresh
    return judge(collect(found.attempt))
