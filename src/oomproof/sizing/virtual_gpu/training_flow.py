"""Counts steps, tells phases apart, and stops the script when enough was seen."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .checkpoints import CountedCheckpoints
from .child_results import CutGeneration
from .nested_tensors import fakes
from .step_limits import PATIENCE, STEPS
from .storage_log import BACKWARD, FORWARD, GPU, OPTIMIZER, PARTS_OF_STEP, OwnMemory, user_line
from .virtual_mode import VirtualMode

RESTS = 12  # steps of the others that one which rests is waited for: critics are often trained five times as often


class OptimizerRounds:
    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def stepped(self, optimizer: Any, alive: Iterable[Any], patient: bool = True) -> int:
        """How many steps the loop has made. ``alive``: all optimizers there are; ``patient``: whether one that has not stepped is waited for."""
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        most = max(self._counts.values())
        least = min((self._counts.get(other, 0) for other in alive), default=most)
        return max(least, most - RESTS) if patient else most


class LivingOptimizers:
    """Those that the script made, and how many steps its loop has made with them."""

    def __init__(self) -> None:
        self.known: list[Any] = []  # weak references
        self.rounds = OptimizerRounds()

    def install(self) -> None:
        made = torch.optim.Optimizer.__init__

        def counted(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self.add(optimizer)

        torch.optim.Optimizer.__init__ = counted

    def add(self, optimizer: Any) -> None:
        self.known.append(weakref.ref(optimizer))

    def alive(self) -> list[Any]:
        return [optimizer for optimizer in (known() for known in self.known) if optimizer is not None]

    def step(self, tell: Any) -> None:
        """In the script's place, which gathers gradients over many passes and holds no more by then."""
        tell(
            f"gradients are accumulated over more than {ACCUMULATED} passes: the first steps were taken before that"
        )
        for optimizer in self.alive():
            try:
                optimizer.step()
            except Exception:  # one that wants a closure
                self.known = [known for known in self.known if known() is not optimizer]

    def stepped(self, optimizer: Any, patient: bool = True) -> int:
        return self.rounds.stepped(optimizer, self.alive(), patient)


ACCUMULATED = 16  # backward passes without a step: then it is taken for the script, which may gather forty
EPOCHS_AFTER = 2  # shortened epochs to wait for an evaluation
_UNSHORTENED = 3.0  # seconds to wait for an evaluation in a loop without a loader, which cannot be shortened
_notes: list[str] = []


def tell(note: str) -> None:
    if note not in _notes:
        _notes.append(note)


class Flow:
    def __init__(self, mode: VirtualMode, finish: Any, limit: float) -> None:
        self.mode, self.log, self.finish = mode, mode.log, finish
        self.started, self.limit = time.monotonic(), limit
        self.recurrent = False  # cuDNN has kernels of its own for these, with reserves we do not know
        # linear weights that do not learn, by their storage: name, shape, bytes of an element
        self.frozen: dict[int | None, tuple[str, int, int, int]] = {}
        self.steps = 0
        self.wanted = STEPS  # more where batches differ in shape
        self.step_ends: list[int] = []  # events of the card before the end of each step
        self.passes = 0  # backward passes since the last step
        self.optimizers = LivingOptimizers()
        self.roots: list[Any] = []  # weak references to the outermost modules
        self.began: Any = lambda: None  # called before the first pass
        self.phases: dict[str, int] = {}  # name → outermost forward passes
        self.modules: list[str] = []
        self.names: dict[int, str] = {}
        self.spans: list[tuple[int, str]] = []  # autograd's sequence number, the module that was entered
        self.stepped_at: float | None = None
        self.loaders = 0
        self.evaluated_at = 0
        self.token_cuts: list[int] = []  # events before each token of the generation under way
        self.tokens_left = 1
        self.left_out = 0  # tokens of the generation that has just ended
        self.generations: list[CutGeneration] = []
        self.saves = CountedCheckpoints(tell)
        self.memory = OwnMemory()
        self.generates = False  # whether a model could
        self.kept = 0  # bytes that an evaluation would keep on the card beyond the batches seen
        self.eval_lives: list[int] = []  # bytes on the card at the start of each pass of an evaluation
        self.skip = _library_folders()
        self.log.place = self.place

    def install(self) -> None:
        from torch.nn.modules import module as modules
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)
        self._backward()
        self.saves.install()
        self.optimizers.install()
        self._foreach()
        self._scaler()

    # the parts of a step

    def _backward(self) -> None:
        for name in ("backward", "grad"):
            original = getattr(torch.autograd, name)

            def during(*args: Any, _original: Any = original, _name: str = name, **kwargs: Any) -> Any:
                before, self.log.part = self.log.part, PARTS_OF_STEP.index(BACKWARD)
                try:
                    result = _original(*args, **kwargs)
                finally:
                    self.log.part = before
                if _name == "backward" and before != PARTS_OF_STEP.index(BACKWARD):
                    self._after_backward()
                return result

            setattr(torch.autograd, name, during)

    def _after_backward(self) -> None:
        """A loop that changes its parameters by hand has made a step; one that gathers gradients over many passes takes long to
        come to it, and holds no more by then."""
        self.passes += 1
        roots = [root for root in (known() for known in self.roots) if root is not None]
        # after each pass: fake gradients are added up in new storages
        self._name([parameter.grad for root in roots for parameter in root.parameters()], "gradients")
        if not self.optimizers.alive():
            self._stepped()
        elif self.passes > ACCUMULATED and self.steps < self.wanted:
            passes = self.passes
            self.optimizers.step(tell)
            self.passes = passes

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.log.part = PARTS_OF_STEP.index(OPTIMIZER)
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        self._name(parameters, "weights")
        self._name([item.grad for item in parameters], "gradients")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            self._name(state, "optimizer state")
        self.log.part = PARTS_OF_STEP.index(FORWARD)
        self.passes = 0
        patient = time.monotonic() - self.started < self.limit / 2
        if self.optimizers.stepped(optimizer, patient) > self.steps:
            self._stepped()

    def _stepped(self) -> None:
        self.steps, self.passes = self.steps + 1, 0
        self.step_ends.append(len(self.log.events[GPU]) // 2)
        self.log.mark("train")
        if self.steps == self.wanted:
            self.stepped_at = time.monotonic()
        self.check()

    def _name(self, tensors: Any, kind: str) -> None:
        with torch._C.DisableTorchFunction():
            for tensor in fakes(tensors):
                number = self.log.number(tensor)
                if number is not None:
                    self.log.kinds.setdefault(number, kind)

    # phases and modules

    def _enter(self, module: Any, args: Any) -> None:
        if not self.modules:
            self._begin(module)
        name = self.names.get(id(module), type(module).__name__)
        self.modules.append(name)
        self.spans.append((_sequence(), name))

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if self.modules:
            self.modules.pop()
        self.spans.append((_sequence(), self.modules[-1] if self.modules else ""))
        if not self.modules:
            self.check()

    def _begin(self, module: Any) -> None:
        if id(module) not in self.names:
            for name, part in module.named_modules():
                self.names.setdefault(id(part), name or type(module).__name__)
                self.recurrent = self.recurrent or isinstance(part, torch.nn.RNNBase)
            self._name(list(module.parameters()) + list(module.buffers()), "weights")
            self.roots.append(weakref.ref(module))
            self.generates = self.generates or hasattr(module, "generate")
            if torch.is_grad_enabled():
                self.mode.batch_facts.see_module(module)
            self._see_frozen(module)
        if not self.phases:
            self.began()
        phase = "train" if torch.is_grad_enabled() and module.training else self._quiet_phase()
        if phase == "train":
            del self.spans[:-20000]
        self.phases[phase] = self.phases.get(phase, 0) + 1
        if self.steps >= self.wanted and phase != "train":
            self.evaluated_at = self.steps
        if phase == "eval":
            self.eval_lives.append(self.log.live[GPU])
        self.log.mark(phase)

    def _see_frozen(self, module: Any) -> None:
        """Of a model that learns beside them: those of a LoRA's base, not of one that is only evaluated."""
        if not any(weight.requires_grad for weight in module.parameters()):
            return
        for name, part in module.named_modules():
            weight: Any = getattr(part, "weight", None)
            linear = isinstance(part, torch.nn.Linear) or type(part).__name__ == "Conv1D"
            if linear and weight.dim() == 2 and not weight.requires_grad and self.mode.is_on_card(weight):
                number = self.log.number(weight)
                self.frozen[number] = (name, *weight.shape, weight.element_size())

    def _quiet_phase(self) -> str:
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "generate":
                return "generate"
            frame = frame.f_back
        return "eval"

    def place(self) -> str:
        """Where the bytes go now: line, part of the step, module."""
        part = PARTS_OF_STEP[self.log.part]
        module = self.modules[-1] if self.modules else self._of_node()
        line = user_line(self.skip)
        what = {BACKWARD: "backward", OPTIMIZER: "optimizer step"}.get(part, "forward")
        return ", ".join(
            text for text in (f"{what} {line}".strip(), f"in {module}" if module else "") if text
        )

    def _of_node(self) -> str:
        """In backward: the module whose forward pass made the node that runs now."""
        current = getattr(torch._C, "_current_autograd_node", None)
        node = current() if current is not None else None
        if node is None:
            return ""
        wanted, name = node._sequence_nr(), ""
        for number, entered in reversed(self.spans):
            if number <= wanted:
                name = entered
                break
        return name

    # the end

    def check(self) -> None:
        """Called between two pieces of work."""
        self.memory.note()
        elapsed = time.monotonic() - self.started
        if elapsed > (self.limit if self.steps >= STEPS else PATIENCE * self.limit):
            self.finish("time limit")
        if self.stepped_at is None:
            return
        if self.evaluated_at and self.steps > self.evaluated_at:
            self.finish("done")
        if self.loaders > EPOCHS_AFTER and not self.evaluated_at:
            self.finish("done")
        if not self.loaders and not self.evaluated_at and self._waited_long():
            self.finish("done")

    def _waited_long(self) -> bool:
        """Without a loader to shorten, an evaluation may be hours away; one was seen where the script began with it."""
        assert self.stepped_at is not None
        three = 0.0 if "eval" in self.phases else self.stepped_at - self.started
        return time.monotonic() - self.stepped_at > max(_UNSHORTENED, min(three, self.limit / 2))

    # what the card does otherwise

    def _foreach(self) -> None:
        """Optimizers choose their kernels by the tensor's class; on a card they take the multi-tensor ones."""
        for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            known = getattr(sys.modules.get(name), "_foreach_supported_types", None)
            if known is not None and FakeTensor not in known:
                known.append(FakeTensor)

    def _scaler(self) -> None:
        """Whether gradients are finite is a value of the GPU: they are."""
        scaler = torch.amp.GradScaler
        scaler._maybe_opt_step = lambda self, optimizer, state, *args, **kwargs: optimizer.step(
            *args, **kwargs
        )


def evaluate_soon(module: Any, flow: Flow) -> None:
    """transformers.trainer_callback: an evaluation that is due every so many steps is due after the steps we wait for."""
    callback = module.DefaultFlowCallback
    original = callback.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs)
        if (
            flow.steps >= flow.wanted
            and not flow.evaluated_at
            and str(getattr(args.eval_strategy, "value", "no")) != "no"
        ):
            control.should_evaluate = True
        return control

    callback.on_step_end = on_step_end


TOKENS = 12  # of a generation: the others follow from these


def one_text(module: Any, mode: Any) -> None:
    """transformers.masking_utils: positions that count on are of one text, so no mask is made of them; whether they do is a value of the GPU."""
    packed = getattr(module, "find_packed_sequence_indices", None)
    if packed is None:
        return

    def found(position_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return packed(position_ids, *args, **kwargs)
        if mode.is_on_card(position_ids) and mode.uniform.counts(position_ids):
            return None
        return packed(position_ids, *args, **kwargs)

    module.find_packed_sequence_indices = found


def one_segment(module: Any) -> None:
    """transformers.models.whisper.generation_whisper: an answer is cut at its time stamps, which are values of the GPU; here it has none."""
    mixin = module.WhisperGenerationMixin
    if not hasattr(mixin, "_retrieve_segment"):
        return

    def whole(seek_sequence: Any, seek_outputs: Any, time_offset: Any, seek_num_frames: Any, prev_idx: Any, idx: Any,
              decoder_input_ids: Any, **given: Any) -> Any:  # fmt: skip
        start, first = time_offset[prev_idx], decoder_input_ids.shape[-1]
        segment = {"start": start, "end": start, "tokens": seek_sequence, "idxs": (first, first + len(seek_sequence)),
                   "result": seek_outputs[idx]}  # fmt: skip
        if given.get("return_token_timestamps"):
            stamps = seek_outputs[idx]["token_timestamps"]
            segment["token_timestamps"] = stamps[first : first + len(seek_sequence)] + start
        return [segment], seek_num_frames[prev_idx]

    mixin._retrieve_segment = staticmethod(whole)


def end_generation(module: Any, flow: Flow) -> None:
    """transformers.generation.utils: whether all sequences are done is a value of the GPU. Here a few tokens are made, and noted
    how many are left up to the greatest length."""
    criteria, mixin = module.MaxLengthCriteria, module.GenerationMixin
    measured, unfinished = criteria.__call__, mixin._has_unfinished_sequences

    def is_done(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        flow.tokens_left = self.max_length - input_ids.shape[1]
        return measured(self, input_ids, *args, **kwargs)

    def has_unfinished(self: Any, *args: Any, **kwargs: Any) -> Any:
        flow.token_cuts.append(len(flow.log.events[GPU]) // 2)
        if flow.tokens_left > 0 and len(flow.token_cuts) <= TOKENS:
            return unfinished(self, *args, **kwargs)
        if flow.tokens_left > 0:
            flow.generations.append(CutGeneration(flow.token_cuts[-4:], flow.tokens_left))
            flow.left_out = flow.tokens_left
        flow.token_cuts, flow.tokens_left = [], 1
        return False

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        flow.left_out = 0
        made = generated(self, *args, **kwargs)
        left, flow.left_out = flow.left_out, 0
        return as_long(made, left) if left else made

    generated = mixin.generate
    mixin.generate = generate
    criteria.__call__, mixin._has_unfinished_sequences = is_done, has_unfinished


def as_long(made: Any, left: int) -> Any:
    """What was generated, with the tokens that were left out: a script may train on it."""
    if isinstance(made, torch.Tensor):
        return torch.cat([made, made.new_zeros(made.shape[0], left)], 1) if made.dim() == 2 else made
    if isinstance(getattr(made, "sequences", None), torch.Tensor):
        made.sequences = as_long(made.sequences, left)
    return made


def _sequence() -> int:
    peek = getattr(torch._C._autograd, "_get_sequence_nr", None) or getattr(
        torch.autograd, "_get_sequence_nr", None
    )
    return int(peek()) if peek is not None else 0


def _library_folders() -> tuple[str, ...]:
    folders = {
        os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))),
        os.path.dirname(os.__file__),
    }
    return tuple(folder + os.sep for folder in folders)
