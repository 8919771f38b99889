"""What a script takes with another number of loader workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomproof.sizing.host_figures import PROCESS, QUEUE, WORKERS, HostFigures
from oomproof.sizing.virtual_gpu.child_results import Loader
from oomproof.units import GIB, MIB


def figures(
    workers: int = 2, batch: int = 10 * MIB, own: int = 100 * MIB, on_card: bool = False
) -> HostFigures:
    parts = {PROCESS: GIB, WORKERS: workers * own, QUEUE: (2 * workers + 1) * batch if workers else 0}
    return HostFigures(parts, (Loader(workers, 2, batch),), own, on_card)


@given(st.integers(1, 8), st.integers(0, 32), st.integers(1, 200 * MIB), st.integers(0, GIB))
def test_there_and_back_is_the_same(first: int, second: int, batch: int, own: int) -> None:
    start = figures(first, batch, own)
    if second:
        assert start.with_workers(second).with_workers(first).estimate() == start.estimate()
    assert start.with_workers(first).estimate() == start.estimate()


def test_each_worker_adds_itself_and_its_batches() -> None:
    sixteen = figures().with_workers(16)
    assert sixteen.parts[WORKERS] == 16 * 100 * MIB
    assert sixteen.parts[QUEUE] == sixteen.shared == 33 * 10 * MIB
    assert figures().with_workers(16, prefetch=4).shared == 65 * 10 * MIB


def test_without_workers_the_process_makes_the_batches() -> None:
    alone = figures().with_workers(0)
    assert alone.parts[WORKERS] == alone.shared == 0
    assert alone.parts[PROCESS] > GIB


def test_workers_that_a_script_did_not_have_are_each_reckoned_once() -> None:
    """A command without workers, asked for some."""
    alone = figures(workers=0)
    one, eight = alone.with_workers(1).parts[WORKERS], alone.with_workers(8).parts[WORKERS]
    assert eight == 8 * one and one < 30 * MIB


def test_a_loader_of_its_own_keeps_its_number() -> None:
    """A second loader without workers, beside one whose number may change."""
    both = HostFigures(figures().parts, (Loader(2, 2, 10 * MIB), Loader(0, 2, 10 * MIB)), 100 * MIB)
    assert [loader.workers for loader in both.with_workers(8).loaders] == [8, 0]


def test_the_libraries_of_a_card_are_on_top() -> None:
    assert figures(on_card=True).estimate().expected > figures().estimate().expected
    assert sum(figures(on_card=True).estimate().parts.values()) == figures(on_card=True).estimate().expected
