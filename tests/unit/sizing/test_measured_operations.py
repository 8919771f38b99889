"""Operations made again from their signatures, and what an allocator's trace says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [ml] is not installed")

from helpers_sizing import on_virtual_gpu  # noqa: E402

from oomproof.sizing.calibration import common_operations  # noqa: E402
from oomproof.sizing.card_measuring import measured_operations  # noqa: E402

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Linear(8, 64)
        self.last = nn.Linear(64, 8)
    def forward(self, images):
        rows = self.first(images).flatten(2).transpose(1, 2)
        rows = self.inner(rows).view(images.shape[0], -1, 4, 16).transpose(1, 2)
        rows = F.scaled_dot_product_attention(rows, rows, rows, is_causal=True)
        return self.last(rows.transpose(1, 2).flatten(2))

torch.backends.cudnn.benchmark = True
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for dtype in (None, torch.bfloat16):
    for step in range(2):
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            loss = model(torch.randn(2, 3, 8, 8, device="cuda")).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_operations, "DEVICE", "meta")


def run_all(signatures: Any) -> None:
    for signature in signatures:
        operation, args, kwargs = measured_operations._prepared(signature)
        operation(*args, **kwargs)


def test_common_operations_are_real_ones() -> None:
    run_all(common_operations())


def test_what_a_script_met_can_be_done_again(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(SCRIPT, tmp_path)
    signatures = run.result.signatures
    names = {signature["op"].split(".")[1] for signature in signatures}
    assert names >= {
        "convolution", "convolution_backward", "addmm", "mm", "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    }, names  # fmt: skip
    assert all(
        signature["flags"] == {"benchmark": True}
        for signature in signatures
        if "convolution" in signature["op"]
    )
    assert {value for value in run.result.signed.values() if value >= 0} == set(range(len(signatures)))
    texts = [str(signature) for signature in signatures]
    assert len(set(texts)) == len(texts), "each once, though there were two steps"
    run_all(signatures)


def test_bytes_of_operands() -> None:
    image = {"tensor": "float32", "shape": [2, 3, 4], "strides": [12, 4, 1]}
    spread = {"tensor": "bfloat16", "shape": [4, 100], "strides": [0, 1]}
    assert measured_operations.operand_bytes([image, spread, None, [1, 2], {"dtype": "float32"}]) == 96 + 200


def entry(action: str, address: int, size: int = 512) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size}


def test_temporaries_of_a_trace() -> None:
    mark = measured_operations._MARK
    entries = [
        entry("alloc", 1, 999), entry("free_completed", 1, 999), entry("alloc", 5, mark), entry("free_requested", 5, mark),
        entry("free_completed", 5, mark),
        entry("alloc", 10, 100), entry("alloc", 20, 200), entry("segment_alloc", 9), entry("alloc", 30, 300),
        entry("free_requested", 20, 200), entry("free_completed", 20, 200), entry("alloc", 20, 400),
        entry("segment_free", 9), entry("segment_free", 8), entry("free_requested", 30, 300), entry("free_completed", 30, 300),
    ]  # fmt: skip
    # 10 and the second 20 live on: a result, or what a library keeps
    assert measured_operations.temporaries(entries) == [200, 300, -1, 0, -2]
    assert measured_operations.temporaries([]) == []
