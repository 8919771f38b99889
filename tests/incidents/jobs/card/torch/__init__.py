"""PyTorch's face without a card: the calls the agent makes, over figures a job sets. For machines that have no GPU."""

from __future__ import annotations

import sys
import types

GIB = 1 << 30


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


class Storage:
    def __init__(self, size):
        self.size = size

    def data_ptr(self):
        return id(self)

    def nbytes(self):
        return self.size


class Tensor:
    is_leaf, grad, grad_fn, dtype = True, None, None, "torch.float32"

    def __init__(self, *shape):
        self.shape = shape
        size = 4
        for side in shape:
            size *= side
        self.device = types.SimpleNamespace(type="cuda", index=0)
        self._storage = Storage(size)

    def untyped_storage(self):
        return self._storage


class Module:
    pass


class Optimizer:
    pass


nn = types.SimpleNamespace(Module=Module)
optim = types.SimpleNamespace(Optimizer=Optimizer)
__version__ = "2.11.0"


class Figures:
    started, allocated, reserved, free, total, retries = False, 0, 0, 23 * GIB, 24 * GIB, 0
    queued, observers = [], []


def _stats(device=0):
    def every(value):
        return {"all": {"current": value}}

    return {
        "allocated_bytes": every(Figures.allocated), "active_bytes": every(Figures.allocated), "active": every(9),
        "reserved_bytes": every(Figures.reserved), "inactive_split_bytes": every(0), "inactive_split": every(0),
        "num_alloc_retries": Figures.retries, "num_ooms": 0,
    }  # fmt: skip


def start_cuda():
    """What the first tensor on a card does."""
    for call in Figures.queued:
        call()
    Figures.started = True


def refuse(size):
    """The allocator's last word: observers first, then the exception."""
    for observer in Figures.observers:
        observer(0, size, Figures.total, Figures.free)
    raise OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 has a total capacity of {Figures.total / GIB:.2f} GiB "
        f"of which {Figures.free / GIB:.2f} GiB is free. Of the allocated memory {Figures.allocated / GIB:.2f} GiB is allocated by "
        f"PyTorch, and {(Figures.reserved - Figures.allocated) / GIB:.2f} GiB is reserved by PyTorch but unallocated."
    )


_C = types.SimpleNamespace(
    _cuda_getDeviceCount=lambda: 1, _cuda_attach_out_of_memory_observer=Figures.observers.append
)
cuda = types.ModuleType("torch.cuda")
cuda.memory = types.SimpleNamespace(
    _snapshot=lambda: {"segments": [], "device_traces": []}, _record_memory_history=lambda *_, **__: None
)
cuda.is_initialized = lambda: Figures.started
cuda.memory_stats_as_nested_dict = _stats
cuda.memory_allocated = lambda device=0: Figures.allocated
cuda.memory_reserved = lambda device=0: Figures.reserved
cuda.mem_get_info = lambda device=0: (Figures.free, Figures.total)
cuda.get_allocator_backend = lambda: "native"
cuda.device_count = lambda: 1
cuda.current_device = lambda: 0
cuda.set_device = lambda device: None
cuda.get_device_properties = lambda device: types.SimpleNamespace(
    total_memory=Figures.total, uuid="card-of-this-test"
)
cuda.memory_snapshot = list
cuda.set_per_process_memory_fraction = lambda share, device: print(
    f"fraction {share:.4f} of card {device}", flush=True
)
cuda._lazy_call = Figures.queued.append
sys.modules["torch.cuda"] = cuda
