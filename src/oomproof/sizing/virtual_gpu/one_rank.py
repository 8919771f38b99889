"""A process group in which this rank is alone awake: collectives return at once, DistributedDataParallel keeps its buckets."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from .training_flow import tell

BUCKETS = "gradient buckets"


def install(log: Any) -> None:
    try:
        import torch.distributed as distributed
    except ImportError:
        return
    if not distributed.is_available():
        return
    state = {"ready": False}
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def start(*args: Any, **kwargs: Any) -> None:
        state["ready"] = True
        tell(f"one rank of {world} was sized; NCCL's own buffers are not in it")

    def end(*args: Any, **kwargs: Any) -> None:
        state["ready"] = False

    def fill(objects: Any, mine: Any, *args: Any, **kwargs: Any) -> None:
        objects[:] = [mine] * len(objects)

    def gather(parts: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        for part in parts if isinstance(parts, list) else ():
            part.copy_(tensor)
        return _Done()

    answers: dict[str, Any] = {
        "init_process_group": start,
        "destroy_process_group": end,
        "is_initialized": lambda: state["ready"],
        "get_rank": lambda *args, **kwargs: rank,
        "get_world_size": lambda *args, **kwargs: world,
        "get_backend": lambda *args, **kwargs: "nccl",
        "new_group": lambda *args, **kwargs: None,
        "all_gather_object": fill,
        "all_gather": gather,
        "monitored_barrier": lambda *args, **kwargs: None,
    }
    for name in ("barrier", "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather_into_tensor", "send", "recv",
                 "reduce_scatter_tensor", "all_to_all_single", "broadcast_object_list", "scatter", "gather"):  # fmt: skip
        answers[name] = lambda *args, **kwargs: _Done()
    for module in (distributed, distributed.distributed_c10d):
        for name, answer in answers.items():
            setattr(module, name, answer)
    _data_parallel(log)
    _one_card()


class _Done:
    """Of an asynchronous collective."""

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def refuse(name: str, *parts: str) -> Any:
    """For libraries that split the model between ranks: what one rank holds is not known here."""

    def afterwards(module: Any) -> None:
        from .cuda_queries import Refused

        class Split:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                raise Refused(
                    f"{name} splits the model between GPUs and cannot be followed; size it on one GPU, without it"
                )

        for part in parts:
            if hasattr(module, part):
                setattr(module, part, Split)

    return afterwards


def _one_card() -> None:
    """torch.nn.DataParallel on one card: its batch is moved there, whole."""

    def scatter(self: Any, inputs: Any, kwargs: Any, devices: Any) -> Any:
        return (_on_card(inputs),), (_on_card(kwargs),)

    torch.nn.DataParallel.scatter = scatter


def _on_card(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, dict):
        return {key: _on_card(item) for key, item in value.items()}
    return type(value)(map(_on_card, value)) if type(value) in (list, tuple) else value


def _data_parallel(log: Any) -> None:
    original = torch.nn.parallel.DistributedDataParallel

    class DistributedDataParallel(original):  # type: ignore[misc,valid-type]
        """As torch's, without its reducer: the buckets alone take memory, as much as the gradients."""

        def __init__(
            self, module: Any, *args: Any, gradient_as_bucket_view: bool = False, **kwargs: Any
        ) -> None:
            torch.nn.Module.__init__(self)
            self.module, self.device_ids, self.require_backward_grad_sync = module, None, True
            if not gradient_as_bucket_view:
                learned = [item for item in module.parameters() if item.requires_grad]
                log.lasting(sum(item.numel() * item.itemsize for item in learned), BUCKETS)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        def no_sync(self) -> Any:
            return contextlib.nullcontext()

        def register_comm_hook(self, *args: Any, **kwargs: Any) -> None:
            return None

        def __getstate__(self) -> Any:
            return self.__dict__

    DistributedDataParallel.__qualname__ = original.__qualname__
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
