"""What the card does otherwise than the CPU: attention, dropout, scalars, results whose size depends on values."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from .storage_log import GPU

aten = torch.ops.aten


def unknown_value(dtype: Any) -> Any:
    """Of a GPU that is not there: small, finite, false."""
    if dtype is torch.bool:
        return False
    return 0.1 if dtype.is_floating_point else complex(0.1) if dtype.is_complex else 1


def _number(mode: Any, tensor: Any) -> Any:
    elements = mode.known.elements(tensor)
    return elements.item() if elements is not None else mode.uniform.value(tensor)


def _scalar(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[0], FakeTensor):  # a tensor of the host is read while one of the card is made
        return args[0].item()
    known = _number(mode, args[0])
    if known is not None:
        return known
    mode.scalars += 1
    return unknown_value(args[0].dtype)


def _truth(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    if not isinstance(args[0], FakeTensor):
        return bool(args[0].item())
    known = _number(mode, args[0])
    if known is None:
        mode.scalars += 1
    return bool(known)


def _empty(mode: Any, shape: Any, dtype: Any) -> Any:
    return mode.run(aten.empty.memory_format, shape, dtype=dtype, device="cpu")


def _widen(mode: Any, what: str) -> None:
    mode.widened[what] = mode.widened.get(what, 0) + 1


def _count(mode: Any, mask: Any) -> int | None:
    """How many elements of it are true."""
    elements = mode.known.elements(mask) if isinstance(mask, FakeTensor) else mask
    return int(elements.count_nonzero()) if elements is not None else None


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    count = _count(mode, tensor)
    if count is None:
        count = mode.set_elements.most(tensor)
    if count is None:
        _widen(mode, "nonzero")
        count = tensor.numel()
    return _empty(mode, [count, tensor.dim()], torch.int64)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    count = _count(mode, args[1])
    if count is None:
        _widen(mode, "masked_select")
        count = args[1].numel()
    count = count * shape.numel() // max(1, args[1].numel())
    return _empty(mode, [count], args[0].dtype)


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """``x[mask]``: of a mask that nobody knows, as if all of it were true."""
    tensor, indices = args[0], list(args[1])
    if not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return mode.run(func, *args, **kwargs)
    plain: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            count = _count(mode, index)
            if count is None:
                _widen(mode, "a boolean mask")
                count = index.numel()
            taken = _empty(mode, [count], torch.int64)
            plain += [taken] * index.dim()
        else:
            plain.append(index)
    return mode.run(func, tensor, plain)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    _widen(mode, "unique")
    tensor = args[0]
    count = tensor.numel()
    values = _empty(mode, [count], tensor.dtype)
    counts = _empty(mode, [count], torch.int64)
    return values, mode.run(aten.empty_like.default, counts), counts


def _histogram(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The card's takes integers too."""
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    return _empty(mode, [bins], args[0].dtype)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Who gives ``minlength`` knows the length: torchmetrics reshapes it to classes × classes."""
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    length = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    if not length:
        _widen(mode, "bincount")
        length = args[0].numel()
    dtype = torch.int64 if weights is None else torch.float64
    return _empty(mode, [length], dtype)


def _grouped_product(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Of a mixture of experts: the card multiplies other types than bfloat16 group by group, which torch's own stand-in refuses."""
    left, right = args[0], args[1]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if left.dtype is torch.bfloat16 and right.dtype is torch.bfloat16:
        return mode.run(func, *args, **kwargs)
    shape = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():  # both by rows: one product for each group
        shape.insert(0, left.shape[0] if left.dim() == 3 else offsets.shape[0])
    return _empty(mode, shape, left.dtype)


def _ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """How long the longest target is stands in values. Where nobody knows them: of padded targets their width, of targets in a row a fair share."""
    steps, batch = args[0].shape[0], args[0].shape[1] if args[0].dim() == 3 else 1
    targets = args[1]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // max(1, batch))
    lengths = args[3] if len(args) > 3 else None
    if isinstance(lengths, FakeTensor):
        lengths = mode.known.elements(lengths)
    if lengths is not None and len(lengths):
        longest = int(max(lengths))
    elif targets.dim() != 2:
        _widen(mode, "the longest target of a CTC loss")
    loss = _empty(mode, [batch], args[0].dtype)
    paths = [batch, steps, 2 * longest + 1]
    return loss, _empty(mode, paths, args[0].dtype)


def _packed(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Texts of different lengths in one row: the lengths are the host's, and known."""
    source, lengths = args[:2]
    if isinstance(lengths, FakeTensor):
        return mode.run(func, *args, **kwargs)
    each = sorted(map(int, lengths.tolist()), reverse=True)
    counts = [sum(length > step for length in each) for step in range(each[0] if each else 0)]
    shape = [sum(each), *source.shape[2:]]
    return _empty(mode, shape, source.dtype), torch.tensor(counts)


def _suppressed(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Boxes that overlap: as if none were left out. torchvision's detectors keep a fixed number of them after that."""
    _widen(mode, "nms")
    return _empty(mode, [args[0].shape[0]], torch.int64)


def _equal(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if (known := mode.known.computed(func, args, kwargs)) is not None:
        return known
    mode.scalars += 1
    return False


def _reduced_loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Its one number stays in the memory that was taken for a number of each element (BinaryOps.cpp, Loss.cpp: made, then resized)."""
    out = mode.run(func, *args, **kwargs)
    if out.dim():
        return out
    count = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
    whole = _empty(mode, [max(1, count)], out.dtype)
    return mode.run(aten.as_strided.default, whole, [], [])


def _pixels(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The card's kernel makes rows of pixels whatever it is given, the CPU's keeps channels last (PixelShuffle.cpp)."""
    out = mode.run(func, *args, **kwargs)
    if mode.place_of(args) != GPU:
        return out
    return _empty(mode, list(out.shape), out.dtype)


REPLACED: dict[Any, Any] = {
    aten._local_scalar_dense.default: _scalar,
    aten.item.default: _scalar,
    aten.equal.default: _equal,
    aten.is_nonzero.default: _truth,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique,
    aten.histc.default: _histogram,
    aten.bincount.default: _bincount,
    aten.unique_consecutive.default: _unique,
    aten._ctc_loss.Tensor: _ctc,
    aten._ctc_loss.default: _ctc,
    aten._pack_padded_sequence.default: _packed,
    aten.mse_loss.default: _reduced_loss,
    aten.smooth_l1_loss.default: _reduced_loss,
    aten.binary_cross_entropy.default: _reduced_loss,
    aten.soft_margin_loss.default: _reduced_loss,
    aten.pixel_shuffle.default: _pixels,
    aten.pixel_unshuffle.default: _pixels,
}
if hasattr(aten, "_grouped_mm"):  # torch 2.8
    REPLACED[aten._grouped_mm.default] = _grouped_product

# of libraries that may be imported later
REPLACED_BY_NAME: dict[str, Any] = {"torchvision::nms": _suppressed}


@functools.cache
def _hangs_on_values(func: Any) -> bool:
    return (
        func.namespace == "aten"
        and func is not aten.index.Tensor
        and torch.Tag.dynamic_output_shape in func.tags
    )


def exact(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Where all operands are known: results of the true sizes; else None."""
    real = mode.known.computed(func, args, kwargs) if _hangs_on_values(func) else None
    if real is None:
        return None
    return tree_map(
        lambda tensor: _empty(mode, list(tensor.shape), tensor.dtype),
        real,
    )


def replaced(func: Any) -> Any:
    return REPLACED.get(func) or (None if func.namespace == "aten" else REPLACED_BY_NAME.get(func.name()))


def attention(mode: Any) -> Any:
    """``scaled_dot_product_attention`` as a card of compute capability 8 or newer chooses it."""
    whole = aten.scaled_dot_product_attention.default

    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if not mode.is_on_card(query):
            return whole.decompose(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        choice = chosen_attention(query, key, value, attn_mask, is_causal, enable_gqa)
        if choice == "cudnn":
            return _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if choice == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if choice == "efficient":
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        return aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
        )[0]

    return attend


def chosen_attention(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, grouped: bool) -> str:
    """cudnn, flash, efficient or math: the order and the conditions of torch's ``sdp_utils.cpp`` for one card, a Hopper."""
    if query.dim() != 4 or len({query.dtype, key.dtype, value.dtype}) != 1:
        return "math"
    half = query.dtype in (torch.float16, torch.bfloat16)
    width, flags = query.shape[-1], torch.backends.cuda
    operands = (query, key, value) if mask is None else (query, key, value, mask)
    if any(tensor.stride(-1) != 1 for tensor in operands):
        return "math"  # T5's position bias, which is a permuted view
    learnt = mask is not None and mask.requires_grad
    small = half and width == value.shape[-1] == key.shape[-1] and width <= 256
    cudnn = hasattr(aten, "_scaled_dot_product_cudnn_attention") and flags.cudnn_sdp_enabled()
    if cudnn and small and width % 8 == 0 and not learnt:
        return "cudnn"
    if flags.flash_sdp_enabled() and small and mask is None:
        return "flash"
    step = 8 if half else 4
    known = half or query.dtype is torch.float32
    if (
        flags.mem_efficient_sdp_enabled() and known and not grouped
        and width % step == 0 and value.shape[-1] % step == 0
    ):  # fmt: skip
        return "efficient"
    return "math"


def _cudnn(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    """Holds what flash attention holds (traces of an H200), and takes a mask as it is, a boolean one as numbers."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return aten._scaled_dot_product_cudnn_attention.default(
        query, key, value, mask, learning, dropout_p, is_causal, False, scale=scale
    )[0]


def _flash(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    width = query.shape[-1]
    scale = scale if scale is not None else width**-0.5
    if width % 8:
        fill = (0, 8 - width % 8)
        query, key, value = (torch.nn.functional.pad(tensor, fill) for tensor in (query, key, value))
    out = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :width]


def _efficient(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: Any
) -> Any:
    bias = None
    if mask is not None:
        bias = mask
        if mask.dtype is torch.bool:
            bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        odd = bias.shape[-1] % 16
        if odd:  # the kernel wants rows of 16 elements
            bias = torch.nn.functional.pad(bias, (0, 16 - odd))[..., : bias.shape[-1]]
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, bias, learning, dropout_p, is_causal, scale=scale
    )[0]


def dropout(mode: Any) -> Any:
    """On the card the mask takes one byte an element."""
    whole = aten.dropout.default

    def drop(tensor: Any, p: float, train: bool) -> Any:
        if mode.is_on_card(tensor):
            if not train or p == 0:
                # the very tensor, as on the card; a kernel in Python may not return what it got
                return tensor.view_as(tensor)
            if p < 1:
                return aten.native_dropout.default(tensor, p, train)[0]
        return whole.decompose(tensor, p, train)

    return drop


class _FusedNorm(torch.autograd.Function):  # type: ignore[misc]
    """Keeps its input and one float32 a row; torch's own is taken apart on a CPU."""

    @staticmethod
    def forward(context: Any, tensor: Any, shape: Any, weight: Any) -> Any:
        out = torch.empty_like(tensor)
        rows = tensor.new_empty(tensor.shape[: tensor.dim() - len(shape)], dtype=torch.float32)
        context.save_for_backward(tensor, weight, rows)
        return out

    @staticmethod
    def backward(context: Any, grad: Any) -> Any:
        tensor, weight, _ = context.saved_tensors
        wanted = context.needs_input_grad
        made = torch.empty_like(tensor) if wanted[0] else None
        return made, None, torch.empty_like(weight) if weight is not None and wanted[2] else None


def root_mean_square(mode: Any) -> Any:
    """On the card one kernel; many, as on a CPU, where the weight has another type, and in torch before 2.9."""
    whole = aten.rms_norm.default

    def norm(tensor: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        if mode.is_on_card(tensor) and (weight is None or weight.dtype is tensor.dtype):
            return _FusedNorm.apply(tensor, shape, weight)
        return whole.decompose(tensor, shape, weight, eps)

    return norm


def softmax(mode: Any, name: str) -> Any:
    """The card's kernel turns float16 into float32 by itself."""
    whole, kernel = getattr(aten, name).int, getattr(aten, f"_{name}").default

    def soft(tensor: Any, dim: int, dtype: Any = None) -> Any:
        if dtype is torch.float32 and tensor.dtype is torch.float16 and mode.is_on_card(tensor):
            return kernel(tensor, dim, True)
        return whole.decompose(tensor, dim, dtype)

    return soft


def linear(mode: Any) -> Any:
    """With rows that do not lie one after the other: a product to which the bias is added in place, but never where the bias is of
    another class, as ours is (Linear.cpp)."""
    whole = aten.linear.default

    def multiplied(tensor: Any, weight: Any, bias: Any = None) -> Any:
        if bias is not None and tensor.dim() > 2 and not tensor.is_contiguous() and mode.is_on_card(tensor):
            return torch.matmul(tensor, weight.t()).add_(bias)
        return whole.decompose(tensor, weight, bias)

    return multiplied


def install(mode: Any, library: Any) -> None:
    kernels = {
        aten.linear.default: linear(mode),
        aten.scaled_dot_product_attention.default: attention(mode),
        aten.dropout.default: dropout(mode),
        aten.softmax.int: softmax(mode, "softmax"),
        aten.log_softmax.int: softmax(mode, "log_softmax"),
    }
    if hasattr(aten, "_fused_rms_norm_backward"):
        kernels[aten.rms_norm.default] = root_mean_square(mode)
    for op, kernel in kernels.items():
        mode.take(library, op, kernel)
