"""From the log of a virtual GPU to the figures a user reads."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oomproof.sizing import virtual_run
from oomproof.sizing.virtual_gpu import virtual_start
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_run import VirtualRun

MIB = 1 << 20


def a_run(events: list[tuple[int, int]], **result: object) -> VirtualRun:
    names = [name for name, _ in events if name > 0]
    births = bytes(result.pop("births", [0] * max(names)))  # type: ignore[arg-type,call-overload]
    return VirtualRun(VirtualResult.from_json(result), events, births)


def test_parts_are_those_at_the_peak() -> None:
    run = a_run(
        [(1, 40 * MIB), (2, 20 * MIB), (3, 30 * MIB), (-2, 20 * MIB), (4, 10 * MIB)],
        kinds={"1": "weights", "3": "optimizer state"}, births=[0, 0, 2, 1],
    )  # fmt: skip
    replay = virtual_run.replay(run)
    assert replay.allocated == 90 * MIB
    parts = {name: size // MIB for name, size in replay.parts.items() if size}
    assert parts == {"weights": 40, "activations": 20, "optimizer state": 30}


def test_parts_add_up_to_the_expected_figure() -> None:
    run = a_run([(1, 33 * MIB), (2, 21 * MIB), (-2, 21 * MIB), (3, 25 * MIB), (4, 100)])
    estimate, _ = virtual_run.gpu_estimate(run)
    assert sum(estimate.parts.values()) == estimate.expected
    assert estimate.low <= estimate.expected <= estimate.high
    assert estimate.parts["allocator waste"] > 0


def test_each_phase_has_its_own_peak() -> None:
    events = [(1, 10 * MIB), (2, 30 * MIB), (-2, 30 * MIB), (3, 12 * MIB)]
    run = a_run(events, marks=[(0, "train"), (6, "eval")], phases={"train": 1, "eval": 1}, generates=True)
    _, phases = virtual_run.gpu_estimate(run)
    context = virtual_run.ANY_CARD.context.usual
    told = {phase.name: (phase.gpu, phase.reached) for phase in phases}
    assert told == {
        "train": (context + 40 * MIB, True),
        "eval": (context + 22 * MIB, True),
        "generate": (None, False),
    }


def test_outputs_that_an_evaluation_keeps_count_for_all_its_batches() -> None:
    events = [(1, 10 * MIB), (2, 10 * MIB)]
    run = a_run(events, marks=[(0, "eval")], phases={"eval": 1}, kept=1000 * MIB)
    estimate, _ = virtual_run.gpu_estimate(run)
    assert estimate.parts["outputs kept by eval"] == 1000 * MIB
    assert sum(estimate.parts.values()) == estimate.expected


def test_a_card_that_holds_it_only_with_retries() -> None:
    """Blocks of rising sizes: reserved adds them all up, live is one of them."""
    events = [event for number in range(1, 11) for event in ((number, number * 20 * MIB), (-number, 0))]
    run = a_run(events)
    context = virtual_run.ANY_CARD.context.usual
    assert virtual_run.replay(run).reserved == 1100 * MIB
    assert "gives cached segments back" in virtual_run.tight(run, context + 300 * MIB)
    assert virtual_run.tight(run, context + 1200 * MIB) == ""
    assert virtual_run.tight(run, context + 100 * MIB) == "", "does not fit at all: another says so"


def test_a_model_on_the_host_has_its_phases_in_ram() -> None:
    run = a_run([(1, 1)], host_marks=[(2, "train"), (8, "eval")], phases={"train": 3, "eval": 1})
    run.host_events = [(1, 50 * MIB), (2, 30 * MIB), (-2, 30 * MIB), (3, 10 * MIB), (4, 5 * MIB)]
    phases = virtual_run.host_phases(run, expected=280 * MIB)
    assert [(phase.name, phase.gpu, (phase.host or 0) // MIB, phase.reached) for phase in phases] == [
        ("train", None, 280, True),
        ("eval", None, 265, True),
    ]


def test_small_blocks_stay_in_the_heap() -> None:
    """Of those without a name: malloc gives large ones back, and weights live on."""
    run = VirtualRun(VirtualResult(kinds={1: "weights"}), [], bytes(5), host_events=[
        (1, 20), (2, 10), (3, 100), (-3, 100), (4, 15), (-2, 10), (-4, 15), (5, 12), (-5, 12)])  # fmt: skip
    assert virtual_run.host_peak_of_small(run, 32) == 25


def test_a_larger_block_finds_the_room_of_freed_small_ones_still_taken() -> None:
    activations = [(1, 20), (2, 30), (-1, 20), (-2, 30)]
    run = VirtualRun(VirtualResult(), [], bytes(3), host_events=[*activations, (3, 100), (-3, 100)])
    assert virtual_run.host_left_in_heap(run, 32) == 50, (
        "100 mapped beside 50 that malloc keeps, not 100 alone"
    )
    together = VirtualRun(VirtualResult(), [], bytes(3), host_events=[(3, 100), *activations, (-3, 100)])
    assert virtual_run.host_left_in_heap(together, 32) == 0, "they were counted already"
    assert virtual_run.host_left_in_heap(run, 16) == 0, "all are given back"


def test_a_phase_that_was_not_reached_has_no_figure() -> None:
    run = a_run([(1, 1)], host_marks=[(0, "train")], phases={"train": 3})
    run.host_events = [(1, 50 * MIB)]
    assert [
        (phase.name, phase.host is None, phase.reached) for phase in virtual_run.host_phases(run, 90 * MIB)
    ] == [
        ("train", False, True),
        ("eval", True, False),
    ]


def test_a_network_of_convolutions_alone_loads_no_library_for_matrices() -> None:
    events, convolution = [(1, 40 * MIB)], {"op": "aten.convolution.default"}
    alone = a_run(events, signatures=[convolution])
    with_head = a_run(events, signatures=[convolution, {"op": "aten.addmm.default"}])
    recurrent = a_run(events, signatures=[convolution], recurrent=True)
    unknown = a_run(events)
    card = virtual_run.ANY_CARD
    assert virtual_run.context_of(alone, card).usual == card.context.usual - card.matrices
    normed = a_run(
        [(1, MIB)],
        signatures=[{"op": "aten.convolution.default"}, {"op": "aten.native_group_norm_backward.default"}],
    )
    assert virtual_run.context_of(normed, card) == virtual_run.context_of(alone, card), "FCOS on an H200"
    less = virtual_run.gpu_estimate(with_head)[0].expected - virtual_run.gpu_estimate(alone)[0].expected
    assert less == card.matrices
    for run in (with_head, recurrent, unknown):
        assert virtual_run.context_of(run, card) == card.context


def test_a_search_for_kernels_may_take_a_gibibyte_whatever_the_tensors_take() -> None:
    facts = {"convolutions": 4, "notes": []}
    plain, searched = (a_run([(1, 40 * MIB)], **facts, benchmark=on) for on in (False, True))
    assert virtual_run.gpu_estimate(searched)[0].high - virtual_run.gpu_estimate(plain)[0].high > 900 * MIB


def test_a_search_that_nobody_measured_is_told() -> None:
    facts = {"convolutions": 4, "notes": [], "widened": {}, "benchmark": True}
    for unmeasured, told in ((4, True), (0, False)):
        run = a_run([(1, 40 * MIB)], **facts, unmeasured_convolutions=unmeasured)
        assert (virtual_run.SEARCH in virtual_run.widening_notes(run.result)) is told


def test_two_threads_that_end_at_once_write_one_whole_result(tmp_path: Path) -> None:
    """The script and the alarm that ends it."""
    result = VirtualResult(kinds=dict.fromkeys(range(20_000), "weights"))
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(virtual_start._write, [str(tmp_path)] * 8, [result] * 8)
        )  # an error of theirs is one of ours
    written = json.loads((tmp_path / f"{os.getpid()}.json").read_text())
    assert VirtualResult.from_json(written) == result


def test_batches_of_many_shapes_leave_room_for_the_rest_of_the_epoch() -> None:
    events = [(number, 20 * MIB) for number in range(1, 11)]
    steps = {"step_ends": list(range(1, 10)), "notes": [], "widened": {}}
    followed = a_run(events, **steps, many_shapes={"batches": 9, "seen": 9})
    begun = a_run(events, **steps, many_shapes={"batches": 900, "seen": 9})
    assert virtual_run.replay(followed).more[virtual_run.EPOCH] == 0
    assert virtual_run.replay(begun).more[virtual_run.EPOCH] == 20 * MIB
    high = [virtual_run.gpu_estimate(run)[0].high for run in (followed, begun)]
    assert high[1] - high[0] == 20 * MIB
    assert "9 of 900 of an epoch were followed" in " ".join(virtual_run.widening_notes(begun.result))


def test_a_distance_is_a_product_of_matrices_too() -> None:
    run = a_run([(1, MIB)], signatures=[{"op": "aten.convolution.default"}], matrices=1)
    assert virtual_run.context_of(run, virtual_run.ANY_CARD) == virtual_run.ANY_CARD.context


def test_linear_algebra_loads_a_library_of_its_own() -> None:
    card = virtual_run.ANY_CARD
    usual = [
        virtual_run.context_of(a_run([(1, MIB)], solvers=[name]), card).usual - card.context.usual
        for name in ("aten._linalg_slogdet.default", "aten._linalg_eigh.default")
    ]
    assert usual == [34 * MIB, 98 * MIB]
