"""Follows a script's training on the real device: its steps, evaluations, generations and checkpoints, until each was seen."""

from __future__ import annotations

import functools
import os
import time
import weakref
from typing import Any

import torch

from ..virtual_gpu.child_results import OutOfCard
from ..virtual_gpu.nested_tensors import tensors
from ..virtual_gpu.step_limits import STEPS
from ..virtual_gpu.training_flow import ACCUMULATED, LivingOptimizers
from .phase_peaks import EVAL, GENERATE, LOAD, SAVE, TRAIN, PhasePeaks

EVALUATIONS = 2  # the second has what the first and the training have left behind
# shortened epochs, and a quarter of the time, to wait for an evaluation: it may come after the last
EPOCHS_AFTER = 6
_WAIT = 5.0  # seconds of steps, or half of the time, in a loop without a loader to shorten: it evaluates every so many steps
_CALM = 25  # steps in which no more of the card was reserved: what batches of other sizes leave behind has come together
_SETTLING = 1 / 3  # of the time, at most, to wait for that
_GROWN = 1.005
_MIB = 1 << 20
_LARGE = 1 << 30  # bytes of a checkpoint: what is larger is not kept, for it would lie in memory
_KEPT_LEAST = 256 << 10  # bytes that an evaluation finds more than the one before: less is a metric


class RehearsedLoop:
    def __init__(self, peaks: PhasePeaks, finish: Any, limit: float) -> None:
        self.peaks, self._finish, self.limit = peaks, finish, limit
        self.pid = os.getpid()
        self.began: float | None = None  # the first batch, or backward
        self.steps = self.passes = self.loaders = 0
        self.wanted = STEPS  # as LoaderFlow asks: more are waited for by `settling`
        self._switched_last: Any = None  # the module that was last switched over, weakly
        self.switched_since_step = False
        self.eval_lives: list[tuple[int, int]] = []  # batches of the evaluation, and what was alive then
        self.evaluations: list[tuple[int, int]] = []  # steps before each, and what was alive as it began
        self.early = 0  # evaluations before the first step
        self.kept = 0  # bytes that an evaluation would keep beyond the batches seen
        self.across = 0  # ... and that the next one finds still there
        self.saves = 0
        self.saved = 0  # bytes of the largest checkpoint
        self.generations = 0
        self.tokens_left = 0  # of a generation that was cut short
        self.notes: list[str] = []
        self.ooms: list[OutOfCard] = []
        self.wants_save = False  # a trainer that saves
        self.batches_differ = False  # in size, of the training's loader
        self._reserved = self._grown_at = 0  # most of the card, and the step at which it came to that
        self._settled_at: int | None = None  # the step
        self._stepped_at: float | None = None
        # when, and how much else had happened by then
        self._last_step: tuple[float, tuple[int, ...]] | None = None
        self.step_seconds: float | None = None
        self._optimizers = LivingOptimizers()

    def is_here(self) -> bool:
        return os.getpid() == self.pid

    def tell(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    # --- the script's calls -----------------------------------------------------------------------------------

    def install(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._after_step)
        self._optimizers.install()
        self._follow_backward()
        self._follow_modes()
        torch.save = self.saving(torch.save, 0)
        torch.serialization.save = torch.save
        observe = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if observe is not None:
            torch.cuda._lazy_call(lambda: observe(self._out_of_memory))

    def _follow_backward(self) -> None:
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.is_here() and not _compiling():
                self.begins()
                self.peaks.enter(TRAIN)
            result = original(*args, **kwargs)
            if self.is_here() and not _compiling():
                self._after_backward()
            return result

        torch.autograd.backward = backward

    def _follow_modes(self) -> None:
        """What the last outermost train() or eval() said."""
        module = torch.nn.Module
        train, depth = module.train, [0]

        @functools.wraps(train)
        def ours(this: Any, mode: bool = True) -> Any:
            depth[0] += 1
            try:
                return train(this, mode)
            finally:
                depth[0] -= 1
                if not depth[0] and self.is_here() and not _compiling():
                    self._switched_last = weakref.ref(this)
                    self.switched_since_step = bool(self.steps)
                    self._switched(not mode)

        module.train = ours  # eval() calls it

    @property
    def evaluating(self) -> bool:
        """Asked of the module itself: Lightning switches it back part by part."""
        module = self._switched_last() if self._switched_last is not None else None
        return module is not None and not module.training

    def training_continues(self) -> None:
        """Said by a trainer that takes its batch first and calls train() then: what eval() said before is over."""
        self._switched_last = None

    def _switched(self, evaluating: bool) -> None:
        # a loop that begins with an evaluation
        if evaluating and self.peaks.now == LOAD and not torch.is_grad_enabled():
            self.early += 1
            self.begins()
            self.peaks.enter(EVAL)
            return
        if self.peaks.now in (TRAIN, EVAL):
            if evaluating and self.peaks.now == TRAIN:
                self.evaluation_begins()
            self.peaks.enter(EVAL if evaluating else TRAIN)
            self.check()

    def begins(self) -> None:
        if self.began is None:
            self.began = time.monotonic()

    def _after_backward(self) -> None:
        """One that gathers gradients over many passes holds no more by its step; one without an optimizer has made it."""
        self.passes += 1
        if not self._optimizers.alive():
            self._stepped()
        elif self.passes > ACCUMULATED and self.steps < STEPS:
            self._optimizers.step(self.tell)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.is_here() and not _compiling():
            self.passes = 0
            if self._optimizers.stepped(optimizer) > self.steps:
                self._stepped()

    def _stepped(self) -> None:
        self.steps, self.passes = self.steps + 1, 0
        self._time_step()
        if self.steps == STEPS:
            self._stepped_at = time.monotonic()
        if self.steps >= STEPS and self._settled_at is None:
            self._settle()
        self.check()

    def _settle(self) -> None:
        """Batches of other sizes leave pieces behind which are of no use to each other: so many steps are made as it takes until the
        card is asked for no more. One size leaves none, and on the host they are given back."""
        reserved, now = self.peaks.reserved(), time.monotonic()
        if reserved is not None and self.batches_differ:
            if reserved > self._reserved * _GROWN:
                self._reserved, self._grown_at = reserved, self.steps
            began = self._stepped_at or now
            calm = self.steps - self._grown_at >= _CALM
            if not calm and now - began < self.limit * _SETTLING:
                return
            if not calm:
                self.tell(
                    f"PyTorch still took more of the card after {self.steps} steps, as batches of other sizes came: a long run will "
                    "reserve more, and give it back when it is short"
                )
        self._settled_at, self._stepped_at = self.steps, now

    @property
    def settling(self) -> bool:
        return self.steps >= STEPS and self._settled_at is None

    def wants_largest(self) -> bool:
        """In every other training step, from the second on, as in a long run: the optimizer's state is there by then, and cached blocks
        of a usual batch, which are of no use to it; and again when the card has settled."""
        if self.steps < STEPS:
            return self.steps % 2 == 1
        return self.steps == self._settled_at

    def _time_step(self) -> None:
        """The quickest is taken: the first makes the optimizer's state, a kernel is chosen, a loader starts. None across an evaluation, a
        checkpoint or a new loader."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.monotonic()
        since = (len(self.evaluations), self.saves, self.generations, self.loaders)
        if self._last_step is not None and self._last_step[1] == since and self.steps > 2:
            seconds = now - self._last_step[0]
            self.step_seconds = min(seconds, self.step_seconds or seconds)
        self._last_step = (now, since)

    def evaluation_begins(self) -> None:
        """Of one that is entered again without a step between, the same."""
        if self.steps and (not self.evaluations or self.evaluations[-1][0] != self.steps):
            self.evaluations.append((self.steps, self.peaks.live()))
            self.eval_lives = []
            if len(self.evaluations) > 1 and self.kept:
                grown = self.evaluations[-1][1] - self.evaluations[-2][1]
                self.across = self.kept if grown > _KEPT_LEAST else 0

    def keeps(self, growth: int, left: int) -> None:
        self.kept = max(self.kept, growth * left)

    # --- checkpoints and generations --------------------------------------------------------------------------

    def saving(self, save: Any, at: int) -> Any:
        """``at``: which argument is the data."""

        @functools.wraps(save)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if not self.is_here() or self.began is None or self.peaks.now == SAVE:
                return save(*args, **kwargs)
            storages = {
                tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
                for tensor in tensors(args[at : at + 1])
            }
            size = sum(storages.values())
            before = self.peaks.enter(SAVE)
            try:
                return save(*args, **kwargs)
            finally:
                self.saves, self.saved = self.saves + 1, max(self.saved, size)
                self.peaks.enter(before)
                if size > _LARGE:
                    _remove([*args, *kwargs.values()])
                    self.tell("checkpoints of more than 1 GiB were written and removed")

        return ours

    def generating(self, generate: Any) -> Any:
        @functools.wraps(generate)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if not self.is_here() or self.peaks.now == GENERATE:
                return generate(*args, **kwargs)
            self.begins()
            self.check()
            before = self.peaks.enter(GENERATE)
            try:
                return generate(*args, **kwargs)
            finally:
                self.generations += 1
                self.peaks.enter(before if before != LOAD else EVAL)
                if self.steps:
                    self.check()

        return ours

    def _out_of_memory(self, card: int, requested: int, total: int, free: int) -> None:
        self.ooms.append(OutOfCard(self.peaks.now, requested, free))

    # --- the end ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Called between two pieces of work."""
        now = time.monotonic()
        if self.began is not None and now - self.began > self.limit:
            self._finish("time limit")
        if self._stepped_at is None or self.settling:
            return
        if (
            len(self.evaluations) >= EVALUATIONS
            and self.steps > self.evaluations[-1][0]
            and not self._save_is_due()
        ):
            self._finish("done")
        waited = now - self._stepped_at
        if self.loaders > EPOCHS_AFTER and not self._since_steps() and waited > self.limit / 4:
            self._finish("done")
        if not self.loaders and not self._since_steps() and waited > max(_WAIT, self.limit / 2):
            self._finish("done")

    def _since_steps(self) -> list[tuple[int, int]]:
        return [evaluation for evaluation in self.evaluations if evaluation[0] >= STEPS]

    def evaluation_is_due(self) -> bool:
        return self.steps >= STEPS and not self.settling and len(self._since_steps()) < EVALUATIONS

    def _save_is_due(self) -> bool:
        return self.wants_save and not self.saves


def _compiling() -> bool:
    return bool(torch.compiler.is_compiling()) if hasattr(torch, "compiler") else False


def _remove(values: list[Any]) -> None:
    for value in values:
        if isinstance(value, (str, os.PathLike)) and os.path.isfile(value):
            try:
                os.unlink(value)
            except OSError:
                pass


def hurry_trainer(module: Any, loop: RehearsedLoop) -> None:
    """transformers.trainer_callback: what is due every so many steps is due after the steps we wait for."""
    callback = module.DefaultFlowCallback
    original = callback.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs)
        if _asked(args, "eval_strategy") and loop.evaluation_is_due():
            control.should_evaluate = True
        if _asked(args, "save_strategy"):
            loop.wants_save = True
            if loop.steps >= STEPS and not loop.saves:
                control.should_save = True
        return control

    callback.on_step_end = on_step_end
    for name in ("on_epoch_begin", "on_evaluate"):
        _before(callback, name, loop.training_continues)


def _before(kind: Any, name: str, tell: Any) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return original(*args, **kwargs)

    setattr(kind, name, told)


def hurry_lightning(module: Any, loop: RehearsedLoop) -> None:
    """lightning.pytorch.loops.training_epoch_loop: a validation that comes once an epoch comes after the steps we wait for."""
    epoch = module._TrainingEpochLoop
    original = epoch._should_check_val_fx

    def should_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        due = loop.evaluation_is_due() and self.trainer.enable_validation
        return due or original(self, *args, **kwargs)

    epoch._should_check_val_fx = should_check


def _asked(args: Any, name: str) -> bool:
    value = getattr(args, name, None)
    return str(getattr(value, "value", value) or "no") != "no"


def follow_generation(module: Any, loop: RehearsedLoop) -> None:
    """transformers.generation.utils. No sequence ends before its greatest length: at hour nine none may."""
    module.GenerationMixin.generate = loop.generating(module.GenerationMixin.generate)
    criteria = getattr(module, "EosTokenCriteria", None)
    if criteria is not None:
        criteria.__call__ = lambda self, input_ids, *args, **kwargs: torch.zeros(
            input_ids.shape[0], dtype=torch.bool, device=input_ids.device
        )
    longest = module.MaxLengthCriteria
    measured = longest.__call__

    def is_done(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        done = measured(self, input_ids, *args, **kwargs)
        if loop.began is not None and time.monotonic() - loop.began > loop.limit:
            loop.tokens_left = max(loop.tokens_left, self.max_length - int(input_ids.shape[1]))
            return torch.ones_like(done) if isinstance(done, torch.Tensor) else True
        return done

    longest.__call__ = is_done
