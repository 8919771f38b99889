"""What cudnn.benchmark takes for its search is told apart from what the job needs."""

from __future__ import annotations

from typing import Any

from oomproof.sizing import measured_workspaces, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.calibration import common_operations
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_run import VirtualRun

MIB, GIB = 1 << 20, 1 << 30
CONVOLUTION = {**common_operations()[0], "flags": {"benchmark": True}}


def searching(benchmark: bool = True) -> VirtualRun:
    """2 GiB of weights, and the same convolution in two steps."""
    facts: dict[str, Any] = {
        "kinds": {"1": "weights", "2": "workspaces", "3": "workspaces"}, "phases": {"train": 1}, "marks": [(0, "train")],
        "signatures": [CONVOLUTION], "signed": {"2": 0, "3": 0}, "convolutions": 1, "benchmark": benchmark,
    }  # fmt: skip
    return VirtualRun(
        VirtualResult.from_json(facts), [(1, 2 * GIB), (2, MIB), (-2, MIB), (3, MIB), (-3, MIB)], bytes(3)
    )


def a_card(first: int, flags: dict[str, bool]) -> CalibratedCard:
    measured = {"extra": 30 * MIB, "later": [30 * MIB, -1], "first": [first, -1, 0, 30 * MIB, -1]}
    return CalibratedCard(
        {"name": "NVIDIA H200"},
        {"with_matrices": 750 * MIB, "with_convolutions": 750 * MIB},
        {signature_key({**CONVOLUTION, "flags": flags}): measured},
    )


SEARCHED = a_card(35 * GIB, {"benchmark": True})


def high(run: VirtualRun) -> int:
    return virtual_run.gpu_estimate(run, card=SEARCHED.card(ANY_CARD))[0].high


def test_on_a_card_that_has_room_the_search_counts_and_is_told() -> None:
    for total in (None, 141 * GIB):
        run, note = measured_workspaces.measured_run(searching(), SEARCHED, False, total)
        assert high(run) > 37 * GIB
        assert note.startswith("35.0 GiB of it only while cudnn.benchmark tries kernels")
        assert "the job needs at most 2." in note


def test_on_a_smaller_card_the_job_is_told_without_the_search() -> None:
    run, note = measured_workspaces.measured_run(searching(), SEARCHED, False, 24 * GIB)
    assert high(run) < 4 * GIB, "PyTorch asks for half as much until it gets it"
    assert "up to 35.0 GiB more" in note and "where the GPU has that free" in note
    assert not [size for _, size in run.events if size > 2 * GIB]


def test_a_search_that_takes_little_is_not_worth_a_note() -> None:
    run, note = measured_workspaces.measured_run(
        searching(), a_card(90 * MIB, {"benchmark": True}), False, 24 * GIB
    )
    assert not note and any(size == 90 * MIB for _, size in run.events)


def test_without_benchmark_what_a_first_call_takes_is_needed() -> None:
    """A library that is loaded with it, say."""
    plain = searching(benchmark=False)
    plain.result.signatures = [{**CONVOLUTION, "flags": {}}]
    run, note = measured_workspaces.measured_run(plain, a_card(35 * GIB, {}), False, 24 * GIB)
    assert not note and high(run) > 37 * GIB
