"""An operation of which nobody knows what it takes makes the upper end higher, until it was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from oomproof.sizing import measured_workspaces, virtual_run  # noqa: E402
from oomproof.sizing.calibrated_card import CalibratedCard, signature_key  # noqa: E402
from oomproof.sizing.virtual_gpu.operation_signatures import is_familiar  # noqa: E402

MIB = 1 << 20
aten = torch.ops.aten
SCRIPT = """
import torch
table = torch.nn.Parameter(torch.randn(1024, 4096).cuda())
optimizer = torch.optim.SGD([table], lr=0.1)
for step in range(4):
    ordered = torch.sort(table * 2, dim=1).values
    ordered.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "operation",
    [
        aten.add.Tensor, aten.add_.Tensor, aten.view.default, aten.mm.default, aten.native_dropout.default,
        aten._foreach_add_.List, aten.randn.default, aten.index_add_.default, aten.expand_copy.default,
        aten.leaky_relu.default, aten.hardswish_.default, aten._native_batch_norm_legit_no_training.default,
        torch.ops.prim.device.default,
    ],
)  # fmt: skip
def test_what_every_training_has_is_familiar(operation: object) -> None:
    assert is_familiar(operation)


@pytest.mark.parametrize(
    "operation",
    [aten.sort.default, aten._fft_r2c.default, aten._linalg_eigh.default, aten._embedding_bag.default],
)
def test_others_are_not(operation: object) -> None:
    assert not is_familiar(operation)


def test_the_upper_end_has_room_for_it_until_it_was_measured(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(SCRIPT, tmp_path)
    assert run.result.unfamiliar == {"aten.sort.default": 4} or run.result.unfamiliar == {
        "aten.sort.stable": 4
    }
    gpu = virtual_run.gpu_estimate(run)[0]
    reserved = virtual_run.replay(run).reserved
    # what it reads is 16 MiB, what it makes 16 and 32 (positions)
    assert gpu.high - gpu.expected > 64 * MIB > 0.1 * reserved
    notes = " ".join(virtual_run.widening_notes(run.result))
    assert f"high allows for {virtual_run.UNFAMILIAR}: sort" in notes

    signature = next(each for each in run.result.signatures if "sort" in each["op"])
    card = CalibratedCard({}, {}, {signature_key(signature): {"extra": MIB, "later": [MIB, -1]}})
    measured = measured_workspaces.applied(run, card)
    assert measured.result.unfamiliar == {}
    assert virtual_run.replay(measured).more[virtual_run.UNFAMILIAR] == 0
    assert virtual_run.gpu_estimate(measured)[0].high < gpu.high - 50 * MIB
