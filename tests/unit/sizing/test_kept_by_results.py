"""Results that hold more than their elements: a loss of one number, and in which order pixels lie after a shuffle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_sizing import on_virtual_gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

LOSSES = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss", "huber_loss", "l1_loss")
SCRIPT = """
import json
import torch

def held(device):
    left, right = torch.rand(64, 100, device=device), torch.rand(64, 100, device=device)
    sizes = {}
    for name in LOSSES:
        for reduction in ("mean", "none"):
            loss = getattr(torch.nn.functional, name)(left, right, reduction=reduction)
            sizes[name + " " + reduction] = [list(loss.shape), loss.untyped_storage().nbytes()]
    return sizes
"""


def test_a_loss_stays_in_the_memory_of_its_elements(tmp_path: Path) -> None:
    """As it does where it is computed."""
    real: dict[str, object] = {"LOSSES": LOSSES}
    exec(SCRIPT, real)
    script = f"LOSSES = {LOSSES!r}\n{SCRIPT}\nprint(json.dumps(held('cuda')))\ntorch.nn.Linear(4, 4).cuda()(torch.ones(4, device='cuda'))"
    _, output = on_virtual_gpu(script, tmp_path)
    assert json.loads(output.splitlines()[-1]) == real["held"]("cpu")  # type: ignore[operator]


SHUFFLES = """
import torch
from torch import nn

image = torch.rand(2, 16, 8, 8).cuda().contiguous(memory_format=torch.channels_last)
print(nn.functional.pixel_shuffle(image, 2).stride(), nn.functional.pixel_unshuffle(image, 2).stride())
nn.Linear(4, 4).cuda()(torch.ones(4).cuda())
"""


def test_shuffled_pixels_lie_in_rows(tmp_path: Path) -> None:
    """By the kernel that torch has for all devices but the CPU."""
    _, output = on_virtual_gpu(SHUFFLES, tmp_path)
    image = torch.rand(2, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    key, aten = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional, torch.ops.aten
    operations = (aten.pixel_shuffle.default, aten.pixel_unshuffle.default)
    real = [operation._op_dk(key, image, 2).stride() for operation in operations]
    assert output.splitlines()[-1] == " ".join(map(str, real))
