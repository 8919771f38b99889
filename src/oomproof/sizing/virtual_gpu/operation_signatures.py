"""Operations for which the card's libraries take workspaces, as the script calls them: what calibrating measures on a real card."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
MOST = 5000  # signatures of one script; the others keep their estimate
_CONVOLUTIONS = ("convolution", "convolution_backward")
_MATRICES = ("mm", "addmm", "bmm", "baddbmm")
_OTHERS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "embedding_dense_backward",
    "native_layer_norm_backward",
    "native_group_norm_backward",
)


def _default(name: str) -> Any:
    packet = getattr(aten, name, None)
    return getattr(packet, "default", None)


_NAMES = {
    op: f"aten.{name}.default"
    for name in (*_CONVOLUTIONS, *_MATRICES, *_OTHERS)
    if (op := _default(name)) is not None
}
_KINDS = {f"aten.{name}.default": "convolution" for name in _CONVOLUTIONS}
_KINDS.update({f"aten.{name}.default": "matrix" for name in _MATRICES})


class Signatures:
    """Each distinct one once; their numbers start at 0."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        self._flags: dict[str, Any] = {}

    def number(self, func: Any, args: Any, kwargs: Any, unfamiliar: str | None = None) -> int | None:
        """``unfamiliar``: the name of an operation that is asked for though it is none of ours."""
        name = _NAMES.get(func, unfamiliar)
        if name is None:
            return None
        try:
            key = (name, _plain(args), _plain(kwargs), self._settings(name, args))
            found = self.known.get(key)
        except (TypeError, ValueError):  # a size that is not known
            return None
        if found is None and len(self.known) < MOST:
            found = self.known[key] = len(self.known)
        return found

    def _settings(self, name: str, args: Any) -> Any:
        """Those by which the libraries choose their kernels, where they are not torch's defaults."""
        kind = _KINDS.get(name)
        given: tuple[tuple[str, bool, bool], ...] = ()
        if kind == "convolution":
            cudnn = torch.backends.cudnn
            given = (
                ("benchmark", _flag(cudnn, "benchmark", False), False),
                ("cudnn", _flag(cudnn, "enabled", True), True),
                ("deterministic", _flag(cudnn, "deterministic", False), False),
                ("tf32", _flag(cudnn, "allow_tf32", True), True),
            )
        elif kind == "matrix" and args[0].dtype is torch.float32:
            given = (("tf32", _flag(torch.backends.cuda.matmul, "allow_tf32", False), False),)
        return tuple((flag, value) for flag, value, usual in given if value != usual)

    def as_json(self) -> list[dict[str, Any]]:
        """In the order of their numbers; ``card_measuring`` makes the operation again from it."""
        return [
            {"op": name, "args": _json(args), "kwargs": dict(_json(kwargs)), "flags": dict(flags)}
            for name, args, kwargs, flags in self.known
        ]


def _flag(module: Any, name: str, usual: bool) -> bool:
    try:
        return bool(getattr(module, name))
    except (AttributeError, RuntimeError):  # set by torch's newer names only
        return usual


class _Tensor(tuple):  # type: ignore[type-arg]
    """dtype, shape, strides."""

    __slots__ = ()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(int(size) for size in value.shape)
        return _Tensor((str(value.dtype)[6:], shape, tuple(int(step) for step in value.stride())))
    if isinstance(value, (list, tuple)):
        return tuple([_plain(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _plain(item)) for name, item in sorted(value.items())])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return _Tensor((str(value)[6:],))
    raise TypeError(type(value))


def _json(value: Any) -> Any:
    if isinstance(value, _Tensor):
        if len(value) == 1:
            return {"dtype": value[0]}
        dtype, shape, strides = value
        return {"tensor": dtype, "shape": list(shape), "strides": list(strides)}
    return [_json(item) for item in value] if isinstance(value, tuple) else value
