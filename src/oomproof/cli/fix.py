"""Shows what to change in a run's files so that it fits, as a diff with what each change brings; --apply writes it.

For a run that died of memory: the next smaller settings with the same effective batch, and what the verdict names. YAML,
TOML, JSON, .env, launch scripts and Python literals are changed where they stand, and nothing else in them. What cannot be
placed exactly is left alone and said. The next run of the same command tells how the change fares; --undo takes it back.

  oomproof fix                  of the last run that failed: show
  oomproof fix big --apply      write it, with a backup
  oomproof fix big --at train.py:31 --apply
  oomproof fix --undo           take the last change back
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from oomproof.cli.command_parser import add_run, refuse
from oomproof.diagnosis.conclusion import conclusion_of
from oomproof.errors import USAGE, OomproofError
from oomproof.printable import coloured_stream, printable, terminal_columns, wants_colour
from oomproof.recording import run_folders
from oomproof.recording.run_folders import Run, newest_runs
from oomproof.records import asdict
from oomproof.remedies import fix_store
from oomproof.remedies.fix_plan import Proposal, propose
from oomproof.remedies.fix_probation import (
    figures_of_attempt,
    is_slower,
    judge_fix,
    key_of,
    pace_text,
    waiting_for,
)
from oomproof.remedies.fix_store import PROBATION, Fix
from oomproof.reports import fix_text
from oomproof.reports.fix_text import standing_text
from oomproof.reports.table_text import folded

_LOOKED_AT = 50  # runs, the newest


def note_all_fixes() -> list[str]:
    """Also by runs whose end nobody was there to tell, and by those that have evaluated often enough and still run."""
    sentences = []
    for run in newest_runs(_LOOKED_AT):
        if run.info and waiting_for(run):
            conclusion = conclusion_of(run)
            sentences += note_fixes(run, conclusion.cause if conclusion is not None else None)
    return sentences


def note_fixes(run: Run, cause: str | None) -> list[str]:
    """A sentence for each whose standing it decides; written down with the figures. ``cause``: of its end; None while it runs."""
    sentences = []
    for fix in waiting_for(run):
        stand, figures, before, now = judge_fix(fix, run, cause)
        if stand == PROBATION:
            continue
        fix.note(state=stand, figures=figures, told_by=run.id)
        sentences.append(standing_text(fix, stand, figures, is_slower(before, now)))
    return sentences


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run(parser, "the last that failed", "; with --undo: a run, or a change")
    add("--apply", action="store_true", help="write the changes, with a backup")
    add("--undo", action="store_true", help="take a change back; refused where the file was changed since")
    add(
        "--at",
        action="append",
        default=[],
        metavar="FILE:LINE",
        help="which place is meant, where a setting stands in several; may be repeated",
    )
    add("--json", action="store_true", help="machine-readable output")


def run(arguments: argparse.Namespace) -> int:
    if arguments.undo:
        refuse(arguments, ("apply", "at"), "does not go with --undo", "leave out one of the two")
        return _undo(arguments)
    told = note_all_fixes()
    of_run = _found(arguments.run)
    proposal = propose(of_run, arguments.at)
    applied = None
    if arguments.apply and proposal.texts:
        applied = fix_store.apply(proposal.texts, _about(of_run, proposal))
    if arguments.json:
        value = {"schema": 1, "run": of_run.id, **fix_text.plan_json(proposal.plan)}
        value["applied"] = applied.id if applied is not None else None
        value["fixes"] = [_fix_json(fix) for fix in fix_store.list_fixes()]
        print(json.dumps(value, indent=1))
    else:
        for sentence in told:
            print(printable(sentence))
        _print(of_run, proposal, applied)
    return 1 if arguments.apply and applied is None else 0


def _found(name: str | None) -> Run:
    if name is not None:
        return run_folders.find(name)
    from oomproof.cli.why import last_death

    return last_death() or run_folders.find(None)


def _about(of_run: Run, proposal: Proposal) -> dict[str, Any]:
    """What the next run of the same command is compared with."""
    before, _ = figures_of_attempt(of_run.at(1).attempt)
    return {
        "run": of_run.id,
        "attempt": of_run.attempt.number,
        "key": key_of(of_run.at(1)),
        "before": asdict(before),
        "changes": fix_text.plan_json(proposal.plan)["changes"],
    }


def _print(of_run: Run, proposal: Proposal, applied: Fix | None) -> None:
    colour, width = wants_colour(sys.stdout), min(140, terminal_columns(110))
    lines = [*folded("run      ", f"{of_run.name}: {proposal.headline}", width), ""]
    lines += fix_text.fix_lines(proposal.plan, proposal.texts, proposal.shown, width, colour)
    if proposal.texts and (pace := pace_text(figures_of_attempt(of_run.attempt)[0])):
        lines += [f"time: {pace} so far; the next run shows how that changes", ""]
    others = [fix for fix in fix_store.list_fixes() if applied is None or fix.id != applied.id]
    if listed := fix_text.fix_list(others, width):
        lines += ["changes that wait for a run:", *(f"  {line}" for line in listed), ""]
    called = run_folders.to_type(of_run)
    if applied is not None:
        lines.append(
            f"written; the next run of the same command shows whether it helps. To take it back: oomproof fix --undo {applied.id}"
        )
    elif proposal.texts:
        lines.append(f"nothing was changed; to write it: oomproof fix {called} --apply")
    else:
        lines.append("nothing was changed")
    text = "\n".join(lines)
    print(text if colour else printable(text), file=coloured_stream(sys.stdout) if colour else sys.stdout)


def _undo(arguments: argparse.Namespace) -> int:
    fix = _fix_of(arguments.run)
    restored = fix_store.undo(fix)
    if arguments.json:
        print(json.dumps({"schema": 1, "undone": fix.id, "files": restored}, indent=1))
    else:
        for path in restored:
            print(f"as it was before: {path}")
    return 0


def _fix_of(name: str | None) -> Fix:
    """The newest that can be taken back; of that run, or of that id."""
    fixes = [fix for fix in fix_store.list_fixes() if fix.state != fix_store.UNDONE]
    if not fixes:
        raise OomproofError("no change was applied", "see what would be: oomproof fix", USAGE)
    if name is None:
        return fixes[0]
    for fix in fixes:
        if fix.id == name:
            return fix
    of_run = run_folders.find(name)
    for fix in fixes:
        if fix.manifest.get("run") == of_run.id:
            return fix
    raise OomproofError(f"no change of {of_run.name} was applied", f"oomproof fix {name}", USAGE)


def _fix_json(fix: Fix) -> dict[str, Any]:
    kept = ("run", "applied", "state", "changes", "figures")
    return {"id": fix.id, **{name: fix.manifest.get(name) for name in kept}}
