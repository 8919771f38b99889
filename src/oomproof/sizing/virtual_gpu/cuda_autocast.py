"""Autocast as the card does it: torch's CPU lists replaced by those of CUDA, for tensors of the virtual card."""

from __future__ import annotations

import os
import re
import weakref
from typing import Any

import torch

from .nested_tensors import tensors
from .step_limits import CARD_TORCH

_LOW = frozenset(
    [
        "_convolution",
        "convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "prelu",
        "addmm",
        "addmv",
        "addr",
        "matmul",
        "einsum",
        "mm",
        "mv",
        "linalg_vecdot",
        "linear",
        "addbmm",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "linalg_multi_dot",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "_scaled_dot_product_flash_attention",
        "scaled_dot_product_attention",
    ]
)
_WIDEST = frozenset(
    [
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "vdot",
        "grid_sampler",
        "index_put",
        "tensordot",
        "scatter_add",
        "cat",
        "stack",
    ]
)
_DTYPE_ARGUMENT = frozenset(
    ["prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "linalg_vector_norm", "linalg_matrix_norm"]
)
# what autocast has turned into float32 from that version on (autocast_mode.h of 2.11 and 2.13; pytorch/pytorch issue 188955)
_SINCE = {"rms_norm": (2, 12)}
_LOWER = (torch.float16, torch.bfloat16)


def treatment(name: str) -> str:
    """By the operator's name: low precision, the widest of its operands, float32."""
    base = name.split("::")[-1].split(".")[0]
    return (
        "low"
        if base in _LOW
        else "widest"
        if base in _WIDEST
        else "dtype"
        if base in _DTYPE_ARGUMENT
        else "float32"
    )


def on_card(name: str, here: bool, version: str) -> bool:
    """Whether autocast has an operation on its lists with torch ``version`` there, as this torch has it ``here``; "": with this one."""
    since, numbers = _SINCE.get(name.split(".")[0]), re.match(r"(\d+)\.(\d+)", version)
    return here if since is None or numbers is None else (int(numbers[1]), int(numbers[2])) >= since


class CudaAutocast:
    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.casts: dict[
            int, tuple[Any, Any]
        ] = {}  # weights in low precision, kept until autocast ends, as torch does
        self.keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def install(self, library: Any) -> None:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        version = os.environ.get(CARD_TORCH, "")
        for name in torch._C._dispatch_get_all_op_names():
            if not name.startswith("aten::"):
                continue
            base = name[len("aten::") :]
            if on_card(base, has(name, "AutocastCUDA"), version):
                library.impl(base, self._kernel(base), "AutocastCPU")
            elif has(name, "AutocastCPU"):
                library.impl(base, torch.library.fallthrough_kernel, "AutocastCPU")
        self._follow_context()

    def _kernel(self, name: str) -> Any:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        how = treatment(name)

        def cast_and_run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self.keys):
                if not any(self.mode.is_on_card(tensor) for tensor in tensors((args, kwargs))):
                    return op(*args, **kwargs)
                if how == "low":
                    dtype = torch.get_autocast_dtype("cuda")
                elif how == "widest":
                    dtype = widest(list(tensors((args, kwargs))))
                elif how == "dtype" and _takes_dtype(op):
                    given = kwargs.get("dtype") or any(isinstance(value, torch.dtype) for value in args)
                    chosen = {} if given or not _castable(args[0]) else {"dtype": torch.float32}
                    return op(*args, **{**kwargs, **chosen})  # a dtype that was asked for is kept
                else:
                    dtype = torch.float32
                return op(*self._cast(args, dtype), **self._cast(kwargs, dtype))

        return cast_and_run

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not _castable(value) or value.dtype is dtype:
                return value
            weight = (
                dtype in _LOWER and value.dtype is torch.float32 and value.requires_grad and value.is_leaf
            )
            if not (weight and torch.is_autocast_cache_enabled()):
                return value.to(dtype)
            known = self.casts.get(id(value))
            if known is None or known[0]() is not value:
                known = self.casts[id(value)] = (weakref.ref(value), value.to(dtype))
            return known[1]
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(item, dtype) for item in value)
        if isinstance(value, dict):
            return {name: self._cast(item, dtype) for name, item in value.items()}
        return value

    def _follow_context(self) -> None:
        """``torch.autocast("cuda")`` also switches what fake tensors on "cpu" listen to."""
        enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
        casts = self.casts

        def entered(self: Any) -> Any:
            if self.device == "cuda":
                before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
                self.__dict__.setdefault("_virtual_before", []).append(before)
                torch.set_autocast_enabled("cpu", self._enabled)
            return enter(self)

        def left(self: Any, *given: Any) -> Any:
            result = leave(self, *given)
            if self.device == "cuda":
                enabled, _ = self._virtual_before.pop()
                torch.set_autocast_enabled("cpu", enabled)
                if not enabled:
                    casts.clear()
            return result

        torch.autocast.__enter__, torch.autocast.__exit__ = entered, left


def _castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _takes_dtype(op: Any) -> bool:
    return any(argument.name == "dtype" for argument in op._schema.arguments)


def widest(operands: list[Any]) -> Any:
    floating = [tensor.dtype for tensor in operands if tensor.is_floating_point()]
    return torch.float32 if torch.float32 in floating else (floating[0] if floating else torch.float32)
