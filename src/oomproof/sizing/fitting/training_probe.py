"""A few optimizer steps of a training, ended from within: what they take, and what in them would change by splitting the batch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

from oomproof.errors import OomproofError
from oomproof.records import replace
from oomproof.sizing.fitting import split_notes
from oomproof.sizing.fitting.fitted_batch import Batch
from oomproof.sizing.fitting.memory_meter import Meter, Reading
from oomproof.sizing.fitting.oom_errors import memory_cause
from oomproof.sizing.fitting.probe_plan import Probe
from oomproof.sizing.fitting.process_state import settle_scalers
from oomproof.sizing.fitting.released_memory import release

STEPS = 3  # the first makes the optimizer's state, the second has all, in the third the allocator has settled
_STEPS_OF_TWO = 2  # with two passes each
NO_NUMBER = "oomproof: the function gets one argument, a batch: its number is batch.size, its passes are batch.accum and batch.groups(loader)"
_PASSES = 64  # without an optimizer step: an evaluation, or a training that updates by hand


class ProbeEnded(BaseException):
    """Enough was seen. Not an Exception: no handler of the training may take it for its own."""


class StateLoaded(BaseException):
    """A checkpoint says which batch it was trained with."""

    def __init__(self, state: Any) -> None:
        super().__init__("the batch of a checkpoint")
        self.state = state


class StepCount:
    """Optimizer steps so far: of several optimizers, each has made so many."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._handle: Any = None

    @property
    def all_made(self) -> int:
        return min(self._steps.values(), default=0)

    @property
    def most(self) -> int:
        return max(self._steps.values(), default=0)

    @contextlib.contextmanager
    def counting(self, after: Callable[[], None] = lambda: None) -> Iterator[StepCount]:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(optimizer: Any, *given: Any) -> None:
            self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
            after()

        handle = register_optimizer_step_post_hook(stepped)
        try:
            yield self
        finally:
            handle.remove()


class _Onlooker:
    """Modules as they are called."""

    def __init__(self) -> None:
        self.norms: set[int] = set()
        self.comparing: set[str] = set()
        self._known: dict[type, bool] = {}
        self._outermost: int | None = None
        self._passes = [0, 0]  # since the last optimizer step: without gradients, with them
        self._follows: bool | None = None

    def called(self, module: Any, given: Any) -> None:
        kind = type(module)
        if kind not in self._known:
            self._known[kind] = split_notes.compares(kind.__name__)
        if self._known[kind]:
            self.comparing.add(kind.__name__)
        if module.training and _is_batch_norm(module):
            self.norms.add(id(module))
        if self._outermost is None:
            self._outermost = id(module)
        if id(module) == self._outermost:
            self._passed()

    def stepped(self) -> None:
        self._passes = [0, 0]

    def _passed(self) -> None:
        import torch

        has_gradients = torch.is_grad_enabled()
        self._passes[has_gradients] += 1
        if self._passes[has_gradients] > _PASSES and (has_gradients or not self._training_follows()):
            raise ProbeEnded

    def _training_follows(self) -> bool:
        """Passes without gradients while an optimizer waits are an evaluation before the first step, whose memory says nothing of training."""
        import torch

        if self._follows is None:
            self._follows = any(issubclass(type(other), torch.optim.Optimizer) for other in gc.get_objects())
        return self._follows

    def seen(self) -> split_notes.Seen:
        return split_notes.Seen(
            len(self.norms), tuple(sorted(self.comparing)), evaluates_first=bool(self._follows)
        )


def _is_batch_norm(module: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return isinstance(module, _BatchNorm)


def probed(run: Callable[[Batch], Any], batch: Batch, meter: Meter) -> tuple[Probe, split_notes.Seen]:
    """``run``: the training. What it raises of its own is raised, but a lack of memory is an answer."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    wanted = STEPS if batch.accum == 1 else _STEPS_OF_TWO
    count, onlooker = StepCount(), _Onlooker()
    has_ended = False

    def after() -> None:
        nonlocal has_ended
        onlooker.stepped()
        meter.look()
        if count.all_made >= wanted or count.most >= 4 * wanted:
            has_ended = True
            raise ProbeEnded

    error: BaseException | None = None
    meter.start()
    handle = register_module_forward_pre_hook(onlooker.called)
    try:
        with count.counting(after):
            run(batch)
    except ProbeEnded as ended:
        error = ended
    except Exception as raised:
        if not has_ended:  # else it is what came of our ending it
            error = raised
    finally:
        handle.remove()
        reading = meter.stop()
    probe = _outcome(batch, error, reading)
    if probe.reading is not None:
        probe = replace(probe, reading=meter.settled(probe.reading))
    return probe, onlooker.seen()


def _outcome(batch: Batch, error: BaseException | None, reading: Reading) -> Probe:
    """Outside the except block: there the traceback would hold every tensor of the attempt."""
    cause = memory_cause(error) if isinstance(error, Exception) else None
    settle_scalers(error)
    if isinstance(error, Exception) and cause is None:
        error.add_note(f"oomproof: while a batch of {batch.size} was measured for fit_batch")
        if _is_taken_for_a_number(error, batch):
            error.add_note(NO_NUMBER)
        raise error
    release(error)
    return Probe(batch.size, None if cause is not None else reading, cause)


def _is_taken_for_a_number(error: Exception, batch: Batch) -> bool:
    """As `find_executable_batch_size` gives one; or the function has another argument, for the passes, and was never entered."""
    text = str(error)
    if str(batch) in text or f"'{type(batch).__name__}'" in text:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    never_entered = trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("oomproof.")
    return isinstance(error, TypeError) and never_entered


def need_torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise OomproofError(
            "torch is not imported, so there is nothing to fit", "import torch before fit_batch"
        )
    return torch
