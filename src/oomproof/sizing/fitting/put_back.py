"""A model, an optimizer and what a step takes from outside, as they were before steps were made with them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

from oomproof.sizing.fitting.module_state import beside_weights, gradients_back, kept, modules_of
from oomproof.sizing.fitting.process_state import is_scaler, outer_values


@contextlib.contextmanager
def put_back(step: Callable[..., Any] | None, model: Any, optimizer: Any) -> Iterator[Callable[[], None]]:
    """Yields what puts all of it back, as often as it is called. Values are kept on the host; the tensors stay the same ones."""
    others = outside(step, model, optimizer)
    modules = modules_of([model, *others])
    optimizers = [*optimizers_of(optimizer), *(other for other in others if hasattr(other, "param_groups"))]
    # what an optimizer changes besides belongs to no module
    parameters = [tensor for module in modules for tensor in module.parameters(recurse=False)]
    parameters += [
        tensor for owner in optimizers for group in owner.param_groups for tensor in group["params"]
    ]
    parameters = list({id(tensor): tensor for tensor in parameters}.values())
    buffers = [tensor for module in modules for tensor in module.buffers(recurse=False)]
    tensors = [(tensor, kept(tensor)) for tensor in (*parameters, *buffers)]
    parts = [gradients_back(parameters), beside_weights(modules), *map(_optimizer_back, optimizers)]
    known = {id(part) for part in (*modules, *optimizers)}
    stateful = [(other, _mapped(other.state_dict(), _Away)) for other in others if id(other) not in known]

    def back() -> None:
        import torch

        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        for part in parts:
            part()
        for other, state in stateful:
            other.load_state_dict(_mapped(state, _restored))

    yield back


def optimizers_of(optimizer: Any) -> list[Any]:
    """One, or several in a list, a tuple or a dictionary."""
    if isinstance(optimizer, dict):
        return list(optimizer.values())
    if isinstance(optimizer, (list, tuple)):
        return list(optimizer)
    return [] if optimizer is None else [optimizer]


def outside(step: Any, model: Any, optimizer: Any) -> list[Any]:
    """What the function takes from elsewhere that has a state to put back: a schedule, an averaged model. A scaler is the process's."""
    known = {id(part) for part in (model, *modules_of(model), *optimizers_of(optimizer))}
    return [
        value
        for value in outer_values(step)
        if id(value) not in known
        and not isinstance(value, type)
        and not is_scaler(value)
        and _has_state(value)
    ]


def _has_state(value: Any) -> bool:
    try:
        return callable(getattr(value, "state_dict", None)) and callable(
            getattr(value, "load_state_dict", None)
        )
    except Exception:  # a stand-in of the user's that does not bear to be looked at
        return False


def _optimizer_back(optimizer: Any) -> Callable[[], None]:
    """Its state of each parameter, its groups, and its ``step``, which schedules and accelerate wrap."""
    states = [(parameter, _mapped(state, _InPlace)) for parameter, state in optimizer.state.items()]
    groups = [
        {name: _mapped(value, _InPlace) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    step = vars(optimizer).get("step")

    def back() -> None:
        optimizer.state.clear()
        for parameter, state in states:
            optimizer.state[parameter] = _mapped(state, _restored)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            for name in set(group) - set(before) - {"params"}:
                del group[name]
            group.update({name: _mapped(value, _restored) for name, value in before.items()})
        vars(optimizer).pop("step", None)
        if step is not None:
            optimizer.step = step

    return back


class _InPlace:
    """A tensor with a copy of what it holds."""

    def __init__(self, tensor: Any) -> None:
        self._tensor, self._value = tensor, kept(tensor)

    def restored(self) -> Any:
        import torch

        with torch.no_grad():
            return self._tensor.copy_(self._value)


class _Away:
    """A tensor's values alone: nothing of the card is taken for them, and they go back to it."""

    def __init__(self, tensor: Any) -> None:
        self._value, self._device = kept(tensor), tensor.device

    def restored(self) -> Any:
        return self._value.to(self._device, copy=True)


def _restored(held: _InPlace | _Away) -> Any:
    return held.restored()


def _mapped(value: Any, made: Callable[[Any], Any]) -> Any:
    """A copy, with what is made of each tensor, or of what stands for one, in dictionaries, lists and tuples."""
    if hasattr(value, "copy_") or isinstance(value, (_InPlace, _Away)):
        return made(value)
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update({name: _mapped(item, made) for name, item in value.items()})
        return copied
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, made) for item in value)
    try:
        return copy.copy(value)
    except Exception:  # a process group, a lock: nothing that a step changes
        return value
