"""A process group in which this rank is alone awake: collectives return at once, DistributedDataParallel keeps its buckets."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from .cuda_redirect import is_cuda
from .ranks import number
from .storage_log import GPU, HOST, resident
from .training_flow import tell

BUCKETS = "gradient buckets"
# ranks in all and on this machine, and what the process that starts them holds where that is this very one
known = {"world": 1, "ranks": 1, "launcher": 0}


def install(log: Any) -> None:
    try:
        import torch.distributed as distributed
    except ImportError:
        return
    if not distributed.is_available():
        return
    state = {"ready": False}
    rank, world = number("RANK", 0), number("WORLD_SIZE", 1)
    if world > 1:
        _are_several(world, number("LOCAL_WORLD_SIZE", 1))

    def start(*args: Any, **kwargs: Any) -> None:
        state["ready"] = True

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
        "get_world_size": lambda *args, **kwargs: known["world"],
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


def _are_several(world: int, ranks: int) -> None:
    known.update(world=world, ranks=ranks)
    all_of_them = f"all {ranks} ranks" if ranks == world else f"the {ranks} ranks on this machine"
    tell(
        f"one rank of {world} was sized: the GPU's figures are for one card, the RAM for {all_of_them}; what NCCL or gloo hold is not counted"
    )


def run_spawned_here() -> None:
    """torch.multiprocessing.spawn: the first rank runs in this process, the others do not. Where its file names nothing distributed,
    what is spawned prepares data, say, and runs as ever."""
    import torch.multiprocessing as multiprocessing

    for name in ("spawn", "start_processes"):
        original = getattr(multiprocessing.spawn, name, None) or getattr(multiprocessing, name)

        def start(
            fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *more: Any, _original: Any = original, **given: Any
        ) -> Any:  # fmt: skip
            if not _is_distributed(fn):
                return _original(fn, args, nprocs, join, *more, **given)
            if nprocs > 1:
                _are_several(nprocs, nprocs)
                known["launcher"] = resident()
            fn(0, *args)
            return None if join else _Done()

        setattr(multiprocessing, name, start)


def _is_distributed(start: Any) -> bool:
    try:
        with open(inspect.getsourcefile(start) or "", errors="replace") as file:
            return "distributed" in file.read()
    except (OSError, TypeError):
        return False


class _Done:
    """Of an asynchronous collective, or of processes that were not started."""

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

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
                buckets = {GPU: 0, HOST: 0}
                for item in learned:
                    buckets[GPU if is_cuda(item.device) else HOST] += item.nbytes
                for where, size in buckets.items():
                    if size:
                        log.lasting(size, BUCKETS, where)

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
