"""generate() inside a training: its phase, its key/value cache known before the call, a warning before the one that cannot fit."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any, NamedTuple

from ..leaf.allocator_memory import CudaMemory
from ..leaf.kv_cache import Call, Layout, Need, largest_that_fits, layout_of, need_of, usable
from . import allocator, cuda_memory
from .agent_core import compiling_of, note_failure
from .cache_release import size

_WARNINGS = 3  # of one process
_QUIET = 10.0  # seconds between two reports of calls that fit


class Plan(NamedTuple):
    """A call and what its model caches."""

    layout: Layout
    call: Call
    group: int  # rows of the cache for one example: beams or returned sequences
    batch: int
    device: int | None  # the card, or None where the cache does not live on one


def install(module: Any, agent: Any) -> None:
    """``module``: transformers.generation.utils."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    mixin = module.GenerationMixin
    if getattr(mixin.generate, "_oomproof", False):
        return
    mixin.generate = wrapped(mixin.generate, Watched(torch, agent))


def wrapped(original: Any, watched: Watched) -> Any:
    """generate() as it was, between two looks. While a graph is compiled, nothing but the original is seen."""
    compiling = compiling_of(watched.torch)

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or watched.inside:
            return original(self, *args, **kwargs)
        watched.inside = True
        try:
            with watched.agent.phase("generate"):
                plan = watched.before(self, args, kwargs)
                try:
                    return original(self, *args, **kwargs)
                finally:
                    watched.after(plan)
        finally:
            watched.inside = False

    generate._oomproof = True  # type: ignore[attr-defined]
    return generate


class Watched:
    def __init__(self, torch: Any, agent: Any) -> None:
        self.torch, self.agent = torch, agent
        self.inside = False  # some models generate by calling themselves
        self._warnings = 0
        self._worst = 0
        self._told = -1e9
        self._begun = 0.0
        self._reason = ""

    def before(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Plan, Need, Any] | None:
        """None where the call cannot be planned, or runs elsewhere. Never raises."""
        self._begun = time.monotonic()
        try:
            plan = plan_of(self.torch, model, args, kwargs)
            if isinstance(plan, str):
                if plan != self._reason:
                    self._reason = plan
                    self.agent.report("generate", cannot_tell=plan)
                return None
            need = need_of(plan.layout, plan.call)
            if plan.device is None:
                return plan, need, None
            memory = cuda_memory.read(self.torch, plan.device)
            if memory is not None:
                watch = allocator.current()
                if watch is not None:
                    # should memory run out, the account knows what was asked and what would have fitted
                    watch.generating = functools.partial(in_hindsight, plan, need, memory)
                if need.total > usable(memory.within_reach):
                    self._warn(plan, need, memory)
            return plan, need, memory
        except Exception as error:
            note_failure(self.agent, "generate", error)
            return None

    def after(self, planned: tuple[Plan, Need, Any] | None) -> None:
        try:
            watch = allocator.current()
            if watch is not None:
                watch.generating = None
            now = time.monotonic()
            if planned is None or now - self._told < _QUIET:
                return
            self._told = now
            plan, need, before = planned
            fields = facts(plan, need)
            fields["seconds"] = round(now - self._begun, 3)
            memory = cuda_memory.read(self.torch, plan.device) if plan.device is not None else None
            if before is not None and memory is not None:
                fields.update(allocated_before=before.allocated, allocated=memory.allocated,
                              reserved_before=before.reserved, reserved=memory.reserved)  # fmt: skip
            self.agent.report("generate", **fields)
        except Exception as error:
            note_failure(self.agent, "generate", error)

    def _warn(self, plan: Plan, need: Need, memory: CudaMemory) -> None:
        batch, new_tokens = largest_that_fits(plan.layout, plan.call, plan.group, usable(memory.within_reach))
        self.agent.report(
            "generate-wont-fit", reach=memory.within_reach, fitting_batch=batch, fitting_new_tokens=new_tokens,
            device=memory.device, free=memory.free, returnable=memory.returnable, **facts(plan, need)
        )  # fmt: skip
        if self._warnings < _WARNINGS and need.total > self._worst:
            self._warnings += 1
            self._worst = need.total
            self.agent.tell(warning_text(plan, need, memory, batch, new_tokens))


def facts(plan: Plan, need: Need) -> dict[str, Any]:
    return {
        "batch": plan.batch,
        "rows": plan.call.rows,
        "tokens": plan.call.tokens,
        "new_tokens": plan.call.new_tokens,
        "cache": need.cache,
        "copy": need.copy,
        "logits": need.logits,
    }


def in_hindsight(
    plan: Plan, need: Need, before: CudaMemory, now: CudaMemory, cached: int, requested: int
) -> dict[str, Any]:
    """The call in which memory ran out: what it took beside its cache so far, and what would have fitted with that."""
    beside = max(0, now.allocated + requested - before.allocated - cached)
    memory = usable(before.within_reach, max(0, beside - need.copy - need.logits))
    batch, new_tokens = largest_that_fits(plan.layout, plan.call, plan.group, memory)
    return {
        **facts(plan, need),
        "reach": before.within_reach,
        "beside": beside,
        "fitting_batch": batch,
        "fitting_new_tokens": new_tokens,
    }


def warning_text(plan: Plan, need: Need, memory: CudaMemory, batch: int, new_tokens: int) -> str:
    rows = f"{plan.batch} sequences" if plan.group == 1 else f"{plan.batch} x {plan.group} sequences"
    surely = "will not" if need.total > memory.within_reach else "will probably not"
    text = f"generate() {surely} fit on GPU {memory.device}: its KV cache for {rows} of {plan.call.tokens} tokens takes {size(need.cache)}"
    text += f", {size(need.total)} with the copy it grows by and the logits; {size(memory.within_reach)} is free or can be given back, a tenth of which is lost in gaps. "
    choices = []
    if batch:
        choices.append(f"a batch of {batch}")
    if new_tokens:
        choices.append(f"max_new_tokens={new_tokens}")
    return text + ("What fits at most: " + ", or ".join(choices) if choices else "Not even one sequence fits")


def plan_of(torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | str:
    """The call in numbers, from its arguments and the model's configs; a sentence where they do not tell."""
    own = getattr(model, "generation_config", None)
    given = kwargs.get("generation_config", args[1] if len(args) > 1 else None)

    def setting(name: str, default: Any = None) -> Any:
        for value in (kwargs.get(name), getattr(given, name, None), getattr(own, name, None)):
            if value is not None:
                return value
        return default

    if kwargs.get("past_key_values") is not None or kwargs.get("cache_params") is not None:
        return "the caller brings a cache of its own"
    kind = setting("cache_implementation")
    if kind in ("quantized", "paged"):
        return f"a {kind} cache depends on its backend"
    shape = _shape(args, kwargs)
    if shape is None:
        return "the call's inputs do not tell batch and length"
    batch, length = shape
    config = model.config
    if any(
        name in kwargs for name in ("pixel_values", "input_features", "input_values", "pixel_values_videos")
    ):
        return "images and sound take more tokens than the call's inputs show"
    utilities = sys.modules.get("transformers.cache_utils")
    static = (kind is not None and "static" in str(kind)) or kind in ("sliding_window", "hybrid")
    layout = layout_of(config, windows=static or hasattr(utilities, "DynamicSlidingWindowLayer"))
    if isinstance(layout, str):
        return layout
    source = 0
    if getattr(config, "is_encoder_decoder", False):
        source = length
        decoder = kwargs.get("decoder_input_ids")
        length = int(decoder.shape[1]) if decoder is not None else 1
    total = _length(setting, kwargs, length, config)
    group = max(int(setting("num_beams", 1)), int(setting("num_return_sequences", 1)))
    guided = setting("guidance_scale")
    if guided is not None and guided != 1:
        group *= 2  # a second, unguided pass
    if setting("use_cache", True) is False:
        layout = Layout([], [], layout.vocabulary)
    kept = sum(bool(setting(name, False)) for name in ("output_scores", "output_logits"))
    call = Call(
        rows=batch * group,
        tokens=max(1, total - 1),
        new_tokens=max(1, total - length),
        source=source,
        element_size=_element_size(torch, model),
        static=static,
        scores=kept if setting("return_dict_in_generate", False) else 0,
    )
    if kind is not None and "offloaded" in str(kind):
        # two layers are on the card at a time, the rest is in the host's memory
        layout = Layout(layout.layers[:2], layout.cross[:2], layout.vocabulary)
    return Plan(layout, call, group, batch, _card(model))


def _shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    for value in (args[0] if args else None, kwargs.get("inputs"), kwargs.get("input_ids"), kwargs.get("inputs_embeds"),
                  kwargs.get("attention_mask")):  # fmt: skip
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape) >= 2:
            return int(shape[0]), int(shape[1])
    encoded: Any = kwargs.get("encoder_outputs")
    try:
        return int(encoded[0].shape[0]), int(encoded[0].shape[1])
    except (TypeError, IndexError, KeyError, AttributeError):
        return None


def _length(setting: Any, kwargs: dict[str, Any], prompt: int, config: Any) -> int:
    """Prompt and new tokens together, as transformers settles it: max_new_tokens before max_length, 20 new ones by default."""
    new = setting("max_new_tokens")
    if new is not None:
        return prompt + int(new)
    most = setting("max_length")
    if most is not None and (int(most) != 20 or kwargs.get("max_length") is not None):
        return max(prompt + 1, int(most))
    positions = getattr(config, "max_position_embeddings", None)
    total = prompt + 20
    return min(total, positions) if isinstance(positions, int) and positions > prompt else total


def _element_size(torch: Any, model: Any) -> int:
    """Keys and values are made in the model's type, or in autocast's."""
    try:
        if torch.is_autocast_enabled():
            get = getattr(torch, "get_autocast_dtype", None)
            kind = get("cuda") if get is not None else torch.get_autocast_gpu_dtype()
        else:
            kind = model.dtype
        return int(torch.empty((), dtype=kind, device="meta").element_size())
    except Exception:  # a wrapped model without a dtype: half precision is the usual one
        return 2


def _card(model: Any) -> int | None:
    """The CUDA device that holds all of the cache; None for the CPU, or a model spread over several cards."""
    spread = getattr(model, "hf_device_map", None)
    if isinstance(spread, dict) and len({str(card) for card in spread.values()}) > 1:
        return None
    device = getattr(model, "device", None)
    if getattr(device, "type", "") != "cuda":
        return None
    index = getattr(device, "index", None)
    return int(index) if index is not None else 0
