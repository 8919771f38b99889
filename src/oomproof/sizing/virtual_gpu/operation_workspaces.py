"""Memory that kernels of the card take for themselves: matrix libraries, attention's backward, convolutions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

# What a sum over many rows takes for its partial results: torch's own launch arithmetic (ATen/native/cuda/Reduce.cuh).
#
# Checked on an H200 against traces of the allocator: the gradients of biases, of 192 to 4096 columns and 3,200 to 352,800 rows.

_MOST_THREADS = 512  # of a block, for elements of 4 bytes
_WARP = 32
_FEWEST_VALUES, _MOST_VALUES = 16, 256  # a thread adds up
PROCESSORS, THREADS = 132, 2048  # of an H100 or H200, and of each of its processors


def sum_workspace(
    shape: Sequence[int], strides: Sequence[int], reduced: Collection[int], processors: int = PROCESSORS
) -> int:
    """Bytes for partial sums in float32; 0 where each block sums up its own. ``reduced``: the dimensions that go."""
    rows = _joined(shape, strides, [dim for dim in range(len(shape)) if dim in reduced])
    columns = _joined(shape, strides, [dim for dim in range(len(shape)) if dim not in reduced])
    inputs, outputs = _size_of(rows), _size_of(columns)
    if not inputs or not outputs or not rows:
        return 0
    along_rows = not columns or rows[0][1] < columns[0][1]
    vector = 1
    if not along_rows and columns[0][1] == 1:
        vector = _vector(columns[0][0], [stride for _, stride in (*rows, *columns[1:])])
    elif along_rows and rows[0][1] == 1 and inputs > 128 and len(rows) + len(columns) == 1:
        inputs_a_lane = inputs // 4
        return _partials(inputs, 1, inputs_a_lane, 1, True, 1, processors)
    first, second = (inputs, outputs) if along_rows else (outputs // vector, inputs)
    return _partials(inputs, outputs, first, second, along_rows, vector, processors)


def _partials(
    inputs: int, outputs: int, first: int, second: int, along_rows: bool, vector: int, processors: int
) -> int:
    threads = _MOST_THREADS // vector
    first, second = _power(first, threads), _power(second, threads)
    width = min(first, _WARP)
    height = min(second, threads // width)
    width = min(first, threads // height)
    values = -(-inputs // width) if along_rows else inputs
    blocks = outputs if along_rows else -(-outputs // (width * vector))
    if values < min(height * 16, _MOST_VALUES):
        return 0  # no splitting of a column, so none over blocks
    values = -(-values // height)
    at_once = processors * (THREADS // (width * height))
    if values < _MOST_VALUES or blocks > at_once:
        return 0
    parts = max(
        min(-(-at_once // blocks), -(-values // _FEWEST_VALUES)),
        -(-values // _MOST_VALUES),
    )
    if parts <= 1:
        return 0
    return 4 * outputs * parts * (1 if along_rows else width * vector)


def _joined(shape: Sequence[int], strides: Sequence[int], dims: list[int]) -> list[list[int]]:
    """Sizes and strides, the fastest first; dimensions that follow each other in memory are one."""
    joined: list[list[int]] = []
    for dim in sorted(dims, key=lambda dim: strides[dim]):
        if shape[dim] == 1:
            continue
        if joined and joined[-1][0] * joined[-1][1] == strides[dim]:
            joined[-1][0] *= shape[dim]
        else:
            joined.append([shape[dim], strides[dim]])
    return joined


def _size_of(dims: list[list[int]]) -> int:
    product = 1
    for size, _ in dims:
        product *= size
    return product


def _vector(columns: int, strides: list[int]) -> int:
    vector = 4
    for number in (columns, *strides):
        while number % vector:
            vector //= 2
    return vector


def _power(number: int, most: int) -> int:
    """The largest power of two that is neither above it nor above ``most``."""
    return int(min(most, 1 << (max(1, number).bit_length() - 1)))


# TensorTopK.cu
_THREADS = 256
_DIGITS = 256  # eight bits at a time
_LEAST_EACH, _MOST_EACH = 4, 64  # elements of a thread
_BLOCKS_AT_ONCE = 6  # of a processor: 65536 registers, 40 a thread
# rows up to that many → the shortest that several blocks share; any more: the last
_SHARED = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (1 << 62, 400))


def top_of_rows(tensor: Any, dim: int) -> int:
    """Counts of each digit, by block and by row, where rows are shared among blocks; and the rows one after the other."""
    copied = 0 if tensor.is_contiguous() else tensor.nbytes
    length = int(tensor.shape[dim]) if tensor.dim() else 1
    rows = int(tensor.numel()) // max(1, length)
    if not rows or length < next(shortest for most, shortest in _SHARED if rows <= most):
        return int(copied)
    at_once = PROCESSORS * _BLOCKS_AT_ONCE * _THREADS
    each = max(_LEAST_EACH, min(_MOST_EACH, -(-tensor.numel() // at_once)))
    blocks = rows * -(-length // (each * _THREADS))
    return int(copied + blocks * (2 * _DIGITS + 8) + rows * (4 * _DIGITS + 20))


def added_rows(indices: Any, values: Any) -> int:
    """``index_put`` that adds: the numbers are sorted, and what is added is made contiguous (Indexing.cu; a trace of an H200)."""
    shapes = [index.shape for index in indices if index is not None and index.dtype is not torch.bool]
    count = int(torch.broadcast_shapes(*shapes).numel()) if shapes else 0
    copied = 0 if values.is_contiguous() else int(values.nbytes)
    return copied + 6 * 8 * count


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
    return int(tensor.nbytes) if isinstance(tensor, torch.Tensor) else 0


def _turned(tensor: Any) -> int:
    """Bytes of it with channels last, of which tensor cores take four in float32 and eight in half precision at once."""
    channels, step = int(tensor.shape[1]), 16 // int(tensor.itemsize)
    return _bytes(tensor) // max(1, channels) * _rounded(channels, step)


def _convolution(image: Any, weight: Any, result: Any, stride: Any, groups: int) -> int:
    """Kernels of the tensor cores want channels last: cuDNN turns its operands into that and back. Filters of one pixel on large
    images it takes as matrices. From 320 convolutions of twelve networks on an H200."""
    copied = _copied(image, _is_last(image, weight))
    if _as_it_is(image, weight, groups):
        return copied
    if _one_pixel(weight, stride) and result.shape[2:].numel() > _SMALL_IMAGE:
        return copied
    return copied + _all_turned(image, weight, result)


def _all_turned(image: Any, weight: Any, result: Any) -> int:
    return _turned(image) + _bytes(weight) + _turned(result)


def _convolution_backward(
    image: Any, weight: Any, result: Any, stride: Any, groups: int, wanted: Any
) -> Iterator[int]:
    """One after the other: gradient of the image, of the weights (in partial sums), of the bias."""
    last = _is_last(image, weight)
    gradient = _copied(result, last)
    copied = _copied(image, last) + gradient
    turned = _convolution(image, weight, result, stride, groups)
    if wanted[0]:
        yield turned + gradient
    if wanted[1] and _as_it_is(image, weight, groups):
        yield copied
    elif wanted[1]:
        small = result.shape[2:].numel() <= _SMALL_IMAGE
        if _one_pixel(weight, stride) and weight.numel() <= _MATRIX[small]:
            yield copied + int(image.shape[0] * weight.numel() * 4)  # a matrix a sample
        else:
            yield copied + _all_turned(image, weight, result) + _partial_sums(weight)
    if wanted[2]:
        yield _sum_of_rows(result, (0, *range(2, result.dim())))


def _copied(tensor: Any, last: bool) -> int:
    """Of the copy that is made of a tensor in another order than the kernel's: channels last, or one row after the other (Convolution.cpp). So it
    was with all 90 such convolutions that were measured on an H200."""
    wanted = _CHANNELS_LAST[tensor.dim()] if last else torch.contiguous_format
    return 0 if tensor.is_contiguous(memory_format=wanted) else _bytes(tensor)


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_SMALL_IMAGE = 49  # pixels
# elements of a weight, the most that were taken so, by whether the image is small
_MATRIX = {False: 600_000, True: 230_000}


def _as_it_is(image: Any, weight: Any, groups: int) -> bool:
    """One filter a channel has a kernel of torch's own, small filters on colours one of cuDNN's; or there is nothing to turn."""
    channels = image.shape[1]
    return bool(groups == channels > 1 or (channels < 4 and weight.shape[2:].numel() <= 9)) or _is_last(
        image, weight
    )


def _is_last(image: Any, weight: Any) -> bool:
    """Either decides for both (cudnn_conv_suggest_memory_format)."""
    return _last(image) or _last(weight)


def _one_pixel(weight: Any, stride: Any) -> bool:
    return bool(weight.shape[2:].numel() == 1 and max(stride, default=1) == 1)


def _partial_sums(weight: Any) -> int:
    """As many sums as keep the card's processors busy, at most 20. Rough: half of those seen on an H200 are within a third, others
    up to five times off; it is a few MiB, but decides whether a cached block is large enough."""
    rows, columns = int(weight.shape[0]), int(weight.shape[1:].numel())
    tiles = -(-rows // 128) * -(-columns // 256)
    return int(weight.numel() * 4 * min(20, max(1, PROCESSORS // tiles)))


def _last(image: Any) -> bool:
    wanted = _CHANNELS_LAST.get(image.dim())
    return (
        wanted is not None and not image.is_contiguous() and bool(image.is_contiguous(memory_format=wanted))
    )


def _sum_of_rows(tensor: Any, dims: Any) -> int:
    if not tensor.dim():
        return 0
    reduced = {dim % tensor.dim() for dim in dims} if dims else set(range(tensor.dim()))
    return sum_workspace(tensor.shape, tensor.stride(), reduced)


def _in_another_type(tensor: Any, out: Any) -> int:
    """What is summed up in another type is turned into that before, truths into whole numbers of eight bytes; the kernel itself only widens
    half precision (ReduceOps.cpp)."""
    widened = out.dtype is torch.float32 and tensor.dtype in (torch.float16, torch.bfloat16)
    return 0 if tensor.dtype is out.dtype or widened else int(tensor.numel() * out.itemsize)


def _distances(left: Any, right: Any) -> int:
    """As a product of rows with two more numbers each: the sums of squares (Distance.cpp)."""
    return sum(_bytes(rows) // max(1, rows.shape[-1]) * (rows.shape[-1] + 2) for rows in (left, right))


def _embedding_backward(gradient: Any, indices: Any, rows: int) -> int:
    """Sums of rows that were looked up more than once, in pieces of ten (EmbeddingBackwardKernel.cu)."""
    looked_up, width = int(indices.numel()), int(gradient.shape[-1])
    return (min(looked_up, rows) + looked_up // 10) * _rounded(width, 32) * 4


def _copies(*tensors: Any) -> int:
    """Of operands that a kernel wants contiguous."""
    return sum(_bytes(tensor) for tensor in tensors if not tensor.is_contiguous())


def _in_another_order(tensor: Any) -> bool:
    """Turned round: what is computed of it element by element is turned likewise."""
    strides = [step for step, side in zip(tensor.stride(), tensor.shape, strict=True) if side > 1 and step]
    return strides != sorted(strides, reverse=True)


def install(mode: Any) -> None:
    started: set[str] = set()

    def workspace(func: Any, args: Any, kwargs: Any, out: Any) -> Iterable[int]:
        if func is aten.convolution_backward.default:
            return _convolution_backward(args[1], args[2], args[0], args[4], args[9], args[10])
        return (passing(func, args, kwargs, out),)

    def passing(func: Any, args: Any, kwargs: Any, out: Any) -> int:
        if func in _MATRIX_PRODUCTS:
            mode.matrices += 1
            part = "backward" if mode.log.part == 1 else "forward"
            if part not in started:
                started.add(part)
                mode.log.lasting(MATRIX_WORKSPACE, "workspaces")
            return _distances(*args[:2]) if func is aten._euclidean_dist.default else 0
        if func in _FLASH_BACKWARD:
            return _flash_backward(args)
        if func is aten._scaled_dot_product_efficient_attention_backward.default:
            return _efficient_backward(args)
        if func is aten.convolution.default:
            mode.convolutions += 1
            return _convolution(args[0], args[1], out, args[3], args[8])
        if func is aten.topk.default:
            return top_of_rows(args[0], args[2] if len(args) > 2 else -1)
        if func is aten.index_put.default and len(args) > 3 and args[3]:
            return added_rows(args[1], args[2])
        if func in _OF_COMPLEX and args[0].is_complex():
            return _bytes(args[0])  # the result as a complex number (UnaryOps.cpp)
        if func in _WHOLE_SUMS:
            return _in_another_type(args[0], out)
        if func in _SUMS:
            return _in_another_type(args[0], out) or _sum_of_rows(
                args[0], args[1] if len(args) > 1 else kwargs.get("dim")
            )
        if func in _LOSSES:
            elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
            return int(elements * out.itemsize) if not out.dim() else 0  # a number of each, then their sum
        if func is aten._softmax_backward_data.default:
            # gradient times output lies like the gradient; the kernel wants it in rows (SoftMax.cu)
            product = _bytes(args[1])
            if not _in_another_order(args[0]):
                return product
            mode.log.passing_within(product, (product,))
            return 0
        if func in _SOFTMAXES:
            return _copies(args[0])
        if func is aten._log_softmax_backward_data.default:
            return _copies(*args[:2])
        if func is _SAFE_SOFTMAX:
            return int(args[0].numel())  # which are minus infinity
        if func is aten.embedding_dense_backward.default:
            return _embedding_backward(args[0], args[1], args[2])
        if func is aten.native_layer_norm.default:
            return _copies(args[0])
        if func is aten.native_layer_norm_backward.default:
            return _copies(args[0], args[1])
        if func.name() in _OF_REGIONS:
            return _copies(args[0])
        if (
            func.name() == "torchvision::nms"
        ):  # a bit for each pair, and the boxes by their score (nms_kernel.cu)
            return int(args[0].shape[0] * -(-args[0].shape[0] // 64) * 8) + _bytes(args[0])
        return 0

    mode.workspaces = workspace


def _if_there(name: str) -> Any:
    """An operation that older versions of torch do not have."""
    return getattr(getattr(aten, name, None), "default", None)


_SAFE_SOFTMAX = _if_there("_safe_softmax")
_FLASH_BACKWARD = {
    aten._scaled_dot_product_flash_attention_backward.default,
    _if_there("_scaled_dot_product_cudnn_attention_backward"),
}
_LOSSES = {aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default}
_SOFTMAXES = {aten._softmax.default, aten._log_softmax.default}
_OF_REGIONS = ("torchvision::roi_align", "torchvision::_roi_align_backward")
_SUMS = {aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default}
_OF_COMPLEX = {aten.abs.default, aten.angle.default}
_WHOLE_SUMS = {
    aten.sum.default,
    aten.prod.default,
    aten.prod.dim_int,
    aten.cumsum.default,
    aten.cumprod.default,
}
_MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._euclidean_dist.default,
}
