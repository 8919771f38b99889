"""One step of a training, sized inside its user's own process: on copies without bytes, on a virtual GPU, and torch as it was afterwards."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from oomproof.errors import OomproofError
from oomproof.sizing import measured_workspaces, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.estimate import Sizing
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_gpu.step_limits import STEPS
from oomproof.sizing.virtual_run import VirtualRun

BASIS = "a step on a virtual GPU"
_CALLS = 24  # of a step that accumulates gradients and seldom comes to its optimizer
_TOTAL = 80 << 30  # bytes of the card, for who asks
_one_at_a_time = threading.Lock()


def size_step(
    step: Callable[..., Any],
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    seconds: float,
    card: CalibratedCard | None,
) -> Sizing:
    """What the step itself raises is raised here; what cannot be followed is ``refused`` in the answer."""
    run = step_run(step, model, optimizer, batch, seconds=seconds)
    if isinstance(run, str):
        return Sizing(None, None, (), BASIS, refused=run)
    return _sizing(run, card)


def step_run(
    step: Callable[..., Any], model: Any, optimizer: Any, batch: Any, *, seconds: float
) -> VirtualRun | str:
    """The step on a virtual GPU: its log as a card's allocator would have seen it, or why it cannot be followed."""
    if not callable(step):
        raise OomproofError("the first argument is the step: a function of model, optimizer and batch")
    if sys.modules.get("torch") is None:
        raise OomproofError("torch is not imported, so there is no model to size")
    if not _one_at_a_time.acquire(blocking=False):
        raise OomproofError("another step is being sized in this process", "wait for its end")
    try:
        result, log = _run(step, model, optimizer, batch, seconds)
    finally:
        _one_at_a_time.release()
    if result.refused:
        return result.refused
    from oomproof.sizing.virtual_gpu.storage_log import GPU

    flat = log.events[GPU]
    run = VirtualRun(result, list(zip(flat[::2], flat[1::2], strict=True)), log.births.tobytes())
    if not run.events:
        return "the step put nothing on a GPU: has the model parameters?"
    if other := virtual_run.by_allocator(run):
        return other
    return virtual_run.completed(run)


def _run(
    step: Callable[..., Any], model: Any, optimizer: Any, batch: Any, seconds: float
) -> tuple[VirtualResult, Any]:
    from oomproof.sizing.virtual_gpu import fake_copies, training_flow, virtual_start
    from oomproof.sizing.virtual_gpu.cuda_queries import Refused

    training_flow._notes.clear()
    own: dict[str, Any] = {"overhead": 0}
    with fake_copies.restored(), _virtual_gpu(own, seconds):
        try:
            reason = _steps(own, step, model, optimizer, batch)
        except Refused as refusal:
            return VirtualResult(refused=str(refusal)), None
        except Exception as error:
            refused = virtual_start._not_followed(type(error), error, error.__traceback__)
            if not refused:
                raise
            return VirtualResult(refused=refused), None
        return virtual_start._result(reason, own), own["log"]


class _Enough(BaseException):
    """The time is over. Not an Exception: no handler of the step may swallow it."""


@contextlib.contextmanager
def _virtual_gpu(own: dict[str, Any], seconds: float) -> Iterator[None]:
    """As `virtual_start` installs it in a script's Python, without what is for a whole process."""
    import torch

    from oomproof.sizing.virtual_gpu import (
        compiled_functions,
        fake_copies,
        loader_flow,
        training_flow,
        virtual_start,
    )
    from oomproof.sizing.virtual_gpu.storage_log import StorageLog
    from oomproof.sizing.virtual_gpu.virtual_mode import VirtualMode

    log = StorageLog()
    mode = VirtualMode(log)
    redirect = fake_copies.GuardedRedirect(mode)

    def finish(reason: str) -> None:
        raise _Enough(reason)

    flow = training_flow.Flow(mode, finish, seconds)
    own.update(redirect=redirect, log=log, mode=mode, flow=flow, loaders=loader_flow.LoaderFlow(flow))
    with torch.library._scoped_library("aten", "IMPL") as library:
        torch.compile = compiled_functions.left_out
        virtual_start.change_torch(redirect, library, _TOTAL)
        flow.install()
        with _taken_for_real(), redirect:
            yield


@contextlib.contextmanager
def _taken_for_real() -> Iterator[None]:
    """transformers asks whether a tensor is fake before it asks whether a mask is needed; on a card it is not."""
    asking = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and "is_fake_tensor" in getattr(module, "__dict__", ())
    ]
    before = [vars(module)["is_fake_tensor"] for module in asking]
    for module in asking:
        vars(module)["is_fake_tensor"] = lambda tensor: False
    try:
        yield
    finally:
        for module, original in zip(asking, before, strict=True):
            vars(module)["is_fake_tensor"] = original


def _steps(own: dict[str, Any], step: Any, model: Any, optimizer: Any, batch: Any) -> str:
    from oomproof.sizing.virtual_gpu.fake_copies import FakeCopies

    mode, flow = own["mode"], own["flow"]
    if hasattr(model, "_orig_mod"):
        from oomproof.sizing.virtual_gpu.compiled_functions import left_out

        model = left_out(model._orig_mod)
    copies = FakeCopies(mode, model)
    copied = copies.of(model, "model")
    copied_optimizer = copies.optimizer(optimizer) if optimizer is not None else None
    copied_batch, copied_step = copies.of(batch, "batch"), copies.function(step)
    if copied_optimizer is not None:
        flow.optimizers.add(copied_optimizer)
    own["redirect"].forbidden = frozenset(map(id, copies.originals))
    flow.started = time.monotonic()
    try:
        for _ in range(_CALLS):
            copied_step(copied, copied_optimizer, copied_batch)
            if flow.steps >= STEPS:
                return "done"
    except _Enough as enough:
        return str(enough)
    return "the step was called often enough"


def _sizing(run: VirtualRun, calibrated: CalibratedCard | None) -> Sizing:
    result = run.result
    card, basis, searched = ANY_CARD, BASIS, ""
    expandable = virtual_run.asked_expandable(run)
    if calibrated is not None:
        run, searched = measured_workspaces.measured_run(run, calibrated, expandable, None)
        card = calibrated.card(ANY_CARD)
        basis = f"{BASIS}; {calibrated.name} calibrated, {run.result.measured} of {len(result.signatures)} operations measured there"
    gpu, phases = virtual_run.gpu_estimate(run, expandable, card)
    notes = (*_notes(run.result), *([searched] if searched else []))
    return Sizing(
        gpu, None, tuple(phase for phase in phases if phase.reached), basis, notes=notes,
        peak=result.peak_place,
    )  # fmt: skip


def _notes(result: VirtualResult) -> Iterator[str]:
    yield from result.notes
    if result.steps < STEPS:
        yield f"only {result.steps} optimizer steps were made: {result.reason}"
    yield from virtual_run.widening_notes(result)
