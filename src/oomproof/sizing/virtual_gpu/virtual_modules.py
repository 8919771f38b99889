"""Parameters without bytes from birth, and modules that move between host and card with their ties kept."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from .cuda_queries import Refused
from .cuda_redirect import LARGE, Redirect
from .storage_log import HOST
from .virtual_mode import VirtualMode


def install(mode: VirtualMode, redirect: Redirect) -> None:
    _parameters(mode)
    _buffers(mode)
    _moves(redirect)


def _parameters(mode: VirtualMode) -> None:
    """``Parameter(torch.empty(…))``: what was asked for is given back before a page of it was touched."""
    made = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter) and cls is torch.nn.Parameter and _is_host(data):
            fake = mode.like(data, HOST)
            fake._is_param = True
            return fake.requires_grad_(requires_grad)
        if isinstance(data, FakeTensor):
            alias = data.detach()
            alias._is_param = True
            return alias.requires_grad_(requires_grad)
        return made(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = staticmethod(new)


def _is_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel())


def _buffers(mode: VirtualMode) -> None:
    register = torch.nn.Module.register_buffer

    def registered(self: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if type(tensor) is torch.Tensor and _is_host(tensor) and tensor.nbytes > LARGE:
            tensor = mode.like(tensor, HOST)
        return register(self, name, tensor, *args, **kwargs)

    torch.nn.Module.register_buffer = registered


def _moves(redirect: Redirect) -> None:
    """``module.to``, ``cuda``, ``half``…: torch's ``_apply`` for fake tensors makes new parameters, which would break ties and
    leave an optimizer with the old ones. The storage is exchanged instead, as for real tensors."""

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        redirect.as_parameter += 1
        try:
            if recurse:
                for child in self.children():
                    child._apply(fn)
            for name, parameter in self._parameters.items():
                if parameter is not None:
                    _move_parameter(self, name, parameter, fn)
            moved: dict[int, Any] = {}
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    if id(buffer) not in moved:
                        moved[id(buffer)] = (fn(buffer), buffer)
                    self._buffers[name] = moved[id(buffer)][0]
        finally:
            redirect.as_parameter -= 1
        return self

    torch.nn.Module._apply = apply


def _move_parameter(module: Any, name: str, parameter: Any, fn: Any) -> None:
    if isinstance(parameter, UninitializedTensorMixin):
        raise Refused(
            "modules whose size is not known yet (Lazy…) cannot be followed; pass a batch through it before .cuda()"
        )
    with torch.no_grad():
        applied = fn(parameter)
        if applied is parameter:
            return
        if isinstance(applied, FakeTensor) == isinstance(parameter, FakeTensor) and not applied.is_meta:
            parameter.data = applied
        else:  # a parameter that was real, or on "meta"
            module._parameters[name] = torch.nn.Parameter(applied, parameter.requires_grad)
            return
        if parameter.grad is not None:
            parameter.grad = fn(parameter.grad)
