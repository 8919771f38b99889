"""The arithmetic of loader workers; against a real DataLoader in bench/loader_memory.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sizing.host_figures import loader_memory
from oomproof.sizing.virtual_gpu.child_results import Loader
from oomproof.units import MIB


def test_the_queue_is_workers_times_prefetch_and_one() -> None:
    assert loader_memory(Loader(4, 8, 32 * MIB)).queue == 33 * 32 * MIB, "measured: 1056 MiB"
    assert loader_memory(Loader(0, 2, 32 * MIB)).queue == 0, "without workers nothing waits"


def test_without_workers_the_process_holds_it_all() -> None:
    """Measured: 65 MiB of batches of 16, 193 of 64."""
    assert loader_memory(Loader(0, 2, 16 * MIB)).total == 64 * MIB
    assert loader_memory(Loader(0, 2, 64 * MIB)).total == 192 * MIB


def test_spawned_workers_take_more_than_forked_ones() -> None:
    forked, spawned = (loader_memory(Loader(4, 2, MIB, method)) for method in ("fork", "spawn"))
    assert spawned.private > 5 * forked.private and spawned.queue == forked.queue


@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(0, 1 << 30),
    st.sampled_from(["fork", "spawn", "forkserver"]),
)
def test_more_of_anything_never_takes_less(workers: int, prefetch: int, batch: int, method: str) -> None:
    total = loader_memory(Loader(workers, prefetch, batch, method)).total
    assert loader_memory(Loader(workers + 1, prefetch, batch, method)).total >= total
    assert loader_memory(Loader(workers, prefetch + 1, batch, method)).total >= total
    assert loader_memory(Loader(workers, prefetch, batch + 1, method, pinned=batch + 1)).total >= total
