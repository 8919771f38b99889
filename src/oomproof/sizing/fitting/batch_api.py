"""`oomproof.fit_batch`: the largest batch that fits, for a training function or for one step."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, overload

from oomproof.errors import USAGE, OomproofError
from oomproof.records import replace
from oomproof.sizing import step_sizing
from oomproof.sizing.batch_search import largest_batch
from oomproof.sizing.caching_allocator import smallest_capacity
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.fitting import fitted_batch, rank_agreement
from oomproof.sizing.fitting.fitted_batch import Asked, Batch
from oomproof.sizing.fitting.measured_fit import SETTLED, FitSettings, MeasuredFit, bytes_of, settings_of
from oomproof.sizing.fitting.module_state import modules_of
from oomproof.sizing.fitting.oom_errors import memory_cause, phase_of
from oomproof.sizing.fitting.probe_plan import START
from oomproof.sizing.fitting.process_state import process_state, settle_scalers
from oomproof.sizing.fitting.put_back import put_back
from oomproof.sizing.fitting.rank_agreement import Ranks
from oomproof.sizing.fitting.released_memory import empty_cache, release
from oomproof.sizing.fitting.split_notes import Seen, compares, split_notes
from oomproof.sizing.fitting.training_probe import StateLoaded, StepCount, need_torch
from oomproof.sizing.scaled_log import log_pair
from oomproof.sizing.virtual_run import VirtualRun, asked_expandable, widths
from oomproof.units import format_size

_SHRINK = 0.9  # after a lack of memory that no measurement foresaw, where any size is allowed
_LATER = ("eval", "generate", "save")  # phases that a smaller training batch does not help


class _Known:
    """What is known of the batch: a checkpoint's, and the one it runs with."""

    def __init__(self, state: dict[str, Any] | None) -> None:
        self.state = state
        self.batch: Batch | None = None


class FittedFunction:
    """Called with the arguments of the function but the first, which is its ``Batch``."""

    def __init__(
        self,
        function: Callable[..., Any],
        settings: FitSettings,
        state: Mapping[str, Any] | None,
        known: _Known | None = None,
    ) -> None:
        if not callable(function):
            raise OomproofError("fit_batch decorates a function of the batch", "def train(batch): …", USAGE)
        functools.update_wrapper(self, function)
        self.function, self.settings = function, settings
        self._known = known if known is not None else _Known(dict(state) if state is not None else None)
        self._of_owners: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    @property
    def batch(self) -> Batch | None:
        """That it was called with last."""
        return self._known.batch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of a checkpoint, before the call: nothing is measured again where it still holds."""
        self._known.state = dict(state)

    def state_dict(self) -> dict[str, int]:
        """Of the batch it runs with."""
        if self.batch is None:
            raise OomproofError("no batch is chosen yet", "store it in a checkpoint, inside the function")
        return self.batch.state_dict()

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a method: the batch comes behind self."""
        if owner is None:
            return self
        bound = self.function.__get__(owner, kind)
        try:  # each access makes another one of us: what one is told, all of this object know
            known = self._of_owners.setdefault(owner, _Known(self._known.state))
        except TypeError:  # an object that cannot be a key
            known = _Known(self._known.state)
        return FittedFunction(bound, self.settings, None, known)

    def __reduce__(self) -> str:
        """By its name, as functions are pickled: processes that are spawned get it so."""
        return str(self.__qualname__)  # type: ignore[attr-defined]

    def __call__(self, *given: Any, **named: Any) -> Any:
        need_torch()
        ranks = rank_agreement.here()
        asked = Asked(self.settings.effective, self.settings.most, ranks.world)
        asked.check()
        run = functools.partial(self._run, given, named)
        back = process_state(self.function)
        fit = MeasuredFit(run, self.settings, asked, ranks, lambda: contextlib.nullcontext(back))
        attempts = _Attempts(fit, back)
        state = self._known.state
        while True:
            loaded: StateLoaded | None = None
            try:
                for batch in attempts.batches(state):
                    is_done, result = attempts.tried(batch)
                    if is_done:
                        return result
            except StateLoaded as raised:
                loaded = raised
            assert loaded is not None
            state = loaded.state
            release(loaded)  # outside the except block: there the traceback holds the tensors
            back()

    def _run(self, given: tuple[Any, ...], named: Mapping[str, Any], batch: Batch) -> Any:
        # the one that is measured too: a checkpoint may be written at the first step
        self._known.batch = batch
        return self.function(batch, *given, **named)


class _Attempts:
    """Of one call: the training itself, with a smaller batch after each that failed."""

    def __init__(self, fit: MeasuredFit, back: Callable[[], None]) -> None:
        self.fit, self.back = fit, back
        self._failed = 0
        self._following = 0  # the batch of the next attempt

    def batches(self, state: Mapping[str, Any] | None) -> Iterator[Batch]:
        batch = self.fit.batch(self._looked_at()) if _is_sized() else self.fit.fitted(state)
        while True:
            yield batch
            batch = self.fit.batch(self._following)

    def _looked_at(self) -> int:
        return self.smaller(self.fit.settings.start + 1) or self.fit.smallest

    def tried(self, batch: Batch) -> tuple[bool, Any]:
        """(True, what it returned), or (False, None) where a smaller batch is next."""
        count = StepCount()
        error: Exception | None = None
        try:
            with count.counting():
                return True, self.fit.run(batch)
        except Exception as raised:
            error = raised
        cause = memory_cause(error)
        if cause is None:
            raise error
        settle_scalers(error)
        self._may_start_over(error, cause, batch.size, count.most)
        release(error)
        self._following = self.fit.smaller(batch.size, cause) or self.smaller(batch.size) or self.fit.smallest
        self.fit.tell(fitted_batch.starts_over(cause, batch.size, self._following))
        self.back()
        return False, None

    def _may_start_over(self, error: Exception, cause: str, size: int, steps: int) -> None:
        """Raises the error, with a sentence, where starting over would lose work or not help."""
        phase = phase_of(error)
        if steps >= self.fit.settings.settled or phase in _LATER:
            why = "" if steps >= self.fit.settings.settled else "a smaller training batch would not help"
            error.add_note(fitted_batch.passed_on(cause, phase, steps, size, why))
            raise error
        if self.smaller(size) is None:
            error.add_note(fitted_batch.smallest_failed(cause, phase, size))
            raise error
        self._failed += 1
        if not self.fit.ranks.all_report(f"oom-{self._failed}"):
            why = "other ranks had enough and wait for this one"
            error.add_note(fitted_batch.passed_on(cause, phase, steps, size, why))
            raise error

    def smaller(self, size: int) -> int | None:
        sizes = self.fit.asked.sizes()
        if sizes is None:
            return max(1, int(size * _SHRINK)) if size > 1 else None
        return max((other for other in sizes if other < size), default=None)


def _is_sized() -> bool:
    """`oomproof size` looks on: it asks for the memory of what runs, and ends it after three steps."""
    return bool(os.environ.get("OOMPROOF_SIZE"))


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
    settings = settings_of(effective, most, start, capacity, settled, quiet=quiet)
    if start < 1:
        raise OomproofError(f"start={start} is no batch", "give a whole number from 1 on", USAGE)
    if make_batch is None and model is not None:
        raise OomproofError(
            "fit_batch of a step needs make_batch, a function of the size",
            "fit_batch(step, model, optimizer, lambda size: {…})", USAGE,
        )  # fmt: skip
    if make_batch is not None:
        assert step is not None
        return fit_step(step, model, optimizer, make_batch, settings, gpu=bytes_of(gpu), state=resume)
    if gpu is not None:
        raise OomproofError("gpu= is for a step: a function that trains runs here", "give capacity=", USAGE)
    if step is not None:
        return FittedFunction(step, settings, resume)
    return lambda function: FittedFunction(function, settings, resume)


# The largest batch for one step of a training: measured on the device it runs on, and everything put back; or predicted for a card that is not here.

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
