"""A model, an optimizer and what a step takes from outside, as they were before steps were made with them."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def put_back(step: Callable[..., Any] | None, model: Any, optimizer: Any) -> Iterator[Callable[[], None]]:
    """Yields what puts all of it back, as often as it is called. Values are kept on the host; the tensors stay the same ones."""
    tensors = [(tensor, _kept(tensor)) for tensor in _tensors(model)]
    gradients = [(parameter, parameter.grad, _kept(parameter.grad)) for parameter in _parameters(model)]
    modes = [(module, module.training) for module in model.modules()] if hasattr(model, "modules") else []
    states = _optimizer_state(optimizer)
    groups = [
        {name: copy.copy(value) for name, value in group.items() if name != "params"}
        for group in getattr(optimizer, "param_groups", [])
    ]
    others = [(other, copy.deepcopy(other.state_dict())) for other in outside(step, model, optimizer)]

    def back() -> None:
        import torch

        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
            for parameter, gradient, value in gradients:
                parameter.grad = None if gradient is None else gradient.copy_(value)
        for module, mode in modes:
            module.training = mode
        _restore_optimizer(optimizer, states, groups)
        for other, state in others:
            other.load_state_dict(copy.deepcopy(state))

    yield back


def _kept(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().to("cpu", copy=True)


def _parameters(model: Any) -> list[Any]:
    return list(model.parameters()) if hasattr(model, "parameters") else []


def _tensors(model: Any) -> list[Any]:
    return [*_parameters(model), *(model.buffers() if hasattr(model, "buffers") else [])]


def _optimizer_state(optimizer: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Of each parameter: its values, tensors with a copy of what they hold."""
    return [
        (
            parameter,
            {
                name: (value, _kept(value)) if hasattr(value, "copy_") else (copy.copy(value), None)
                for name, value in state.items()
            },
        )
        for parameter, state in getattr(optimizer, "state", {}).items()
    ]


def _restore_optimizer(
    optimizer: Any, states: list[tuple[Any, dict[str, Any]]], groups: list[dict[str, Any]]
) -> None:
    if optimizer is None:
        return
    optimizer.state.clear()
    for parameter, state in states:
        for value, kept in state.values():
            if kept is not None:
                value.copy_(kept)
        optimizer.state[parameter] = {name: value for name, (value, _) in state.items()}
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.update({name: copy.copy(value) for name, value in before.items()})


def outside(step: Any, model: Any, optimizer: Any) -> list[Any]:
    """What the function takes from its closure and its module that has a state to put back: a scaler, a schedule, an averaged model."""
    from oomproof.sizing.virtual_gpu.fake_copies import names_in

    function = step.__func__ if isinstance(step, types.MethodType) else step
    if not isinstance(function, types.FunctionType):
        return []
    values = [function.__globals__.get(name) for name in names_in(function.__code__)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty yet
            values.append(cell.cell_contents)
    if isinstance(step, types.MethodType):
        values += list(getattr(step.__self__, "__dict__", {}).values())
    found: list[Any] = []
    for value in values:
        if (
            value is model
            or value is optimizer
            or isinstance(value, type)
            or any(value is known for known in found)
        ):
            continue
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            found.append(value)
    return found
