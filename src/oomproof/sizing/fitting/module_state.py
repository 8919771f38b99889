"""What steps leave in modules beside their weights: gradients, modes, what a metric has summed up, lists and counts of their own."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oomproof.recording.stack_dumps import is_library

_PLAIN = (bool, int, float, str, bytes, tuple, type(None))
_HOLDING: tuple[type, ...] = (list, dict, set, deque)
_LONG = 100_000  # elements: a data set, which no step appends to
_tables: set[str] = set()


def modules_of(model: Any) -> list[Any]:
    """Of a module, or of several in a list, a tuple or a dictionary."""
    if callable(getattr(model, "modules", None)):
        return list(model.modules())
    parts = model.values() if isinstance(model, dict) else model if isinstance(model, (list, tuple)) else ()
    return list({id(module): module for part in parts for module in modules_of(part)}.values())


def kept(tensor: Any) -> Any:
    """A copy on the host."""
    return None if tensor is None else tensor.detach().to("cpu", copy=True)


def gradients_back(parameters: Iterable[Any]) -> Callable[[], None]:
    """And whether each has one: a step of two networks that is cut short leaves the other one's switched off."""
    gradients = [
        (parameter, parameter.grad, kept(parameter.grad), parameter.requires_grad) for parameter in parameters
    ]

    def back() -> None:
        import torch

        with torch.no_grad():
            for parameter, gradient, value, is_trained in gradients:
                parameter.grad = None if gradient is None else gradient.copy_(value)
                if parameter.requires_grad != is_trained:
                    parameter.requires_grad_(is_trained)

    return back


def beside_weights(modules: list[Any]) -> Callable[[], None]:
    """What puts back all but tensors that PyTorch knows, as often as it is called."""
    modes = [(module, module.training) for module in modules]
    attributes = [
        (module, name, *held) for module in modules if _is_users(module) for name, held in _attributes(module)
    ]
    sums = [(module, _summed(module)) for module in modules if _is_metric(module)]

    def back() -> None:
        for module, mode in modes:
            module.training = mode
        for module, name, holder, value in attributes:
            _put(module, name, holder, value)
        for metric, before in sums:
            for name, value in before.items():
                setattr(metric, name, _copied(value))

    return back


def passing_buffers(modules: list[Any]) -> list[Any]:
    """Those that no checkpoint holds."""
    return [
        buffer
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
        if name in getattr(module, "_non_persistent_buffers_set", ())
    ]


def _is_users(module: Any) -> bool:
    """Of the user's own files: what libraries note (FSDP that it has begun, a wrapper its passes) fits what they have made beside it."""
    written = sys.modules.get(type(module).__module__)
    return not is_library(getattr(written, "__file__", None) or "")


def _attributes(module: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each with the object that holds it and a copy; not PyTorch's own tables of parameters, modules and hooks."""
    for name, value in vars(module).items():
        if name in _own_tables():
            continue
        if type(value) in _PLAIN:
            yield name, (None, value)
        elif type(value) in _HOLDING and len(value) <= _LONG:
            yield name, (value, copy.copy(value))


def _own_tables() -> set[str]:
    if not _tables:
        import torch

        _tables.update(vars(torch.nn.Module()))
    return _tables


def _put(module: Any, name: str, holder: Any, value: Any) -> None:
    """Past the module's own __setattr__; a list stays the same list, for others may know it."""
    if holder is not None:
        holder.clear()
        (holder.update if isinstance(holder, (dict, set)) else holder.extend)(value)
    vars(module)[name] = value if holder is None else holder


def _is_metric(module: Any) -> bool:
    """Of torchmetrics: its sums are tensors that are neither parameters nor buffers."""
    return isinstance(getattr(module, "_defaults", None), dict) and hasattr(module, "_update_count")


def _summed(metric: Any) -> dict[str, Any]:
    names = (*metric._defaults, "_computed", "_forward_cache")
    return {name: _copied(getattr(metric, name)) for name in names if hasattr(metric, name)}


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.detach().clone() if hasattr(value, "detach") else value
