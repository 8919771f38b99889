"""What `oomproof rehearse` prints: the batch, what each phase took of card and host, whether that fits, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from oomproof.reports.table_text import folded, table
from oomproof.sizing.card_constants import ALLOCATOR_SPREAD
from oomproof.sizing.fit_verdict import Fit
from oomproof.sizing.host_figures import REPEATED
from oomproof.sizing.rehearsing import Rehearsal
from oomproof.sizing.screens.size_report import typed, verdict_lines
from oomproof.sizing.virtual_gpu.child_results import Batch
from oomproof.units import format_duration, format_size

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
