"""Memory that kernels of the card take for themselves: matrix libraries, attention's backward, convolutions."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
MIB = 1 << 20
# torch's ATen/cuda/CUDABlas workspaces: 4096 KiB × 8 on Hopper, one a handle; forward and backward run in two threads
MATRIX_WORKSPACE = 32 * MIB


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _flash_backward(args: Any) -> int:
    """dq is summed up in float32, and a row of sums a query (flash_api.cpp)."""
    batch, heads, length, width = args[1].shape
    rows = batch * heads * _rounded(length, 128)
    return int(rows * (_rounded(width, 32) + 1) * 4)


def _efficient_backward(args: Any) -> int:
    """One float32 a row; half precision also sums dq up in float32 (mem_eff_attention, kernel_backward.h)."""
    batch, heads, length, width = args[1].shape
    rows = int(batch * heads * length * 4)
    return rows if args[1].dtype is torch.float32 else rows * (1 + int(width))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.itemsize) if isinstance(tensor, torch.Tensor) else 0


def _convolution(image: Any, weight: Any, result: Any, groups: int) -> int:
    """Kernels of the tensor cores want channels last: cuDNN turns its operands into that and back. Half of what that would
    take fits best (45 timm models on an A100, the tuning half of bench/sizing)."""
    if groups == image.shape[1] or (
        image.is_contiguous(memory_format=torch.channels_last) and image.dim() == 4
    ):
        return 0  # one filter a channel has a kernel of torch's own; or nothing to turn
    return (_bytes(image) + _bytes(weight) + _bytes(result)) // 2


def install(mode: Any) -> None:
    started: set[str] = set()

    def workspace(func: Any, args: Any, kwargs: Any, out: Any) -> int:
        if func in _MATRIX:
            part = "backward" if mode.log.part == 1 else "forward"
            if part not in started:
                started.add(part)
                mode.log.lasting(MATRIX_WORKSPACE, "workspaces")
            return 0
        if func is aten._scaled_dot_product_flash_attention_backward.default:
            return _flash_backward(args)
        if func is aten._scaled_dot_product_efficient_attention_backward.default:
            return _efficient_backward(args)
        if func is aten.convolution.default:
            mode.convolutions += 1
            return _convolution(args[0], args[1], out, args[8])
        if func is aten.convolution_backward.default:
            return _convolution(args[1], args[2], args[0], args[9])
        return 0

    mode.workspaces = workspace


_MATRIX = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
