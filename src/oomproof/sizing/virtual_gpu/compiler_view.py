"""What torch's compiler sees of the virtual card. Fake tensors are on "cpu" for autograd, which has no driver; a script that asks
for their device, and the graphs that are planned, must see the card."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .cuda_redirect import is_cuda
from .storage_log import GPU
from .virtual_mode import CARD, TRACING, VirtualMode

_CPU = torch.device("cpu")
_DEVICE = torch.ops.prim.device.default
# torch's insides that following the compiler rests on
_NEEDED = (
    ("torch._dynamo.variables.torch_function", "TorchFunctionModeStackStateManager", "SymbolicTorchFunctionState"),
    ("torch._dynamo.variables.tensor", "TensorVariable"),
    ("torch._dynamo.variables.torch", "TorchInGraphFunctionVariable"),
    ("torch._dynamo.trace_rules", "get_torch_obj_rule_map"),
    ("torch._dynamo.exc", "TorchDynamoException"),
    ("torch._dynamo.device_interface", "device_interfaces", "CudaInterface"),
    ("torch", "_TorchCompileInductorWrapper"),
)  # fmt: skip


def missing() -> str:
    """The first of them that this torch does not have."""
    for name, *parts in _NEEDED:
        try:
            module = importlib.import_module(name)
        except ImportError:
            return name
        for part in parts:
            if not hasattr(module, part):
                return f"{name}.{part}"
    return ""


def make_tables() -> None:
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    TorchInGraphFunctionVariable._get_handlers()
    trace_rules.get_torch_obj_rule_map()


def follow(mode: VirtualMode, redirect: Any) -> None:
    """Done when a script compiles something: those that do not are left as they are."""
    _tell_when_it_traces(mode, redirect)
    _show_card(mode)
    _keep_off_the_driver(mode)
    for owner, name in ((type(redirect), "__torch_function__"), (VirtualMode, "__torch_dispatch__")):
        # between two graphs these are called as the script's own functions are, and would be compiled too
        setattr(owner, name, torch._dynamo.disable(getattr(owner, name)))


def _tell_when_it_traces(mode: VirtualMode, redirect: Any) -> None:
    from torch._dynamo.variables import torch_function

    manager, state = (
        torch_function.TorchFunctionModeStackStateManager,
        torch_function.SymbolicTorchFunctionState,
    )
    enter, leave, made = manager.__enter__, manager.__exit__, state.__init__
    before: list[str] = []

    def entered(self: Any) -> None:
        enter(self)
        before.append(mode.compiling)
        mode.compiling = TRACING

    def left(self: Any, *given: Any) -> None:
        mode.compiling = before.pop()
        leave(self, *given)

    def without_ours(self: Any, stack: Any, *given: Any, **named: Any) -> None:
        made(self, [item for item in stack if item is not redirect], *given, **named)

    manager.__enter__, manager.__exit__, state.__init__ = entered, left, without_ours


def _show_card(mode: VirtualMode) -> None:
    """To the code that is traced, where anything is on the card."""
    from torch._dynamo.variables.tensor import TensorVariable

    specialize = TensorVariable.specialize

    def specialized(value: Any) -> dict[str, Any]:
        seen: dict[str, Any] = specialize(value)
        hidden = seen["device"].type == "cpu" and mode.log.events[GPU]
        return {**seen, "device": CARD} if hidden else seen

    TensorVariable.specialize = staticmethod(specialized)


def _keep_off_the_driver(mode: VirtualMode) -> None:
    """While tensors are traced they stay on "cpu", also those that are made on the card; C++ never sees another device."""
    # a fake tensor on "cuda" wakes the driver first where there seems to be a card: always, in a torch with CUDA
    fake_tensor.init_gpu_context = lambda device: None
    dispatch, whole = FakeTensorMode.__torch_dispatch__, FakeTensor.__torch_dispatch__.__func__

    @functools.wraps(dispatch)
    def by_mode(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if mode.compiling == TRACING and kwargs and is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        out = dispatch(self, func, types, args, kwargs)
        return _CPU if func is _DEVICE and out.type == "cuda" else out

    @functools.wraps(whole)
    def by_tensor(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = whole(cls, func, types, args, kwargs)
        return _CPU if func is _DEVICE and out.type == "cuda" else out

    FakeTensorMode.__torch_dispatch__, FakeTensor.__torch_dispatch__ = by_mode, classmethod(by_tensor)
