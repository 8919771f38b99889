"""What ``torch.cuda`` and ``torch.accelerator`` answer when the card is virtual."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from . import one_rank
from .cuda_redirect import CARD, is_cuda
from .storage_log import GPU, StorageLog

_CAPABILITY = (9, 0)


class Refused(BaseException):
    """What cannot be followed, in a sentence with the way out. Not an Exception: no script's handler may swallow it."""


class _Nothing:
    """A stream or an event: nothing runs, so nothing waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device, self.cuda_stream, self.stream_id, self.priority = CARD, 0, 0, 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *given: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event or _Nothing()

    def is_capturing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Capture:
    """A class, since libraries name it in annotations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise Refused("CUDA graphs cannot be followed without a GPU; switch them off for sizing")


class _OtherAllocator:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise Refused(
            "an allocator that is not PyTorch's own (CUDAPluggableAllocator, RMM) cannot be followed; leave it out for sizing"
        )


def install(log: StorageLog, total: int) -> None:
    """``total``: bytes of the card, 0: there is none to be seen."""
    one_rank.install(log)
    if total:
        _show_card(log, total)


def _show_card(log: StorageLog, total: int) -> None:
    answers = _answers(log, total)
    modules = [
        torch.cuda,
        *(getattr(torch.cuda, name, None) for name in ("memory", "random", "streams", "graphs")),
    ]
    for name, value in answers.items():
        for module in modules:
            if module is torch.cuda or (
                hasattr(module, name) and not isinstance(getattr(module, name), type(torch))
            ):
                setattr(module, name, value)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    torch.cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
    _accelerator(answers)
    _generator()
    torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 91002
    if torch.version.cuda is None:
        torch.version.cuda = "12.8"


def _answers(log: StorageLog, total: int) -> dict[str, Any]:
    card = types.SimpleNamespace(
        name="virtual GPU", total_memory=total, major=_CAPABILITY[0], minor=_CAPABILITY[1],
        multi_processor_count=132, warp_size=32, is_integrated=0, is_multi_gpu_board=0,
        gcnArchName="", uuid="virtual", L2_cache_size=60 << 20, max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152,
    )  # fmt: skip

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def live(*args: Any, **kwargs: Any) -> int:
        return log.live[GPU]

    def highest(*args: Any, **kwargs: Any) -> int:
        return log.peak[GPU]

    always = dict.fromkeys(
        (
            "is_available",
            "is_initialized",
            "is_bf16_supported",
            "is_tf32_supported",
            "can_device_access_peer",
        ),
        lambda *args, **kwargs: True,
    )
    quiet = dict.fromkeys(
        (
            "init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed",
            "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all", "set_stream",
            "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
            "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "cudart", "_sleep",
        ),
        nothing,
    )  # fmt: skip
    stats = {
        f"{what}.all.{when}": 0
        for what in ("allocated_bytes", "reserved_bytes", "active_bytes", "num_alloc_retries", "num_ooms")
        for when in ("current", "peak")
    }
    return {
        **always,
        **quiet,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: card.name,
        "get_device_properties": lambda device=None: card,
        "get_device_capability": lambda device=None: _CAPABILITY,
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "mem_get_info": lambda device=None: (max(0, total - log.live[GPU]), total),
        "memory_allocated": live,
        "memory_reserved": live,
        "memory_cached": live,
        "max_memory_allocated": highest,
        "max_memory_reserved": highest,
        "max_memory_cached": highest,
        "memory_stats": lambda device=None: {**stats, "num_alloc_retries": 0, "num_ooms": 0},
        "memory_summary": lambda *args, **kwargs: "virtual GPU",
        "utilization": lambda device=None: 0,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "is_current_stream_capturing": lambda: False,
        "current_stream": _Nothing,
        "default_stream": _Nothing,
        "Stream": _Nothing,
        "Event": _Nothing,
        "stream": lambda stream=None: contextlib.nullcontext(),
        "device": _Nothing,
        "device_of": _Nothing,
        "_set_allocator_settings": log.allocator_settings.append,
        "CUDAPluggableAllocator": _OtherAllocator,
        "change_current_allocator": _OtherAllocator,
        "CUDAGraph": _Capture,
        "graph": _Capture,
        "make_graphed_callables": _Capture,
    }


def _accelerator(answers: dict[str, Any]) -> None:
    module = getattr(torch, "accelerator", None)
    if module is None:
        return
    for name in ("is_available", "device_count", "synchronize", "empty_cache", "memory_allocated", "max_memory_allocated",
                 "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "memory_stats", "current_stream",
                 "set_stream", "get_memory_info"):  # fmt: skip
        if hasattr(module, name):
            setattr(module, name, answers.get(name, answers["mem_get_info"]))
    for name in ("current_device_index", "current_device_idx"):
        setattr(module, name, lambda: 0)
    for name in ("set_device_index", "set_device_idx"):
        setattr(module, name, lambda device: None)
    module.current_accelerator = lambda check_available=False: torch.device("cuda")
    inner = getattr(module, "memory", None)
    for name in (
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "reset_peak_memory_stats",
    ):
        if inner is not None and hasattr(inner, name):
            setattr(inner, name, answers[name])


def _generator() -> None:
    original = torch.Generator

    class Generator(original):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return original.__new__(cls, device="cpu" if is_cuda(device) else device)

    torch.Generator = Generator
