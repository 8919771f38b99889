"""`oomproof size -- CMD`: sizes a command, and prints the table, the verdict and what to type next."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence

from oomproof.errors import USAGE
from oomproof.printable import show_line, tell, terminal_columns
from oomproof.sizing import calibrated_card, card_lookup, sizing_cache
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.estimate import Sizing
from oomproof.sizing.fit_verdict import Fit, Place, fit
from oomproof.sizing.screens import size_report as report
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.units import format_duration, parse_duration, parse_size

DEFAULT_TIME = "60s"


def run(
    args: argparse.Namespace,
    command: Sequence[str],
    places_of: Callable[[int | None, int | None], list[Place]],
) -> int:
    """The status: 0 when it was sized, the script's own when it failed by itself, 2 when it was refused."""
    from oomproof.sizing.script_sizing import size_command

    gpu, ram = (parse_size(size) if size else None for size in (args.gpu, args.ram))
    seconds = parse_duration(args.time_limit or DEFAULT_TIME)
    calibrated = calibrated_card.named(args.card) if args.card not in (None, "none") else None
    if calibrated is not None and gpu is None:
        gpu = calibrated.total
    places = places_of(gpu, ram)
    card = max((place.ever for place in places if place.kind == "gpu"), default=None)
    if sys.stderr.isatty():
        tell(f"running the command on a virtual GPU, for {format_duration(seconds)} or so…")
    sized = size_command(
        list(command),
        time_limit=seconds,
        gpu_total=gpu or card,
        allow_writes=args.allow_writes,
        tell=show_line,
        card_of=_card_of(args.card, calibrated, command[0]),
        card_torch=str(calibrated.facts.get("torch") or "") if calibrated is not None else "",
    )
    sizing, status = sized.sizing, sized.status
    fits = fits_of(sizing, places)
    if args.json:
        print(
            json.dumps(
                {
                    **sizing.as_json(),
                    "models": [],
                    "files": [],
                    "verdicts": [judged.as_json() for judged in fits],
                },
                indent=1,
            )
        )
    elif status == 0:
        print("\n".join(lines_of(sizing, fits, command, terminal_columns(100))))
    elif sizing.refused:
        tell(sizing.refused)
    return status or (USAGE if sizing.refused else 0)


def _card_of(
    asked: str | None, calibrated: CalibratedCard | None, program: str
) -> Callable[[VirtualResult], CalibratedCard | None]:
    if asked is not None:
        return lambda result: calibrated
    return card_lookup.measured(sizing_cache.python_of(program), tell)


def fits_of(sizing: Sizing, places: Sequence[Place]) -> list[Fit]:
    judged = [(place, sizing.host if place.kind == "ram" else sizing.gpu) for place in places]
    return [fit(place, estimate) for place, estimate in judged if estimate is not None]


def lines_of(sizing: Sizing, fits: Sequence[Fit], command: Sequence[str], width: int) -> list[str]:
    lines = report.sizing_lines(sizing, width)
    if sizing.refused:
        return lines
    no_card = sizing.gpu is not None and not any(judged.place.kind == "gpu" for judged in fits)
    lines += ["", *report.verdict_lines(fits, width)]
    if no_card:
        lines += ["", "No card to compare with; of one with 24 GiB: oomproof size --gpu 24G -- CMD"]
    return [*lines, "", *_next(sizing, fits, command, no_card)]


def _next(sizing: Sizing, fits: Sequence[Fit], command: Sequence[str], elsewhere: bool) -> list[str]:
    if any(judged.status == "never" for judged in fits):
        return ["Next: make it smaller (batch, length, bf16, gradient checkpointing), and ask again"]
    need = f"--need {report.typed(sizing.host.high)} " if sizing.host else ""
    need += f"--gpu-need {report.typed(sizing.gpu.high)} " if sizing.gpu else ""
    when = "start it with its need:"
    if any(judged.status == "not-now" for judged in fits):
        when = "it waits for memory:"
    elif elsewhere:
        when = "on the machine with the card, start it with its need:"
    return [f"Next: {when}", f"  oomproof run {need}-- {shlex.join(command)}"]
