"""The fire drill: meets the memory error of hour nine in minute two.

Runs the command unchanged, on this machine's own card (or CPU), for about two minutes: the largest batch of its own loader
first, then an evaluation, a generation and a checkpoint. Tells what each took of the card and of the host, and stops. Its
files are safe: what it writes goes to memory, and is thrown away; the network is off.

  oomproof rehearse -- python train.py --batch-size 32
  oomproof rehearse --then-run -- python train.py     starts it afresh afterwards, with what it needs reserved
  oomproof rehearse --time-limit 5m -- python train.py
  oomproof rehearse --json -- python train.py

Exit status: 0 all that was reached fits; 69 it does not, out of memory included; 75 not beside what runs now; 2 it could not be
rehearsed; the script's own where it failed by itself. With --then-run that of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence

from oomproof.errors import NEVER, NOT_NOW, USAGE, OomproofError
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import show_line, tell_line, terminal_columns
from oomproof.reports.table_text import folded, table
from oomproof.sizing.card_constants import ALLOCATOR_SPREAD
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.fit_verdict import Fit, Place, card_of, fit
from oomproof.sizing.host_figures import REPEATED
from oomproof.sizing.rehearsing import Rehearsal, rehearse
from oomproof.sizing.screens.size_report import typed, verdict_lines
from oomproof.sizing.verbs.size import places_here
from oomproof.sizing.virtual_gpu.child_results import Batch
from oomproof.units import format_duration, format_size, parse_duration

DEFAULT_TIME = "2m"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof rehearse [options] -- CMD ..."
    parser.add_argument(
        "--time-limit", metavar="TIME", default=DEFAULT_TIME, help="from its first batch on (default: 2m)"
    )
    parser.add_argument(
        "--then-run",
        action="store_true",
        help="start it afterwards with `oomproof run`, in a new process, if it fits",
    )
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="let it write to disk where its writes cannot be kept in memory",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON instead of the table")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(args: argparse.Namespace) -> int:
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise OomproofError("no command to rehearse", "oomproof rehearse -- python train.py", USAGE)
    seconds = parse_duration(args.time_limit)
    if seconds < 5:
        raise OomproofError(f"--time-limit {args.time_limit} is too short", "give at least 5s", USAGE)
    if sys.stderr.isatty():
        tell_line(f"rehearsing for {format_duration(seconds)} or so, once it has loaded…")
    rehearsal = rehearse(command, time_limit=seconds, allow_writes=args.allow_writes, tell=show_line)
    fits = fits_of(rehearsal)
    status = status_of(rehearsal, fits)
    if args.json:
        value = {**rehearsal.as_json(), "verdicts": [judged.as_json() for judged in fits], "status": status}
        print(json.dumps(value, indent=1))
    elif rehearsal.refused:
        tell_line(rehearsal.refused)
    else:
        print("\n".join(lines_of(rehearsal, fits, command, terminal_columns(100))), flush=True)
    if rehearsal.out_of_memory is not None and not args.json:
        tell_line(out_of_memory_text(rehearsal))
    if status == 0 and args.then_run:
        return _start(rehearsal, command)
    return status


def fits_of(rehearsal: Rehearsal) -> list[Fit]:
    """Of what was measured: the host's figure against this machine, the card's against the card."""
    if rehearsal.refused or rehearsal.out_of_memory is not None:
        return []
    places: list[tuple[Place, int]] = []
    if (host := rehearsal.peak("host")) is not None:
        places.append((next(place for place in places_here() if place.kind == "ram"), host))
    if (gpu := rehearsal.peak("gpu")) is not None and rehearsal.card_total:
        places.append((_card(rehearsal), gpu))
    return [fit(place, Estimate(need, need, need, {})) for place, need in places]


def _card(rehearsal: Rehearsal) -> Place:
    total = rehearsal.card_total or 0
    place = card_of(total)
    free = max(0, total - rehearsal.card_others)
    return Place(
        "gpu",
        f"GPU {rehearsal.card}",
        free,
        total,
        f"{place.name}, others hold {format_size(rehearsal.card_others)}",
    )


def status_of(rehearsal: Rehearsal, fits: Sequence[Fit]) -> int:
    if rehearsal.refused:
        return rehearsal.status or USAGE
    if (oom := rehearsal.out_of_memory) is not None:
        return NOT_NOW if oom.others >= 1 << 30 else NEVER
    if any(judged.status == "never" for judged in fits):
        return NEVER
    return NOT_NOW if any(judged.status == "not-now" for judged in fits) else 0


def _start(rehearsal: Rehearsal, command: list[str]) -> int:
    """Afresh, in this process's place: nothing of the rehearsal is left in it."""
    words = [*OWN_COMMAND, "run", *needs(rehearsal), "--", *command]
    sys.stdout.flush()
    os.execvp(words[0], words)


# What `oomproof rehearse` prints: the batch, what each phase took of card and host, whether that fits, and what to type next.

_EXPECTED = ("train", "eval", "save")  # of every training; not all generate


def lines_of(rehearsal: Rehearsal, fits: Sequence[Fit], command: Sequence[str], width: int) -> list[str]:
    lines = [f"rehearsed in {format_duration(rehearsal.seconds)}: {seen(rehearsal)}"]
    named = (
        (f"{'batch' if batch.training else 'eval batch':>10}  ", batch_text(batch))
        for batch in rehearsal.batches
    )
    for name, text in dict.fromkeys(named):  # a dataset that is made anew for each epoch, once
        lines += folded(name, text, width)
    lines += ["", *_table(rehearsal, width)]
    for note in rehearsal.notes:
        lines += folded(f"{'note':>10}  ", note, width)
    missing = [phase.name for phase in rehearsal.phases if not phase.reached and phase.name in _EXPECTED]
    if missing and rehearsal.steps:
        text = (
            f"not reached: {', '.join(missing)}. What that takes is not known; --time-limit gives it longer"
        )
        lines += folded(f"{'note':>10}  ", text, width)
    if short := short_text(rehearsal, fits):
        lines += ["", *folded("", short, width)]
    lines += ["", *verdict_lines(fits, width)]
    return [*lines, "", *next_lines(rehearsal, fits, command)]


def seen(rehearsal: Rehearsal) -> str:
    parts = [_count(rehearsal.steps, "step")]
    for number, name in (
        (rehearsal.evaluations, "evaluation"),
        (rehearsal.generations, "generation"),
        (rehearsal.saves, "checkpoint"),
    ):
        if number:
            parts.append(_count(number, name))
    return ", ".join(parts)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


def batch_text(batch: Batch) -> str:
    looked = f"{batch.looked:,}"
    if batch.of is not None:
        looked = (
            f"all {batch.of:,} samples"
            if batch.looked >= batch.of
            else f"{batch.looked:,} of {batch.of:,} samples"
        )
    elif batch.looked:
        looked = f"{batch.looked:,} batches"
    shapes = ", ".join(batch.shapes)
    text = f"{shapes}: {batch.how}" if shapes else batch.how
    if batch.usual and batch.largest:
        times = batch.largest / batch.usual
        text += (
            f" (looked at {looked}; the largest is {times:.1f} times the usual one)"
            if times >= 1.05
            else f" (looked at {looked}; all are alike)"
        )
    return text


def _table(rehearsal: Rehearsal, width: int) -> list[str]:
    total = rehearsal.card_total
    rows = [["phase", "GPU", "of the card", "tensors", "host"]]
    for phase in rehearsal.phases:
        if phase.reached:
            rows.append(
                [
                    phase.name,
                    _size(phase.gpu),
                    _share(phase.gpu, total),
                    _size(phase.allocated),
                    _size(phase.host),
                ]
            )
        elif phase.name in _EXPECTED:
            rows.append([phase.name, "not reached", "", "", ""])
    if total is None:
        rows = [[row[0], row[4] or row[1]] for row in rows]
    return [f"  {line}" for line in table(rows, width - 2)]


def _size(size: int | None) -> str:
    return format_size(size) if size is not None else "-"


def _share(size: int | None, total: int | None) -> str:
    return f"{size / total:.0%}" if size is not None and total else "-"


def out_of_memory_text(rehearsal: Rehearsal) -> str:
    """The refusal: the phase by its name."""
    oom = rehearsal.out_of_memory
    assert oom is not None
    what = "GPU memory" if oom.where == "gpu" else "memory"
    others = f"; other processes hold {format_size(oom.others)} of the card" if oom.others >= 1 << 30 else ""
    return f"out of {what} in {oom.phase}: {oom.text}{others}"


def short_text(rehearsal: Rehearsal, fits: Sequence[Fit]) -> str:
    """Which phase it is that does not fit."""
    for judged in fits:
        if judged.status not in ("fits", "close"):
            name = "host" if judged.place.kind == "ram" else "gpu"
            phase = max(rehearsal.phases, key=lambda phase: getattr(phase, name) or 0)
            why = (
                f", {format_size(phase.kept)} of it for the batches that were left out" if phase.kept else ""
            )
            return f"{phase.name} does not fit: it needs {format_size(getattr(phase, name))} {_ON[name]}{why}"
    return ""


_ON = {"host": "of RAM", "gpu": "of the card"}


def next_lines(rehearsal: Rehearsal, fits: Sequence[Fit], command: Sequence[str]) -> list[str]:
    if rehearsal.out_of_memory is not None or any(judged.status in ("never", "not-now") for judged in fits):
        if any(
            phase.kept > (getattr(phase, "gpu" if phase.gpu is not None else "host") or 0) // 2
            for phase in rehearsal.phases
        ):
            return [
                "Next: let the evaluation's outputs go (sums, or .cpu() and a file) instead of keeping them, and rehearse again"
            ]
        return ["Next: make it smaller (batch, length, bf16, gradient checkpointing), and rehearse again"]
    return [
        "Next: start it with its need:",
        f"  {shlex.join(['oomproof', 'run', *needs(rehearsal), '--', *command])}",
    ]


def needs(rehearsal: Rehearsal) -> list[str]:
    """The flags of `run` that reserve what was measured."""
    host, gpu = rehearsal.peak("host"), rehearsal.peak("gpu")
    # the same job holds more in another run
    words = ["--need", typed(int(host * (2 - REPEATED)))] if host else []
    if gpu and rehearsal.card is not None:
        more = int(gpu * (1 + ALLOCATOR_SPREAD))
        words += ["--gpu-need", typed(min(more, max(gpu, rehearsal.card_total or more)))]
    return words
