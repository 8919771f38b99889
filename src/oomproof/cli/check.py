"""What this machine holds, what is safe to start now, and what is risky.

With --need it answers one question, does it fit beside what runs and what is reserved, and shows the arithmetic.
Exit status: 0 it fits, 75 not now, 69 never on this machine.

  oomproof check                                 the machine on one screen
  oomproof check --need 20G                      does a job of 20 GiB fit now?
  oomproof check --need 20G --gpu-need 12G:0     ... and 12 GiB on GPU 0?
  oomproof check --need 20G --json | jq .answers
  oomproof check --need 20G && python train.py   start only when it fits
  oomproof check --together train=19G,glm=20G    do both fit at the same time? what would make them?
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from oomproof.cli.command_parser import refuse
from oomproof.errors import OomproofError
from oomproof.ledger.budget import Answer, Budget, answer, answer_gpu
from oomproof.ledger.machine_facts import Facts, budget_of, gather, rows
from oomproof.ledger.risks import risks
from oomproof.machine.gpu import Gpus
from oomproof.records import replace
from oomproof.reports import check_screen as report
from oomproof.settings import ledger_setting
from oomproof.units import GIB, format_size, parse_gpu_need, parse_size

if TYPE_CHECKING:
    from oomproof.ledger.ledger_snapshot import LedgerSnapshot


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--need", metavar="SIZE", help="does a job that needs this much RAM fit? (20G is 20 GiB)"
    )
    parser.add_argument(
        "--gpu-need", metavar="SIZE[:GPU]", help="does this much fit on the GPU? (12G: any GPU, 12G:1: GPU 1)"
    )
    parser.add_argument(
        "--together",
        metavar="JOBS",
        help="do these fit at the same time, in which order, and what would make them: train=19G,glm=20G,desktop=3G "
        "(a run's name alone: what it held before)",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the screen")


def run(args: argparse.Namespace) -> int:
    if args.together is not None:
        from oomproof.cli import check_together

        refuse(
            args,
            ("need", "gpu_need"),
            "does nothing beside --together",
            "name the job there: --together big=20G",
        )
        check_together.parse(args.together)  # before the machine is looked at
        facts = gather()
        return check_together.run(args.together, facts, look_at_ledger(facts)[0], args.json)
    need = parse_size(args.need) if args.need else None
    gpu_need = parse_gpu_need(args.gpu_need) if args.gpu_need else None
    question = f" --need {args.need}" if args.need else ""
    question += f" --gpu-need {args.gpu_need}" if args.gpu_need else ""
    facts = gather()
    check = examine(facts, need, gpu_need, question, look_at_ledger(facts))
    if args.json:
        print(json.dumps(report.to_json(check), indent=2))
    else:
        report.show(check)
    return worst(check.answers)


def look_at_ledger(facts: Facts) -> tuple[LedgerSnapshot | None, list[str]]:
    """(who runs and waits, what is wrong with the ledger). A reader makes no ledger where there is none."""
    from oomproof.ledger.ledger_entries import live_entries
    from oomproof.ledger.ledger_snapshot import (  # they cost a third of this command's start
        held_on_cards,
        look,
    )
    from oomproof.ledger.ledger_store import Busy, is_there, open_ledger

    wanted = ledger_setting()
    try:
        if not is_there(wanted) and not live_entries():
            return None, []
    except OomproofError as error:
        return None, [error.message]
    ledger = open_ledger(wanted)
    try:
        return look(ledger, cards_held=held_on_cards(facts.gpus), times=True), ledger.notes
    except (Busy, OomproofError) as error:
        return None, [str(error)]
    finally:
        ledger.close()


def examine(
    facts: Facts,
    need: int | None = None,
    gpu_need: tuple[int, int | None] | None = None,
    question: str = "",
    ledger: tuple[LedgerSnapshot | None, list[str]] = (None, []),
) -> report.Check:
    """Facts in, everything the screen shows out. ``question`` is how the user asked, to be asked again."""
    snapshot, troubles = ledger
    budget = budget_of(facts, reserved=snapshot.budget.reserved if snapshot else 0)
    if gpu_need and any(card.unified for card in facts.gpus.gpus):
        need, gpu_need = (need or 0) + gpu_need[0], None  # the GPU's memory is the machine's RAM
    ram = answer(budget, need) if need is not None else None
    gpu = answer_gpu(less_reserved(facts.gpus, snapshot), *gpu_need) if gpu_need else None
    return report.Check(
        facts=facts,
        budget=budget,
        rows=rows(facts.here, facts.unowned_here, facts.jobs[: report.JOBS_SHOWN]),
        risks=risks(facts, budget),
        answers=tuple(given for given in (ram, gpu) if given),
        next_step=next_step(facts, budget, ram, gpu, question),
        snapshot=snapshot,
        ledger_troubles=tuple(troubles),
    )


def less_reserved(gpus: Gpus, snapshot: LedgerSnapshot | None) -> Gpus:
    """The cards as a newcomer finds them: what is reserved on them is not free."""
    if snapshot is None:
        return gpus
    from oomproof.ledger.admission import Card, card_available

    claims = snapshot.claims
    cards = []
    for card in gpus.gpus:
        if card.free is not None:
            hidden = None if card.processes or not card.note else card.used
            card = replace(card, free=max(0, card_available(Card(card.index, card.free, hidden), claims)))
        cards.append(card)
    return replace(gpus, gpus=tuple(cards))


def worst(answers: tuple[Answer, ...]) -> int:
    """Never beats not now beats fits."""
    order = ("fits", "not-now", "never")
    return max(answers, key=lambda answer: order.index(answer.status)).exit_status if answers else 0


def next_step(
    facts: Facts, budget: Budget, ram: Answer | None, gpu: Answer | None, question: str
) -> tuple[str, str]:
    """(when, the command to type)."""
    again = f"oomproof check{question}"
    if ram and ram.status == "never":
        return (
            "make the job fit this machine, then ask again:",
            f"oomproof check --need {_typed(budget.ever)}",
        )
    if gpu and gpu.status == "never":
        return "take a machine with a larger GPU; what is here:", "oomproof check"
    if ram and ram.status == "not-now":
        job = facts.jobs[0] if facts.jobs else None
        if job and job.use >= ram.short_by:
            return f"when pid {job.pid} ({format_size(job.use)}) is done, ask again:", again
        return f"when {format_size(ram.short_by)} more are free, ask again:", again
    if gpu and gpu.status == "not-now":
        return f"when {format_size(gpu.short_by)} more are free on the GPU, ask again:", again
    if not budget.now:
        return "nothing is safe to start; when a job is done, look again:", again
    need = question.partition(" --gpu-need")[0].strip() if ram else ""
    return "start the job under the guard:", f"oomproof run {need + ' ' if need else ''}-- python train.py"


def _typed(size: int) -> str:
    """A size the user can type back, rounded down."""
    return f"{size // GIB}G" if size >= GIB else f"{size >> 20}M"
