"""``--gpu-limit 14G``: PyTorch's per-process fraction, set from outside as soon as the job itself has started CUDA.

The limit is for the whole process: the context and the libraries on the card (about 0.75 GiB, measured) are taken off first,
and measured again now and then where the driver tells. Only cards the process uses are touched: to ask about another would
start a context there."""

from __future__ import annotations

import os
import time
from typing import Any

from . import cuda_memory, nvml
from .agent_core import note_failure
from .cache_release import size

MIB = 1 << 20
CONTEXT = 768 * MIB  # PyTorch 2.11 on an H200 with cuBLAS and cuDNN: 751 to 771 MiB
_MEASURE_EVERY = 30.0
_LEAST = 64 * MIB


def install(module: Any, agent: Any) -> None:
    limits = read(agent.settings.get("gpu_limit"))
    if not limits or not hasattr(module._C, "_cuda_getDeviceCount"):
        return
    keeper = Limit(module, agent, limits)
    module.cuda._lazy_call(keeper.started)
    agent.on_phase(keeper.phase_changed)
    agent.on_step(keeper.stepped)
    keeper.follow_set_device()


def read(value: Any) -> dict[int | None, int]:
    """{card or None for all: bytes} of what the front sends: [[bytes, index or null], …]."""
    limits: dict[int | None, int] = {}
    for element in value if isinstance(value, (list, tuple)) else []:
        try:
            size, index = element
            limits[None if index is None else int(index)] = int(size)
        except (TypeError, ValueError):
            continue
    return limits


def fraction_of(limit: int, context: int, total: int) -> float:
    """What the allocator may reserve, as PyTorch wants it told."""
    allowed = min(max(limit - context, _LEAST), total)
    return min(1.0, max(allowed / total, 1e-6))


def cards_at_start(visible: int, local_rank: int | None, limits: dict[int | None, int]) -> list[int]:
    """Which cards can be limited at once: those this process will use for certain. A rank uses its own; a process that
    sees one card uses that; otherwise the first use decides."""
    if local_rank is not None and 0 <= local_rank < visible:
        sure = [local_rank]
    elif visible == 1:
        sure = [0]
    else:
        sure = []
    return [card for card in sure if None in limits or card in limits]


class Limit:
    def __init__(self, torch: Any, agent: Any, limits: dict[int | None, int]) -> None:
        self.torch, self.agent, self.limits = torch, agent, limits
        self._context: dict[int, int] = {}
        self._measured = 0.0

    def started(self) -> None:
        """CUDA has just been started by the job. An error here would be the job's."""
        try:
            rank = os.environ.get("LOCAL_RANK", "")
            visible = int(self.torch.cuda.device_count())
            for card in cards_at_start(visible, int(rank) if rank.isdigit() else None, self.limits):
                self.apply(card)
        except Exception as error:
            self._failed(error)

    def follow_set_device(self) -> None:
        cuda, original = self.torch.cuda, self.torch.cuda.set_device
        keeper = self

        import functools

        @functools.wraps(original)
        def set_device(device: Any) -> Any:
            result = original(device)
            try:
                keeper.apply(int(cuda.current_device()))
            except Exception as error:
                keeper._failed(error)
            return result

        cuda.set_device = set_device

    def phase_changed(self, agent: Any, before: str, now: str) -> None:
        self.look()

    def stepped(self, agent: Any, step: int) -> None:
        if time.monotonic() - self._measured >= _MEASURE_EVERY or not self._context:
            self.look()

    def look(self) -> None:
        """Cards that have come into use; and, now and then, how large the context has become."""
        try:
            if not self.torch.cuda.is_initialized() or cuda_memory.capturing(self.torch):
                return
            again = time.monotonic() - self._measured >= _MEASURE_EVERY
            for card in cuda_memory.devices(self.torch):
                if card not in self._context:
                    self.apply(card)
                elif again:
                    self._measure(card)
            if again:
                self._measured = time.monotonic()
        except Exception as error:
            self._failed(error)

    def _measure(self, card: int) -> None:
        if card not in self._context or not nvml.supported():
            return
        reserved = int(self.torch.cuda.memory_reserved(card)) - cuda_memory.spill_size(card)
        own, _ = nvml.look(self.torch, card, reserved)
        if own is not None and own > reserved:
            context = own - reserved
            if abs(context - self._context[card]) > 32 * MIB:
                self.apply(card, context)

    def apply(self, card: int, context: int | None = None) -> None:
        limit = self.limits.get(card, self.limits.get(None))
        if limit is None or (context is None and card in self._context):
            return
        total = int(self.torch.cuda.get_device_properties(card).total_memory)
        first = card not in self._context
        self._context[card] = CONTEXT if context is None else context
        share = fraction_of(limit + cuda_memory.spill_size(card), self._context[card], total)
        self.torch.cuda.set_per_process_memory_fraction(share, card)
        cuda_memory.FRACTIONS[card] = share
        allowed = share * total - cuda_memory.spill_size(card)
        text = f"GPU {card}: may reserve {size(allowed)} of {size(total)}" if first else ""
        self.agent.report(
            "gpu-limit",
            text=text,
            device=card,
            limit=limit,
            context=self._context[card],
            fraction=round(share, 6),
            total=total,
        )
        if first and limit < CONTEXT + _LEAST:
            self.agent.tell(f"--gpu-limit is hardly more than CUDA itself takes ({CONTEXT // MIB} MiB)")

    def _failed(self, error: BaseException) -> None:
        note_failure(self.agent, "gpu-limit", error)
        if not self._context:
            self._context[-1] = 0  # told once
            self.agent.tell(f"--gpu-limit could not be set: {str(error)[:200]}")
