"""``torch.cuda.FloatTensor`` and its like, as older programs call them, on the virtual card."""

from __future__ import annotations

from typing import Any

import torch

from .cuda_redirect import Redirect

Tensor = torch.Tensor
_NAMES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16, "CharTensor": torch.int8,
    "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


class _CardType(type):
    """Called with sizes, with numbers or with a tensor; asked with ``isinstance``; given to ``tensor.type(…)``."""

    dtype: Any
    redirect: Redirect

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor) and bool(value.is_cuda) and value.dtype is cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return made(cls.redirect, cls.dtype, args)


def made(redirect: Redirect, dtype: Any, args: Any) -> Any:
    """What ``torch.cuda.FloatTensor(…)`` and ``tensor.new(…)`` make."""
    first = args[0] if args else 0
    if isinstance(first, Tensor):
        return redirect.to_card(first, dtype)
    if isinstance(first, (int, torch.Size)):
        sizes = first if isinstance(first, torch.Size) else args or (0,)
        return redirect.make(torch.empty, tuple(sizes), {"dtype": dtype, "device": "cuda"})
    return redirect.to_card(torch.as_tensor(first).to(dtype))


def install(redirect: Redirect) -> None:
    host_types = {getattr(torch, name): dtype for name, dtype in _NAMES.items() if hasattr(torch, name)}
    for name, dtype in _NAMES.items():
        body = {"dtype": dtype, "redirect": redirect, "__module__": "torch.cuda"}
        setattr(torch.cuda, name, _CardType(name, (), body))
    typed = redirect.handlers[Tensor.type]

    def change_type(func: Any, args: Any, kwargs: Any) -> Any:
        kind = args[1] if len(args) > 1 else kwargs.get("dtype")
        if isinstance(kind, _CardType):
            return redirect.to_card(args[0], kind.dtype)
        if isinstance(kind, type) and kind in host_types:
            return redirect.to_host(args[0], host_types[kind])
        return typed(func, args, kwargs)

    def new(func: Any, args: Any, kwargs: Any) -> Any:
        if redirect.mode.is_on_card(args[0]):
            return made(redirect, args[0].dtype, args[1:])
        return func(*args, **kwargs)

    def default(kind: Any) -> None:
        card = isinstance(kind, _CardType) or str(kind).startswith("torch.cuda.")
        dtype = (
            kind.dtype if isinstance(kind, _CardType) else _NAMES[str(kind).rpartition(".")[2].rstrip("'>")]
        )
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda" if card else "cpu")

    redirect.handlers[Tensor.type] = change_type
    redirect.handlers[Tensor.new] = new
    torch.set_default_tensor_type = default
