"""Batches of many shapes in other orders than the one that was followed."""

from __future__ import annotations

import pytest
from test_virtual_run import a_run

from oomproof.sizing import virtual_run
from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.log_variants import reserved_in_other_orders
from oomproof.units import format_size

MIB = 1 << 20
Log = tuple[list[tuple[int, int]], list[int]]


def _log(batches: list[int], parameters: int = 100 * MIB) -> Log:
    """A training as torch's: gradients of one step go when the next begins, activations with their step, the optimizer's state comes with the first."""
    events: list[tuple[int, int]] = [(1, parameters)]
    ends: list[int] = []
    number, gradient = 2, 0
    for batch in batches:
        if gradient:
            events.append((-gradient, parameters))
        kept = []
        for part in (3, 5, 2):
            events.append((number, part * batch))
            kept.append(number)
            number += 1
        gradient = number
        events.append((number, parameters))
        events += [(-name, 0) for name in reversed(kept)]
        if not ends:
            events.append((number + 1, 2 * parameters))
        number += 2
        ends.append(len(events))
    return events, ends


def _most(
    events: list[tuple[int, int]], ends: list[int], seen: int, batches: int | None, start: int = 1
) -> int:
    return max(reserved_in_other_orders(events, ends, seen, batches, start=start), default=0)


def _reserved(events: list[tuple[int, int]]) -> int:
    allocator = CachingAllocator()
    allocator.replay(events)
    return allocator.peak_reserved


def test_batches_that_grow_take_more_than_the_largest_first() -> None:
    sizes = [(40 + 7 * index) * MIB for index in range(12)]
    events, ends = _log(sizes[::-1])
    other = _most(events, ends, 12, 12)
    assert other > 1.05 * _reserved(events)
    assert other <= 2 * _reserved(_log(sizes)[0]), "some orders of these, none of more"
    assert other == _most(events, ends, 12, 12), "the same again"


def test_the_first_batch_may_be_another_too() -> None:
    """Molecules on an H200: the largest batch came first in our log, and not on the card, which reserved twice as much."""
    events, ends = _log([120 * MIB, *[(30 + 8 * index) * MIB for index in range(9)]])
    assert _most(events, ends, 10, 10) > 1.2 * _reserved(events)


def test_batches_that_are_all_alike_take_what_they_took() -> None:
    events, ends = _log([60 * MIB] * 8)
    assert _most(events, ends, 8, 8) == _reserved(events), "gradients are handed from step to step"


def test_an_epoch_goes_on_behind_the_batches_that_were_followed() -> None:
    events, ends = _log([(40 + 7 * index) * MIB for index in range(6)][::-1])
    assert _most(events, ends, 6, 60) > 1.05 * _reserved(events)


def test_what_is_made_for_good_is_made_once() -> None:
    events = [(number, 20 * MIB) for number in range(1, 11)]
    assert _most(events, list(range(1, 11)), 10, 900) == 200 * MIB


def test_too_few_steps_say_nothing() -> None:
    events, ends = _log([40 * MIB, 60 * MIB])
    assert _most(events, ends, 2, 40) == 0
    assert _most([], [], 0, None) == 0


def test_an_order_that_is_drawn_on_the_card_is_told_by_the_median() -> None:
    sizes = [(40 + 7 * index) * MIB for index in range(12)]
    events, ends = _log(sizes[::-1])
    facts = {"step_ends": ends, "notes": [], "widened": {}, "marks": [(2, "train")]}

    def found(order: str) -> virtual_run.Replay:
        many = {"batches": 12, "seen": 12, "order": order}
        return virtual_run.replay(a_run(events, **facts, many_shapes=many))

    fixed, seeded, drawn = (found(order) for order in ("fixed", "seeded", "drawn"))
    assert fixed.reserved == seeded.reserved == _reserved(events)
    assert fixed.more[virtual_run.EPOCH] == 0
    assert seeded.more[virtual_run.EPOCH] > 0, "of the epochs behind the first"
    assert drawn.reserved > seeded.reserved
    tops = [replay.reserved + replay.more[virtual_run.EPOCH] for replay in (seeded, drawn)]
    assert tops[0] == tops[1], "the upper end is the same"


def test_segments_that_grow_are_offered_where_blocks_fit_badly() -> None:
    events, ends = _log([(40 + 7 * index) * MIB for index in range(12)])
    facts = {"step_ends": ends, "notes": [], "widened": {}, "marks": [(2, "train")]}
    many = a_run(events, **facts, many_shapes={"batches": 12, "seen": 12, "order": "seeded"})
    alike = a_run(events, **facts)
    note = virtual_run.growing_note(many, virtual_run.gpu_estimate(many)[0])
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in note
    assert note.endswith(format_size(virtual_run.gpu_estimate(many, True)[0].high))
    assert not virtual_run.growing_note(alike, virtual_run.gpu_estimate(alike)[0])
    assert not virtual_run.growing_note(many, virtual_run.gpu_estimate(many, True)[0]), (
        "they are there already"
    )


def test_whose_order_is_known() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils.data import DataLoader, WeightedRandomSampler

    from oomproof.sizing.virtual_gpu.loader_flow import order_of

    rows = list(range(6))
    seed = torch.Generator().manual_seed(1)
    loaders = {
        "fixed": [DataLoader(rows, 2), DataLoader(rows, None)],
        "seeded": [DataLoader(rows, 2, shuffle=True, generator=seed)],
        "drawn": [DataLoader(rows, 2, shuffle=True), DataLoader(rows, 2, sampler=WeightedRandomSampler([1.0] * 6, 6))],
    }  # fmt: skip
    for order, given in loaders.items():
        assert [order_of(loader._index_sampler) for loader in given] == [order] * len(given)
