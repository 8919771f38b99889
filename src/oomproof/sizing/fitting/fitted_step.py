"""The largest batch for one step of a training: measured on the device it runs on, and everything put back; or predicted for a card that is not here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from oomproof.errors import OomproofError
from oomproof.records import replace
from oomproof.sizing import step_sizing
from oomproof.sizing.batch_search import largest_batch
from oomproof.sizing.caching_allocator import smallest_capacity
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.fitting import fitted_batch, rank_agreement
from oomproof.sizing.fitting.fitted_batch import Asked, Batch
from oomproof.sizing.fitting.measured_fit import FitSettings, MeasuredFit
from oomproof.sizing.fitting.module_state import modules_of
from oomproof.sizing.fitting.process_state import process_state
from oomproof.sizing.fitting.put_back import put_back
from oomproof.sizing.fitting.rank_agreement import Ranks
from oomproof.sizing.fitting.released_memory import empty_cache
from oomproof.sizing.fitting.split_notes import Seen, compares, split_notes
from oomproof.sizing.fitting.training_probe import need_torch
from oomproof.sizing.scaled_log import log_pair
from oomproof.sizing.virtual_run import VirtualRun, asked_expandable, widths
from oomproof.units import format_size

_CALLS = 72  # of a step that accumulates gradients by itself
_SECONDS = 60.0  # for one virtual step
_START = 8  # a look at a virtual GPU costs the same at any batch


def fit_step(
    step: Callable[..., Any],
    model: Any,
    optimizer: Any,
    make_batch: Callable[[int], Any],
    settings: FitSettings,
    *,
    gpu: int | None,
    state: Mapping[str, Any] | None,
) -> Batch:
    need_torch()
    ranks = rank_agreement.here()
    asked = Asked(settings.effective, settings.most, ranks.world)
    asked.check()
    numbers = process_state(step, make_batch)
    try:
        seen = seen_of(model, make_batch)
        if gpu is not None:
            return _predicted(step, model, optimizer, make_batch, settings, asked, ranks, seen, gpu)
    finally:
        numbers()

    def run(batch: Batch) -> None:
        piece = make_batch(batch.size)
        for _ in range(_CALLS):
            step(model, optimizer, piece)

    @contextmanager
    def around() -> Iterator[Callable[[], None]]:
        with put_back(step, model, optimizer) as back:

            def as_before() -> None:
                back()
                empty_cache()
                numbers()

            yield as_before

    fit = MeasuredFit(run, settings, asked, ranks, around, confirm=True)
    fit.seen = seen
    return fit.fitted(state)


def seen_of(model: Any, make_batch: Callable[[int], Any]) -> Seen:
    from torch.nn.modules.batchnorm import _BatchNorm

    modules = modules_of(model)
    norms = sum(isinstance(module, _BatchNorm) and module.training for module in modules)
    comparing = tuple(sorted({name for module in modules if compares(name := type(module).__name__)}))
    return Seen(norms, comparing, unequal=unequal_in(make_batch(2)))


def unequal_in(piece: Any) -> str:
    """By the names that transformers has for them."""
    if not isinstance(piece, Mapping):
        return ""
    mask, labels = piece.get("attention_mask"), piece.get("labels")
    if mask is not None and hasattr(mask, "min") and mask.numel() and int(mask.min()) == 0:
        return "padding in attention_mask"
    if labels is not None and hasattr(labels, "min") and labels.numel() and int(labels.min()) == -100:
        return "labels of -100 are left out"
    return ""


def _predicted(
    step: Callable[..., Any],
    model: Any,
    optimizer: Any,
    make_batch: Callable[[int], Any],
    settings: FitSettings,
    asked: Asked,
    ranks: Ranks,
    seen: Seen,
    gpu: int,
) -> Batch:
    """On virtual copies: nothing of the user's is touched."""
    capacity = max(0, min(gpu - ANY_CARD.context.high, settings.capacity or gpu))
    runs: dict[int, VirtualRun] = {}

    def need(size: int) -> int:
        run = step_sizing.step_run(step, model, optimizer, make_batch(size), seconds=_SECONDS)
        if isinstance(run, str):
            raise OomproofError(
                f"the step cannot be predicted: {run}", "without gpu= it is measured where it runs"
            )
        runs[size] = run
        return predicted_need(run)

    found = largest_batch(need, capacity, start=_START, most=asked.most, candidates=asked.sizes())
    if not found.batch:
        smallest = min(found.seen)
        raise OomproofError(
            f"not even a batch of {smallest} fits: it needs {format_size(found.seen[smallest])} of {format_size(capacity)}",
            fitted_batch.SMALLER_MODEL,
        )
    seen = replace(seen, squares=_squares(runs))
    size = ranks.agree(found.batch)
    batch = asked.batch(size, most=found.batch, need=found.at(size), capacity=capacity)
    batch = replace(batch, notes=(*batch.notes, *split_notes(seen, size, size * batch.accum)))
    if ranks.rank == 0:
        settings.tell(f"{batch}, predicted for a card of {format_size(gpu)}")
        for note in batch.notes:
            settings.tell(f"note: {note}")
    return batch


def predicted_need(run: VirtualRun) -> int:
    """With what is not known of its kernels."""
    least = smallest_capacity(run.events, asked_expandable(run))
    return int(least * (1 + sum(widths(run.result).values())))


def _squares(runs: Mapping[int, VirtualRun]) -> int:
    sizes = sorted(runs)
    for small, large in pairwise(sizes):
        pair = log_pair(small, runs[small].events, large, runs[large].events)
        if pair is not None:
            return pair.squares
    return 0
