"""What kernels took for themselves on an H200, and what the virtual card takes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from helpers_sizing import on_virtual_gpu

from oomproof.sizing import virtual_run
from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_gpu.operation_workspaces import _convolution, _convolution_backward
from oomproof.sizing.virtual_run import VirtualRun

MIB = 1 << 20

# image, weight, stride, dtype → bytes in forward; cuDNN 9.19, PyTorch 2.11 (bench/sizing/measure.py --operations)
FORWARD = (
    ((200, 64, 86, 86), (64, 64, 3, 3), 1, "float32", 758407680),
    ((700, 128, 43, 43), (128, 128, 3, 3), 1, "float32", 1332200000),
    ((400, 3, 86, 86), (64, 3, 7, 7), 2, "float32", 224900000),
    ((128, 3, 224, 224), (64, 3, 7, 7), 2, "bfloat16", 308300000),
    ((128, 64, 56, 56), (128, 64, 3, 3), 2, "bfloat16", 78100000),
    ((400, 1024, 6, 6), (512, 1024, 1, 1), 1, "float32", 88500000),
    ((400, 512, 11, 11), (256, 512, 1, 1), 1, "float32", 0),
    ((200, 3, 86, 86), (64, 3, 3, 3), 1, "float32", 0),
)


def result_of(image: tuple[int, ...], weight: tuple[int, ...], stride: int) -> tuple[int, ...]:
    padding = weight[2] // 2
    side = (image[2] + 2 * padding - weight[2]) // stride + 1
    return image[0], weight[0], side, side


@pytest.mark.parametrize(("image", "weight", "stride", "dtype", "took"), FORWARD)
def test_convolutions(
    image: tuple[int, ...], weight: tuple[int, ...], stride: int, dtype: str, took: int
) -> None:
    made = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for shape in (image, weight, result_of(image, weight, stride))
    ]
    assert _convolution(*made, [stride, stride], 1) == pytest.approx(took, rel=0.06)


def test_the_gradient_of_a_weight_of_one_pixel_is_a_matrix_a_sample() -> None:
    image, weight = torch.empty(500, 192, 3, 3, device="meta"), torch.empty(1152, 192, 1, 1, device="meta")
    result = torch.empty(500, 1152, 3, 3, device="meta")
    sizes = list(_convolution_backward(image, weight, result, [1, 1], 1, [True, True, False]))
    assert max(sizes) == 500 * 1152 * 192 * 4, "442.4 MB; 443.5 were measured"


# order of the image's and of its gradient's strides → is that copied
ORDERS = (
    (torch.contiguous_format, torch.contiguous_format, False),
    (torch.channels_last, torch.channels_last, False),
    (torch.contiguous_format, torch.channels_last, True),
    (torch.channels_last, torch.contiguous_format, True),
)


@pytest.mark.parametrize(("image", "gradient", "copied"), ORDERS)
def test_a_gradient_in_another_order_than_the_image_is_copied(
    image: Any, gradient: Any, copied: bool
) -> None:
    given = torch.empty(8, 16, 64, 64, device="meta", memory_format=image)
    weight = torch.empty(32, 16, 1, 1, device="meta")
    result = torch.empty(8, 32, 64, 64, device="meta").contiguous(memory_format=gradient)
    first = next(iter(_convolution_backward(given, weight, result, [1, 1], 1, [True, True, False])))
    assert first == (result.numel() * 4 if copied else 0)


def test_two_gradients_of_one_tensor_are_added_up_in_place() -> None:
    made = [(1, MIB), (2, MIB), (3, MIB), (-1, MIB), (-2, MIB), (4, MIB), (-4, MIB), (-3, MIB)]
    result = VirtualResult(sums={3: [1, 2]})
    joined = virtual_run.with_sums_in_place(VirtualRun(result, list(made), bytes(4)))
    assert len(joined.events) == len(made), "indexes stay right"
    assert virtual_run.replay(joined).allocated == 2 * MIB
    allocator = CachingAllocator()
    allocator.replay(joined.events)
    assert allocator.allocated == 0, "the sum ends with the memory it has"


def test_a_parameters_own_gradient_is_a_new_tensor() -> None:
    made = [(1, MIB), (2, MIB), (3, MIB), (-1, MIB), (-2, MIB), (-3, MIB)]
    run = VirtualRun(VirtualResult(kinds={3: "gradients"}, sums={3: [1, 2]}), list(made), bytes(3))
    assert virtual_run.with_sums_in_place(run).events == made


def test_a_sum_whose_operands_live_on_is_a_new_tensor() -> None:
    made = [(1, MIB), (2, MIB), (3, MIB), (-2, MIB), (-3, MIB), (-1, MIB)]
    run = VirtualRun(VirtualResult(sums={3: [1, 2]}), list(made), bytes(3))
    assert virtual_run.with_sums_in_place(run).events == made


def test_of_free_blocks_of_one_size_the_newest_is_taken() -> None:
    allocator = CachingAllocator()
    for name in (1, 2):
        allocator.malloc(name, 30 * MIB)
    newest = allocator._blocks[2].address
    allocator.free(1)
    allocator.free(2)
    allocator.malloc(3, 30 * MIB)
    assert allocator._blocks[3].address == newest


SCRIPT = """
import torch
from torch.nn import functional as F
x = torch.zeros(1 << 20, 4, device="cuda", requires_grad=True)  # 16 MiB
assert F.dropout(x, 0.0).untyped_storage()._cdata == x.untyped_storage()._cdata, "the very tensor"
F.softmax(x, -1).sum().backward()

with torch.inference_mode():  # the same kernels as elsewhere
    still = x.detach()
    assert F.dropout(still, 0.5, False).untyped_storage()._cdata == still.untyped_storage()._cdata

def taken(run):
    before = torch.cuda.memory_allocated()
    kept = run()
    return (torch.cuda.memory_allocated() - before) >> 20

layer = torch.nn.LSTM(512, 512).cuda()
assert len({weight.untyped_storage()._cdata for weight in layer._flat_weights}) == 1, "parts of one tensor, for cuDNN"
assert taken(lambda: F.rms_norm(x, (4,), x[0])) == 16 + 4, "one number a row beside the result"
half = torch.zeros(1 << 20, 4, device="cuda", dtype=torch.float16, requires_grad=True)
assert taken(lambda: F.softmax(half, -1, dtype=torch.float32)) == 16, "float16 goes in as it is"
right = still == 0  # 4 MiB
right.sum(1)
still.view(torch.complex64).abs()
still.view(2048, 2048).topk(20)
rows = torch.zeros(8, 64, 4096, device="cuda", requires_grad=True)  # 8 MiB
F.conv1d(rows.view(8, 4096, 64).transpose(1, 2), torch.zeros(8, 64, 1, device="cuda", requires_grad=True)).sum().backward()
"""


def test_what_kernels_take_and_do_not_take(tmp_path: Path) -> None:
    run, _ = on_virtual_gpu(SCRIPT, tmp_path)
    sizes = [
        size for number, size in run.events if number > 0 and run.result.kinds.get(number) == "workspaces"
    ]
    assert 16 * MIB in sizes, "softmax: its output once more in backward"
    assert 32 * MIB in sizes, "truths are summed up as whole numbers"
    assert sizes.count(16 * MIB) >= 2, "the absolute of a complex number is first a complex one"
    assert 2048 * (4 * 256 + 20 + 2 * 256 + 8) in sizes, "digits of the largest, by block and by row"
    assert 8 * MIB in sizes, "a convolution wants its rows in a row"


def test_a_softmax_whose_gradient_comes_turned_round_takes_its_output_twice(tmp_path: Path) -> None:
    """Self-attention over pixels, as GANs have it: bmm() with the attention turned round. The product of gradient and output lies like the
    gradient, and the kernel wants it in rows: on an H200 such a GAN held 512 MiB more than one product."""
    run, _ = on_virtual_gpu(
        """
import torch
x = torch.zeros(3, 2048, 1024, device="cuda", requires_grad=True)  # 24 MiB
torch.bmm(torch.zeros(3, 8, 1024, device="cuda"), x.softmax(-1).permute(0, 2, 1)).sum().backward()
x.transpose(1, 2).softmax(-1)
""",
        tmp_path,
    )
    kinds = run.result.kinds
    passing = [(number, size) for number, size in run.events if kinds.get(abs(number)) == "workspaces"]
    made = [number for number, size in passing if size == 24 * MIB]
    assert made == [made[0], made[1], -made[1], -made[0], made[4], -made[4]], "forward takes a copy in rows"


def test_a_bias_is_added_in_place_to_a_product_of_turned_rows(tmp_path: Path) -> None:
    """Of a MultiheadAttention with the batch first: on a card no second result is made."""
    run, _ = on_virtual_gpu(
        """
import torch
layer = torch.nn.Linear(64, 1000).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(4):
    layer(torch.randn(40, 50, 64).cuda().transpose(0, 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        tmp_path,
    )
    made = [number for number, size in run.events if number > 0 and size == 40 * 50 * 1000 * 4]
    assert len(made) == run.result.steps
