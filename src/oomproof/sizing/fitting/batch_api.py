"""`oomproof.fit_batch`: the largest batch that fits, for a training function or for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from oomproof.errors import USAGE, OomproofError
from oomproof.sizing.fitting import fit_messages
from oomproof.sizing.fitting.fitted_batch import Batch
from oomproof.sizing.fitting.fitted_function import FittedFunction
from oomproof.sizing.fitting.measured_fit import SETTLED, FitSettings
from oomproof.sizing.fitting.probe_plan import START
from oomproof.units import parse_size

Size = str | int | None


@overload
def fit_batch(step: Callable[..., Any], *, effective: int | None = ...) -> FittedFunction: ...
@overload
def fit_batch(
    *, effective: int | None = ..., most: int | None = ..., start: int = ..., capacity: Size = ..., settled: int = ...,
    resume: Mapping[str, Any] | None = ..., quiet: bool = ...,
) -> Callable[[Callable[..., Any]], FittedFunction]: ...  # fmt: skip
@overload
def fit_batch(
    step: Callable[..., Any], model: Any, optimizer: Any, make_batch: Callable[[int], Any], *, effective: int | None = ...,
    most: int | None = ..., start: int = ..., capacity: Size = ..., gpu: Size = ..., resume: Mapping[str, Any] | None = ...,
    quiet: bool = ...,
) -> Batch: ...  # fmt: skip


def fit_batch(
    step: Callable[..., Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
    make_batch: Callable[[int], Any] | None = None,
    *,
    effective: int | None = None,
    most: int | None = None,
    start: int = START,
    capacity: Size = None,
    gpu: Size = None,
    settled: int = SETTLED,
    resume: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Any:
    """The largest batch that fits, with as many passes per optimizer step as keep the effective batch.

    As a decorator, ``@oomproof.fit_batch(effective=512)`` before ``def train(batch):``, it calls the function with a few small batches for
    two or three optimizer steps each, then once with the largest that fits: ``batch.size`` samples at once, ``batch.accum`` times a step.
    The function must be able to start anew each time.

    With ``fit_batch(step, model, optimizer, make_batch, effective=512)`` it returns that batch: ``step(model, optimizer, make_batch(size))``
    is measured on the card, and model, optimizer and random numbers are put back; ``gpu="24G"`` asks of a card that is not here.

    ``most``: samples at once, at most. ``capacity``: bytes that may be taken ("20G"); else what the card has free. ``settled``: optimizer
    steps after which a lack of memory is passed on. ``resume``: ``batch.state_dict()`` of a checkpoint. ``quiet``: say nothing."""
    settings = FitSettings(
        effective,
        most,
        start,
        _bytes(capacity),
        settled,
        fit_messages.silent if quiet else fit_messages.to_stderr,
    )
    if start < 1:
        raise OomproofError(f"start={start} is no batch", "give a whole number from 1 on", USAGE)
    if make_batch is None and model is not None:
        raise OomproofError(
            "fit_batch of a step needs make_batch, a function of the size",
            "fit_batch(step, model, optimizer, lambda size: {…})", USAGE,
        )  # fmt: skip
    if make_batch is not None:
        from oomproof.sizing.fitting.fitted_step import fit_step

        assert step is not None
        return fit_step(step, model, optimizer, make_batch, settings, gpu=_bytes(gpu), state=resume)
    if gpu is not None:
        raise OomproofError("gpu= is for a step: a function that trains runs here", "give capacity=", USAGE)
    if step is not None:
        return FittedFunction(step, settings, resume)
    return lambda function: FittedFunction(function, settings, resume)


def _bytes(size: Size) -> int | None:
    return parse_size(size) if isinstance(size, str) else size
