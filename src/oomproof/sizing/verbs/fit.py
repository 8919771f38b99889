"""Finds the largest plan that fits: batch, accumulation and workers, without a crash on the way.

The command runs unchanged on a virtual GPU with a few batch sizes (its files are safe, as with `oomproof size`), the rest follows
from lines between them. The answer is the table that people make by hand, conservative to maximum, and the command to type.

  oomproof fit -- python train.py --batch-size {batch}
  oomproof fit --effective 512 -- python train.py --batch-size {batch} \\
      --accum {accum} --workers {workers}
  oomproof fit -- python train.py --batch-size 64 --num_workers 16      arguments that tell what they are need no braces
  oomproof fit --gpu 24G --ram 30G -- python train.py --bs {batch}         for another machine
  oomproof fit --knob ckpt=,--gradient-checkpointing -- python train.py \\
      --bs {batch} {ckpt}
  oomproof fit --knob seq_len=2048,1024,512 --order seq_len,batch -- \\
      python train.py --bs {batch} --seq_len {seq_len}

{batch}, {accum}, {workers}, {prefetch} and {eval_batch} need no description; any other name needs a --knob with its values, the
preferred first. Where not even the smallest batch fits, they are given up in this order, or in that of --order: gradient
checkpointing, precision, others, lengths.

Exit status: 0 when a plan fits, 69 when none does, the script's own when it failed by itself, 2 usage or refused.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence

from oomproof.cli.command_knobs import knobs_of
from oomproof.cli.command_parser import count
from oomproof.errors import NEVER, USAGE, OomproofError
from oomproof.ledger.budget import default_margin
from oomproof.machine.nvidia import driver_present
from oomproof.plans.knobs import Template
from oomproof.plans.plan import Plan, check_effective, number
from oomproof.plans.smaller_plans import argument_name
from oomproof.printable import show_line, tell_line, terminal_columns
from oomproof.sizing import calibrated_card, card_lookup, script_sizing, sizing_cache
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.fit_verdict import Place, card_of, ram_of
from oomproof.sizing.planning.fit_measure import BetweenRuns, point_of
from oomproof.sizing.planning.fit_points import Point
from oomproof.sizing.planning.fit_search import FitAnswer, FitRequest, NotSized, fit
from oomproof.sizing.planning.fit_tiers import Capacity, Confirmation, confirmation
from oomproof.sizing.planning.step_times import paces_of, usual_batch
from oomproof.sizing.screens import fit_screen
from oomproof.sizing.verbs.size import places_here
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.units import format_size, parse_duration, parse_size

NO_CARD = "none"
_TIME = "60s"
_REAL_SECONDS = 30.0
_MEASURED = 2  # times the card is asked: what was measured may change which plan is the largest
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof fit [options] -- CMD ... {batch} ..."
    parser.add_argument(
        "--effective",
        type=count("samples"),
        metavar="N",
        help="samples of one optimizer step, to be kept: batch times accumulation",
    )
    parser.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="what {NAME} may be, the preferred first: 64..4 or a,b,c (\\, is a comma)",
    )
    parser.add_argument(
        "--order",
        metavar="NAMES",
        help="what is given up first, such as seq_len,ckpt (default: lengths last)",
    )
    parser.add_argument("--most", type=count("samples"), metavar="N", help="the largest batch to look at")
    parser.add_argument(
        "--gpu", metavar="SIZE", help="for a card of this size, such as 24G; none: for a machine without one"
    )
    parser.add_argument("--ram", metavar="SIZE", help="for a machine with this much RAM")
    parser.add_argument("--shm", metavar="SIZE", help="... and this much /dev/shm")
    parser.add_argument(
        "--card", metavar="CARD", help="for this calibrated card, by its file or name (none: no measurements)"
    )
    parser.add_argument("--time-limit", metavar="TIME", help="of each virtual run (default: 60s)")
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="let it write to disk where its writes cannot be kept in memory",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        default=None,
        help="run the plan to start with for real, for half a minute, its files safe (default: where there is a card)",
    )
    parser.add_argument("--no-confirm", dest="confirm", action="store_false", help="do not")
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the table")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.confirm and arguments.gpu not in (None, NO_CARD):
        raise OomproofError("--confirm is for this machine's own card", "leave --gpu out", USAGE)
    template = _template(command, arguments)
    effective = (
        arguments.effective if arguments.effective is not None else _typed_effective(template, arguments.most)
    )
    check_effective(template, effective)
    calibrated = calibrated_card.named(arguments.card) if arguments.card not in (None, "none") else None
    where = _places(arguments, calibrated)
    capacity = _capacity(where, arguments)
    request = FitRequest(
        template,
        capacity,
        effective,
        tuple(arguments.order.split(",")) if arguments.order else (),
        os.cpu_count() or 1,
        arguments.most,
        usual=usual_batch(template, command, os.getcwd()) if template.typed else None,
        # of another machine nothing was measured here
        paces=paces_of(template, os.getcwd()) if arguments.gpu in (None, NO_CARD) else (),
    )
    runs = _VirtualRuns(arguments, template, calibrated, where)
    try:
        answer = _fitted(request, runs)
    except NotSized as unsized:
        if not unsized.failed:
            raise
        return unsized.failed  # its own error and why were told
    real = _confirmed(answer, arguments)
    if arguments.json:
        print(json.dumps(fit_screen.as_json(answer, where, real), indent=1))
    else:
        print("\n".join(fit_screen.lines(answer, where, terminal_columns(100), real)))
    return 0 if answer.fits else NEVER


def _fitted(request: FitRequest, runs: _VirtualRuns) -> FitAnswer:
    between = BetweenRuns()
    answer = fit(request, runs.measure, between.point, between.least)
    for _ in range(_MEASURED):
        if not runs.measure_card(_largest_batch(answer)):
            break
        answer = fit(request, runs.measure, between.point, between.least)  # few new runs, if any
    return answer


def _confirmed(answer: FitAnswer, arguments: argparse.Namespace) -> list[Confirmation]:
    """Of the plan to start with; where that runs out of memory after all, of the more careful ones."""
    wanted = arguments.confirm
    if wanted is None:
        wanted = answer.on_card and not arguments.gpu and driver_present()
    if not wanted or not answer.fits:
        return []
    from oomproof.sizing.rehearsing import rehearse

    real: list[Confirmation] = []
    for tier in fit_screen.more_careful(answer):
        assert tier.plan is not None
        command = answer.request.template.command(tier.plan.as_dict())
        tell_line(f"running the {tier.name} plan for real, for half a minute or so: {tier.plan}")
        rehearsal = rehearse(
            command, time_limit=_REAL_SECONDS, allow_writes=arguments.allow_writes, tell=show_line
        )
        real.append(confirmation(tier, rehearsal))
        if real[-1].fits is not False:
            break
    return real


def _largest_batch(answer: FitAnswer) -> int:
    """That was found to fit."""
    plan = answer.chosen.maximum.plan
    return (number(answer.request.template, plan, "batch") or 0) if plan is not None else -1


def _template(command: Sequence[str], arguments: argparse.Namespace) -> Template:
    example = "oomproof fit -- python train.py --batch-size {batch}"
    if not command:
        raise OomproofError("no command to fit", example, USAGE)
    template = knobs_of(command, arguments.knob, os.getcwd())
    if not template.knobs:
        raise OomproofError(
            "nothing of the command can change: it has no placeholder, and no argument whose name says what it is",
            f"put one where a value belongs: {example}{_about_config(command)}",
            USAGE,
        )
    if not template.typed:
        typed = [knob for knob in template.knobs if knob.name not in dict(template.overrides)]
        for where, knobs in (("the command", typed), ("its configs", template.knobs[len(typed) :])):
            if known := ", ".join(f"{argument_name(template, knob.name)} {knob.first}" for knob in knobs):
                tell_line(f"taken from {where}: {known}")
    return template


def _about_config(command: Sequence[str]) -> str:
    """Of a file in the command that may have the settings."""
    files = [word.partition("=")[2] or word for word in command if word.endswith(_CONFIGS)]
    if not files:
        return ""
    how = "by an argument that overrides it, such as data.batch_size={batch}, where the program takes such"
    return f"; {files[0]} is not edited: a value in it is changed {how}"


def _typed_effective(template: Template, most: int | None) -> int | None:
    """What the command's own arguments make: that is kept, where nothing else was asked."""
    micro, accum = template.knob("batch"), template.knob("accum")
    if template.typed or most is not None or micro is None or micro.first is None:
        return None
    return micro.first * (accum.first or 1) if accum is not None else micro.first


def _places(arguments: argparse.Namespace, calibrated: CalibratedCard | None) -> list[Place]:
    """RAM, and the card with the most free memory; each of this machine unless it is described."""
    ram = parse_size(arguments.ram) if arguments.ram else None
    card = parse_size(arguments.gpu) if arguments.gpu not in (None, NO_CARD) else None
    if card is None and calibrated is not None:
        card = calibrated.total
    asked = card is not None or arguments.gpu == NO_CARD
    here = places_here() if ram is None or not asked else []
    rams = (
        [ram_of(ram, default_margin(ram))]
        if ram is not None
        else [place for place in here if place.kind == "ram"]
    )
    cards = (
        [card_of(card)]
        if card is not None
        else []
        if asked
        else [place for place in here if place.kind == "gpu"]
    )
    return [*rams, *sorted(cards, key=lambda place: -place.now)[:1]]


def _capacity(where: Sequence[Place], arguments: argparse.Namespace) -> Capacity:
    """A machine that is described is empty; of this one what is free now."""
    gpu = next((place.now for place in where if place.kind == "gpu"), None)
    ram = next(place.now for place in where if place.kind == "ram")
    if arguments.shm:
        return Capacity(gpu, ram, parse_size(arguments.shm))
    return Capacity(gpu, ram, None if arguments.ram else _shared_memory())


def _shared_memory() -> int | None:
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize


class _VirtualRuns:
    """Each plan run once on a virtual GPU; told as it comes."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        template: Template,
        calibrated: CalibratedCard | None,
        where: Sequence[Place],
    ) -> None:
        self.template = template
        self.seconds = parse_duration(arguments.time_limit or _TIME)
        self.allow_writes: bool = arguments.allow_writes
        self.calibrated = calibrated
        self.may_measure = arguments.card is None and not arguments.gpu
        total = next((place.ever for place in where if place.kind == "gpu"), None)
        self.total = 0 if arguments.gpu == NO_CARD else total
        self.runs: dict[Plan, script_sizing.SizedScript] = {}
        self.unsized: dict[Plan, NotSized] = {}

    def measure(self, plan: Plan) -> Point:
        """Raises NotSized, of the same plan without another run."""
        if plan in self.unsized:
            raise self.unsized[plan]
        if plan not in self.runs:
            try:
                self.runs[plan] = self._run(plan)
            except NotSized as unsized:
                self.unsized[plan] = unsized
                raise
        sized = script_sizing.with_card(self.runs[plan], self.calibrated, self.total)
        return point_of(sized, number(self.template, plan, "batch") or 0)

    def _run(self, plan: Plan) -> script_sizing.SizedScript:
        begun = time.monotonic()
        tell_line(f"{plan}: sizing on a virtual GPU …")
        sized = script_sizing.size_command(
            self.template.command(plan.as_dict()),
            time_limit=self.seconds,
            gpu_total=self.total,
            allow_writes=self.allow_writes,
            tell=show_line,
            card_of=self._card_of,
            whole_epoch=False,  # what is cached beyond it can be given back
        )
        if sized.status or sized.run is None:
            tell_line(
                f"{plan}: not sized: {sized.sizing.refused} (virtual run, {time.monotonic() - begun:.0f} s)"
            )
            raise NotSized(plan, sized.sizing.refused or "", sized.status)
        sizing = sized.sizing
        figures = [f"{format_size(sizing.gpu.expected)} of the card"] if sizing.gpu is not None else []
        figures += [f"{format_size(sizing.host.expected)} of RAM"] if sizing.host is not None else []
        tell_line(f"{plan}: {', '.join(figures)} (virtual run, {time.monotonic() - begun:.0f} s)")
        return sized

    def _card_of(self, result: VirtualResult) -> CalibratedCard | None:
        """As it was measured before; what is missing is measured once, at the end, for the plan that matters."""
        if self.calibrated is None and self.may_measure:
            self.calibrated = card_lookup.kept(result)
        return self.calibrated

    def measure_card(self, batch: int) -> bool:
        """Measures the operations of the largest plan on the card, where there is one; whether that found anything new."""
        known = [
            (plan, sized)
            for plan, sized in self.runs.items()
            if number(self.template, plan, "batch") == batch
        ]
        if not self.may_measure or not known or not driver_present():
            return False
        plan, sized = known[-1]
        assert sized.seen is not None
        signatures = sized.seen.result.signatures
        if not sized.seen.events or (self.calibrated is not None and not self.calibrated.missing(signatures)):
            return False
        python = sizing_cache.python_of(self.template.command(plan.as_dict())[0])
        self.calibrated = card_lookup.measured(python, tell_line)(sized.seen.result) or self.calibrated
        return self.calibrated is not None
