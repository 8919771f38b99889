"""Ranks of one training agree on a number through torch's store: it needs no collective, so that a rank whose collectives were cut off can still speak."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from oomproof.errors import OomproofError

_WAIT = timedelta(minutes=30)  # for the slowest rank: it may build its model first
_TOGETHER = timedelta(seconds=60)  # ranks that fail at the same step do so within seconds
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


class Ranks:
    """``store``: None for a training of one process."""

    def __init__(self, rank: int, world: int, store: Any = None) -> None:
        self.rank, self.world, self.store = rank, world, store
        self._serial = 0

    def agree(self, number: int, choose: Callable[[Iterable[int]], int] = min) -> int:
        """What ``choose`` makes of all ranks' numbers; each rank gets the same. Every rank calls it as often as the others."""
        if self.store is None or self.world == 1:
            return number
        self._serial += 1
        keys = [f"{self._serial}/{rank}" for rank in range(self.world)]
        self.store.set(keys[self.rank], str(number))
        self.store.wait(keys, _WAIT)
        numbers = [int(self.store.get(key)) for key in keys]
        return choose(numbers)

    def all_report(self, event: str) -> bool:
        """Whether every rank says so within a minute. One that is inside a collective with a rank that has left it cannot."""
        if self.store is None or self.world == 1:
            return True
        keys = [f"{event}/{rank}" for rank in range(self.world)]
        self.store.set(keys[self.rank], "1")
        try:
            self.store.wait(keys, _TOGETHER)
        except RuntimeError:  # torch's DistStoreError: the time is over
            return False
        return True


_calls = 0


def here() -> Ranks:
    """The training this process is a rank of, by torch.distributed or by torchrun's environment. Raises OomproofError."""
    global _calls
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
        if world == 1:
            return Ranks(0, 1)
        _calls += 1  # the same on all ranks: each calls as often
        return Ranks(rank, world, _prefixed(_default_store(), _calls))
    world = _number("WORLD_SIZE")
    if world is None or world == 1:
        return Ranks(0, 1)
    store = _agent_store(world)
    if store is None:
        raise OomproofError(
            f"this is one of {world} ranks, and torch.distributed is not started yet: they could not agree",
            "call torch.distributed.init_process_group() before the function that fit_batch calls",
        )
    _calls += 1
    return Ranks(_number("RANK") or 0, world, _prefixed(store, _calls))


def _default_store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _prefixed(store: Any, call: int) -> Any:
    from torch.distributed import PrefixStore

    return PrefixStore(f"oomproof-fit-{call}", store)


def _agent_store(world: int) -> Any:
    """torchrun's own, which is there before the script has started its group."""
    address, port = os.environ.get("MASTER_ADDR"), _number("MASTER_PORT")
    if os.environ.get(_AGENT_STORE) != "True" or not address or port is None:
        return None
    from torch.distributed import PrefixStore, TCPStore

    store = TCPStore(address, port, world, is_master=False, timeout=_WAIT)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt-{attempt}", store)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def summed(number: float) -> float:
    """Over all ranks, by a collective: it stands in the training loop, where the ranks are in step."""
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    total = torch.tensor(number, dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    return float(total)
