"""Measured workspaces in the log of a virtual run."""

from __future__ import annotations

from typing import Any

from oomproof.sizing import measured_workspaces, script_sizing, virtual_run
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key
from oomproof.sizing.calibration import common_operations
from oomproof.sizing.card_constants import ANY_CARD
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_run import VirtualRun

MIB = 1 << 20
CONVOLUTION, OTHER = common_operations()[0], common_operations()[-1]


def a_run(**result: Any) -> VirtualRun:
    """A weight; a convolution twice, with 8 MiB guessed for it; a matrix product with nothing guessed; cuBLAS's own 32 MiB."""
    events = [
        (1, 40 * MIB), (2, 8 * MIB), (-2, 8 * MIB), (3, 32 * MIB), (4, 0), (-4, 0), (5, 8 * MIB), (-5, 8 * MIB), (6, MIB),
    ]  # fmt: skip
    workspaces = dict.fromkeys(("2", "3", "4", "5"), "workspaces")
    facts = {
        "kinds": {"1": "weights", **workspaces}, "phases": {"train": 1, "eval": 1}, "marks": [(0, "train"), (16, "eval")],
        "signatures": [CONVOLUTION, OTHER], "signed": {"2": 0, "4": 1, "5": 0}, "convolutions": 2,
    }  # fmt: skip
    return VirtualRun(VirtualResult.from_json({**facts, **result}), events, bytes(6))


def a_card(**signatures: Any) -> CalibratedCard:
    keys = {"convolution": signature_key(CONVOLUTION), "other": signature_key(OTHER)}
    return CalibratedCard(
        {"name": "NVIDIA H200", "torch": "2.11"},
        {"with_matrices": 750 * MIB, "with_convolutions": 768 * MIB, "matrix_workspace": 8 * MIB},
        {keys[name]: value for name, value in signatures.items()},
    )


def test_what_was_measured_stands_in_place_of_the_estimate() -> None:
    card = a_card(
        convolution={"extra": 100 * MIB, "later": [100 * MIB, -1], "first": [300 * MIB, -1, 0]},
        other={"extra": 3 * MIB, "later": [MIB, 2 * MIB, -1, -2]},
    )
    run = measured_workspaces.applied(a_run(), card)
    assert run.events == [
        (1, 40 * MIB), (7, 300 * MIB), (-7, 300 * MIB), (0, 0), (3, 8 * MIB), (8, MIB), (9, 2 * MIB), (-8, MIB), (-9, 2 * MIB),
        (10, 100 * MIB), (-10, 100 * MIB), (6, MIB),
    ]  # fmt: skip
    assert run.result.marks == [(0, "train"), (22, "eval")]
    assert run.result.measured == 2 and run.result.unmeasured == 0 and len(run.births) == 10
    replay = virtual_run.replay(run)
    assert replay.allocated == 340 * MIB and replay.parts["workspaces"] == 300 * MIB
    assert replay.reserved == 340 * MIB, "what the search had taken was given back before the rest came"


def test_what_was_not_measured_stays_an_estimate() -> None:
    plain = a_run()
    run = measured_workspaces.applied(plain, a_card())
    assert run.result.unmeasured == 2 and run.result.unmeasured_convolutions == 1
    assert [event for event in run.events if event[0] != 3] == [
        event for event in plain.events if event[0] != 3
    ]
    assert virtual_run.widths(run.result) == virtual_run.widths(plain.result)


def test_an_estimate_for_a_calibrated_card_is_narrower() -> None:
    card = a_card(convolution={"extra": 8 * MIB, "later": [8 * MIB, -1]}, other={"extra": 0, "later": []})
    plain = a_run(benchmark=True)
    before, _ = virtual_run.gpu_estimate(plain)
    after, _ = virtual_run.gpu_estimate(measured_workspaces.applied(plain, card), card=card.card(ANY_CARD))
    assert after.high - after.low < before.high - before.low
    assert after.parts["context and libraries"] == 768 * MIB
    assert sum(after.parts.values()) == after.expected and after.low <= after.expected <= after.high


def test_workspaces_one_after_the_other_are_one_operations() -> None:
    events = [(1, 5 * MIB), (-1, 5 * MIB), (2, 3 * MIB), (-2, 3 * MIB)]
    facts = {"kinds": {}, "phases": {}, "marks": [], "signatures": [CONVOLUTION], "signed": {"1": 0, "2": ~0}}
    run = VirtualRun(VirtualResult.from_json(facts), events, bytes(2))
    card = a_card(convolution={"extra": 9 * MIB, "later": [9 * MIB, -1]})
    assert measured_workspaces.applied(run, card).events == [(3, 9 * MIB), (-3, 9 * MIB)]
    assert measured_workspaces.applied(run, a_card()).events == events


def test_gradients_of_a_convolution_are_made_one_after_the_other() -> None:
    """Gradient of the image, its workspace, gradient of the weight, its workspace."""
    events = [(1, MIB), (2, 5 * MIB), (-2, 5 * MIB), (3, MIB), (4, 0), (-4, 0)]
    facts = {"kinds": {}, "phases": {}, "marks": [], "signatures": [CONVOLUTION], "signed": {"2": 0, "4": ~0}}
    later = [9 * MIB, -1, 2 * MIB, MIB, -3, -2, 3 * MIB, -4]
    run = measured_workspaces.applied(
        VirtualRun(VirtualResult.from_json(facts), events, bytes(4)),
        a_card(convolution={"extra": 9 * MIB, "later": later}),
    )
    assert run.events == [
        (1, MIB), (5, 9 * MIB), (-5, 9 * MIB), (3, MIB), (6, 2 * MIB), (7, MIB), (-7, MIB), (-6, 2 * MIB), (8, 3 * MIB),
        (-8, 3 * MIB),
    ]  # fmt: skip


def test_a_run_of_an_earlier_version_has_no_signatures() -> None:
    run = VirtualRun(VirtualResult(), [(1, MIB)], bytes(1))
    assert measured_workspaces.applied(run, a_card()).events == run.events


def test_a_card_of_another_torch_is_told() -> None:
    run = a_run(torch="2.13.0+cpu")
    other, same = (CalibratedCard({"torch": f"{version}+cu130"}) for version in ("2.11.0", "2.13.1"))
    assert "the card's file is of torch 2.11" in script_sizing._other_torch(run, other)
    assert not script_sizing._other_torch(run, same) and not script_sizing._other_torch(run, None)


def test_the_ends_of_steps_move_with_what_is_put_in() -> None:
    card = a_card(other={"extra": 3 * MIB, "later": [MIB, 2 * MIB, -1, -2]})
    run = measured_workspaces.applied(a_run(step_ends=[4, 9]), card)
    assert run.result.step_ends == [4, len(run.events)]
