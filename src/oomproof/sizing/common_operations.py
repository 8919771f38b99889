"""Operations that many trainings have, as signatures: what `oomproof calibrate` measures where no command is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_TYPES = ("float32", "bfloat16", "float16")
# channels in, channels out, height and width, kernel, stride, groups: of ResNet-50, VGG-16, MobileNetV2 and ConvNeXt at 224×224
_LAYERS = (
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 1, 1, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 256, 56, 1, 1, 1),
    (128, 128, 56, 3, 2, 1),
    (256, 512, 56, 1, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (256, 256, 14, 3, 1, 1),
    (512, 512, 7, 3, 1, 1),
    (3, 64, 224, 3, 1, 1),
    (64, 64, 224, 3, 1, 1),
    (128, 128, 112, 3, 1, 1),
    (256, 256, 56, 3, 1, 1),
    (96, 96, 56, 3, 1, 96),
    (96, 96, 56, 7, 1, 96),
    (3, 96, 224, 4, 4, 1),
)
_BATCH = 32
# batch, heads, tokens, width of a head
_ATTENTION = ((8, 12, 1024, 64), (4, 32, 2048, 128), (32, 12, 197, 64))


def common_operations() -> list[dict[str, Any]]:
    return [*_convolutions(), *_attention(), *_matrices()]


def tensor(dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> dict[str, Any]:
    """``order``: of the dimensions in memory, outermost first."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order or range(len(shape))):
        strides[dimension] = step
        step *= shape[dimension]
    return {"tensor": dtype, "shape": list(shape), "strides": strides}


def _signature(name: str, args: list[Any], **kwargs: Any) -> dict[str, Any]:
    return {"op": f"aten.{name}.default", "args": args, "kwargs": kwargs, "flags": {}}


def _convolutions() -> Iterator[dict[str, Any]]:
    for dtype in _TYPES:
        for order in (None, (0, 2, 3, 1)):
            if dtype == "float32" and order is not None:
                continue
            for layer in _LAYERS:
                yield from _convolution(dtype, order, *layer)


def _convolution(
    dtype: str, order: Sequence[int] | None, inner: int, outer: int, side: int, kernel: int, stride: int, groups: int
) -> Iterator[dict[str, Any]]:  # fmt: skip
    pad = 0 if kernel == stride else kernel // 2
    after = (side + 2 * pad - kernel) // stride + 1
    image = tensor(dtype, (_BATCH, inner, side, side), order)
    weight = tensor(dtype, (outer, inner // groups, kernel, kernel), order)
    result = tensor(dtype, (_BATCH, outer, after, after), order)
    how = [[stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups]
    yield _signature("convolution", [image, weight, None, *how])
    yield _signature("convolution_backward", [result, image, weight, [0], *how, [inner != 3, True, False]])


def _attention() -> Iterator[dict[str, Any]]:
    for batch, heads, tokens, width in _ATTENTION:
        shape, scale = (batch, heads, tokens, width), width**-0.5
        for dtype in ("bfloat16", "float32"):
            rows = tensor(dtype, shape, (0, 2, 1, 3))
            sums = tensor("float32", (batch, heads, tokens))
            seed = tensor("int64", ())
            if dtype == "float32":
                name = "_scaled_dot_product_efficient_attention"
                yield _signature(name, [rows, rows, rows, None, True, 0.0, True], scale=scale)
                saved = [None, rows, sums, seed, seed, 0.0, [True, True, True, False], True]
            else:
                name = "_scaled_dot_product_flash_attention"
                yield _signature(name, [rows, rows, rows, 0.0, True, False], scale=scale)
                saved = [rows, sums, None, None, tokens, tokens, 0.0, True, seed, seed]
            yield _signature(f"{name}_backward", [rows, rows, rows, rows, *saved], scale=scale)


def _matrices() -> Iterator[dict[str, Any]]:
    for dtype in _TYPES:
        for rows, inner, outer in ((8192, 768, 3072), (8192, 4096, 4096), (4096, 2048, 32000)):
            flipped = tensor(dtype, (inner, outer), (1, 0))
            yield _signature("mm", [tensor(dtype, (rows, inner)), flipped])
            yield _signature("addmm", [tensor(dtype, (outer,)), tensor(dtype, (rows, inner)), flipped])
