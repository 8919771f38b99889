"""Measure this machine's GPU once, so that `oomproof size` knows what its libraries take.

Context and libraries, cuBLAS's workspaces, and the workspaces of convolutions, attention and matrix products are measured on the
card itself, in a child of the Python that has torch, for less than two minutes. Kept for this card, driver and torch; a file of
it can be taken to a machine without a card.

  oomproof calibrate                                   constants, and operations that many trainings have
  oomproof calibrate -- python train.py --batch 32     ... and the operations of this training, at their sizes
  oomproof calibrate --python ~/env/bin/python         the Python that has torch
  oomproof calibrate --export h200.json                ... and a file for other machines
  oomproof size --card h200.json -- python train.py    there: sized for that card
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.printable import tell
from oomproof.sizing import calibrated_card, calibration
from oomproof.sizing.calibrated_card import CalibratedCard, mib
from oomproof.sizing.calibration import common_operations
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.units import format_size, parse_duration

DEFAULT_TIME = "100s"
_BUSY_SHARE = 0.05  # of the card's memory: less than that a desktop takes too


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof calibrate [options] [-- CMD ...]"
    parser.set_defaults(command=[])
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="the Python that has torch (default: the command's, or python on PATH)",
    )
    parser.add_argument(
        "--export", metavar="FILE", help="also write the card's file there, for other machines"
    )
    parser.add_argument(
        "--time-limit", metavar="TIME", help=f"for measuring on the card (default: {DEFAULT_TIME})"
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the table")


def run(args: argparse.Namespace) -> int:
    seconds = parse_duration(args.time_limit or DEFAULT_TIME)
    python = calibration.python_with_torch(args.python or _python_of(args.command))
    kept: list[str] = []

    def keep(card: CalibratedCard) -> None:
        kept[:] = [str(calibrated_card.store(card))]

    # with a command: is there a card at all? Its operations are looked for only then
    first = [] if args.command else common_operations()
    measured = calibration.measure(python, first, seconds=seconds, constants=True, tell=tell, each=keep)
    if measured.card is None:
        raise calibration.refusal(measured, python)
    if args.command:
        met = _signatures_of(args.command)
        more = calibration.measure(python, met, seconds=seconds, constants=False, tell=tell, each=keep)
        if more.card is None:
            raise calibration.refusal(more, python)
        measured.card, measured.late = measured.card.merged(more.card), more.late
    for warning in measured.warnings:
        tell(warning)
    whole = calibrated_card.read(kept[0]) if kept else None
    if args.export:
        calibrated_card.write(args.export, whole or measured.card)
    if args.json:
        print(json.dumps(_json(measured, kept, args.export), indent=1))
    else:
        print("\n".join(_lines(measured, kept, args.export, args.command)))
    return 0


def _python_of(command: Sequence[str]) -> str | None:
    if not command:
        return None
    from oomproof.sizing.sizing_cache import python_of

    python = python_of(command[0])
    if python is None:
        raise OomproofError(
            f"{command[0]} is no Python program", "name the Python that has torch with --python", USAGE
        )
    return python


def _signatures_of(command: Sequence[str]) -> list[Mapping[str, Any]]:
    from oomproof.sizing.script_sizing import size_command

    tell("running the command on a virtual GPU first, to see its operations…")
    met: list[Mapping[str, Any]] = []

    def note(result: VirtualResult) -> None:
        met.extend(result.signatures)

    sized = size_command(
        list(command),
        time_limit=60.0,
        gpu_total=None,
        allow_writes=False,
        tell=tell,
        card_of=note,
        whole_epoch=False,
    )
    if refused := sized.sizing.refused:
        raise OomproofError(
            refused, "oomproof calibrate without a command still helps", sized.status or USAGE
        )
    return met


def _lines(
    measured: calibration.Measured, kept: Sequence[str], export: str | None, command: Sequence[str]
) -> list[str]:
    card = measured.card
    assert card is not None
    facts, constants = card.facts, card.constants
    lines = [
        f"{card.name} ({format_size(card.total or 0)}), driver {facts.get('driver') or 'unknown'}, torch {facts.get('torch')}, cuDNN {facts.get('cudnn')}"
    ]
    if card.context is not None:
        lines.append(
            f"  context    {mib(card.context.usual)} MiB with torch's libraries, {mib(constants['context'])} MiB alone"
        )
    if "matrix_workspace" in constants:
        backward = constants.get("matrix_workspace_backward", 0)
        lines.append(
            f"  cuBLAS     workspaces of {mib(constants['matrix_workspace'])} MiB, and {mib(backward)} MiB for the backward pass"
        )
    lines.append(f"  operations {len(card.signatures)} measured{_left_out(measured)}")
    if measured.others and measured.others > _BUSY_SHARE * (card.total or 1 << 60):
        lines.append(
            f"  note       {format_size(measured.others)} were in use on the card: measure again when it is idle"
        )
    lines += [f"kept in {kept[0]}"] if kept else []
    lines += [f"written to {export}"] if export else []
    words = " ".join(command) or "python train.py"
    return [*lines, "", "Next: size a training with it:", f"  oomproof size -- {words}"]


def _left_out(measured: calibration.Measured) -> str:
    assert measured.card is not None
    reasons = Counter(why.split(":")[0].split(",")[0][:60] for why in measured.card.skipped.values())
    parts = [f"{count} left out ({why})" for why, count in reasons.most_common(3)]
    if measured.late:
        parts.append(f"{measured.late} not reached in time (--time-limit)")
    return "".join(f"; {part}" for part in parts)


def _json(measured: calibration.Measured, kept: Sequence[str], export: str | None) -> dict[str, Any]:
    card = measured.card
    assert card is not None
    return {
        "schema": 1,
        "card": card.facts,
        "constants_bytes": card.constants,
        "measured": len(card.signatures),
        "skipped": [{"operation": key, "why": why} for key, why in card.skipped.items()],
        "not_reached": measured.late,
        "used_by_others_bytes": measured.others,
        "file": kept[0] if kept else None,
        "exported": export,
    }
