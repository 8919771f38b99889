"""What the card takes that no tensor shows, after a small training step of each kind: context, libraries, their workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def measure(used: Callable[[], int], before: int) -> dict[str, int]:
    """Bytes. ``used``: of the card, by anybody; ``before``: the same before this process came to it."""
    found: dict[str, int] = {}

    def note(name: str) -> None:
        torch.cuda.synchronize()
        found[name] = used() - before - torch.cuda.memory_reserved()

    torch.zeros(1, device="cuda")
    note("context")
    _matrices(found)
    note("with_matrices")
    _attention()
    note("with_attention")
    _convolutions()
    note("with_convolutions")
    torch.cuda.empty_cache()
    return found


def _matrices(found: dict[str, int]) -> None:
    """cuBLAS takes a workspace a handle and stream, and backward runs in a thread with a handle of its own."""
    layer = nn.Linear(1024, 1024, device="cuda")
    images = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        before = torch.cuda.memory_allocated()
        out = layer(images)
        torch.cuda.synchronize()
        found["matrix_workspace"] = max(0, torch.cuda.memory_allocated() - before - _size(out))
    out = layer(images)
    gradient = torch.ones_like(out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out.backward(gradient)
    torch.cuda.synchronize()
    made = _size(layer.weight.grad) + _size(layer.bias.grad)
    found["matrix_workspace_backward"] = max(0, torch.cuda.memory_allocated() - before - made)
    _train(layer, images)


def _attention() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda")
    tokens = torch.randn(4, 128, 256, device="cuda")
    _train(layer, tokens)
    _train(layer, tokens, torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16)


def _convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to("cuda")  # fmt: skip
    images = torch.randn(8, 3, 64, 64, device="cuda")
    _train(model, images)
    _train(model, images, torch.float16)


def _train(model: Any, inputs: Any, dtype: Any = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            out = model(inputs).float()
            loss = nn.functional.cross_entropy(out.flatten(0, -2), out.detach().argmax(-1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss.item()


def _size(tensor: Any) -> int:
    return -(-int(tensor.untyped_storage().nbytes()) // 512) * 512
