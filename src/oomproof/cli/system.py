"""Which settings of this machine to change for the jobs you ran: swap, kernel settings, cgroups, limits, OOM daemons, GPU.

Each change comes with its reason, what it will do, what it will not, and the command. Nothing is changed without --apply, which
needs root, shows its steps and asks; it writes files of its own only (no edit of fstab), and --undo takes all of them back.
Exit status: 0, or 125 when something could not be done.

  oomproof system                   what to change, and what is fine
  oomproof system --need 19G+20G    for two jobs that are to run at the same time
  sudo oomproof system --apply      make them, after a yes
  sudo oomproof system --apply --only swap --yes
  sudo oomproof system --undo       as it was before
  oomproof system --json | jq .changes
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from oomproof.cli.command_parser import refuse
from oomproof.errors import OUR_FAILURE, USAGE, OomproofError, did_you_mean
from oomproof.ledger import job_history
from oomproof.ledger.job_history import JobHistory
from oomproof.remedies import system_manifest
from oomproof.remedies.system_facts import Change, Plan, SystemFacts, gather_system
from oomproof.remedies.system_manifest import Manifest
from oomproof.remedies.system_plan import plan as make_plan
from oomproof.reports import system_screen
from oomproof.reports.table_text import print_lines
from oomproof.units import parse_size

ROOT = "/"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--apply", action="store_true", help="make the changes (root); shows them and asks first"
    )
    parser.add_argument("--undo", action="store_true", help="take back what --apply did (root)")
    parser.add_argument("--only", metavar="NAMES", help="only these changes, such as swap,sysrq")
    parser.add_argument("--yes", action="store_true", help="with --apply: do not ask")
    parser.add_argument(
        "--need",
        metavar="SIZE[+SIZE]",
        help="for a job of this size, or for two at the same time; default: the largest you ran",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the screen")


def run(args: argparse.Namespace) -> int:
    if args.undo:
        refuse(args, ("apply", "only", "need", "json", "yes"), "does nothing beside --undo", "leave it out")
        return _undo()
    if not args.apply:
        refuse(args, ("yes",), "does nothing without --apply", "sudo oomproof system --apply --yes")
    if args.apply:
        refuse(args, ("json",), "does nothing beside --apply", "leave it out")
    facts = gather_system()
    jobs = _jobs(args.need, facts)
    plan = _only(make_plan(facts, jobs), args.only)
    if args.apply:
        return _apply(facts, jobs, plan, args.yes)
    manifest = _manifest()
    if args.json:
        print(json.dumps(system_screen.to_json(facts, jobs, plan, manifest), indent=2))
    else:
        _show(facts, jobs, plan, manifest)
    return 0


def _jobs(need: str | None, facts: SystemFacts) -> JobHistory:
    if need:
        return job_history.declared([parse_size(size) for size in need.split("+")])
    return job_history.read_of(facts.user, os.geteuid())


def _only(plan: Plan, names: str | None) -> Plan:
    if names is None:
        return plan
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {change.name for change in plan.changes} | {finding.name for finding in plan.fine}
    for name in wanted:
        if name not in known:
            raise OomproofError(
                f"unknown change {name!r}{did_you_mean(name, known)}",
                f"here: {', '.join(sorted(known))}",
                USAGE,
            )
    return Plan(
        tuple(change for change in plan.changes if change.name in wanted),
        tuple(finding for finding in plan.fine if finding.name in wanted),
        plan.notes,
        plan.blocked,
    )


def _manifest() -> Manifest | None:
    """What was applied; only root may read it."""
    if os.geteuid() != 0:
        return None
    return system_manifest.load(ROOT)


def _show(facts: SystemFacts, jobs: JobHistory, plan: Plan, manifest: Manifest | None) -> None:
    if manifest is not None:
        applied = system_screen.applied_text(manifest)
    else:
        applied = "oomproof changed settings here" if system_manifest.is_there(ROOT) else ""
    print_lines(lambda width, _: system_screen.screen(facts, jobs, plan, applied, width))


# --- acting -------------------------------------------------------------------------------------------------


def _apply(facts: SystemFacts, jobs: JobHistory, plan: Plan, yes: bool) -> int:
    if plan.blocked:
        raise OomproofError(f"nothing was changed: {plan.blocked}", "the commands: oomproof system")
    if os.geteuid() != 0:
        _show(facts, jobs, plan, None)
        raise OomproofError("nothing was changed: this needs root", "sudo oomproof system --apply")
    changes = plan.to_apply
    if not changes:
        _show(facts, jobs, plan, _manifest())
        return 0
    from oomproof.remedies.system_apply import apply, refuse_what_is_there

    refuse_what_is_there(changes, ROOT)
    print_lines(lambda width, _: [*system_screen.change_lines("To be done", changes, width, commands=False)])
    if not yes and not _agreed(len(changes)):
        print("oomproof: nothing was changed", file=sys.stderr)
        return OUR_FAILURE
    apply(changes, ROOT)
    _report(changes)
    return 0


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise OomproofError(
            "nothing was changed: there is no terminal to ask on", "to agree beforehand: --yes"
        )
    print(f"Make {'this change' if count == 1 else f'these {count} changes'}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _report(changes: tuple[Change, ...]) -> None:
    print(f"oomproof: done: {', '.join(change.title for change in changes)}")
    print(f"oomproof: written down in {system_manifest.PATH}; to take it back: sudo oomproof system --undo")


def _undo() -> int:
    if os.geteuid() != 0:
        raise OomproofError("nothing was changed: this needs root", "sudo oomproof system --undo")
    manifest = system_manifest.load(ROOT)
    if manifest is None:
        print("oomproof: nothing to undo: no setting of this machine was changed by oomproof")
        return 0
    from oomproof.remedies.system_apply import undo
    from oomproof.remedies.system_manifest import run_command

    undone = undo(manifest, "/proc", run_command)
    for sentence in undone.done:
        print(f"oomproof: {sentence}")
    if undone.refused:
        raise OomproofError(
            f"not undone: {'; '.join(undone.refused)}", "then again: sudo oomproof system --undo"
        )
    print("oomproof: everything that was applied has been undone")
    return 0
