"""``torch.compile`` on the virtual card: torch's own compiler runs, up to the program whose kernels would be made; see `planned_graphs`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .cuda_redirect import is_cuda
from .step_limits import EAGER
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


LEFT_OUT = "torch.compile was left out: it usually needs less than the figure here"
# what these settings of Inductor add on a card is not followed
_NOT_FOLLOWED = {
    "triton.cudagraphs": "CUDA graphs of torch.compile are left out: what they keep for themselves comes on top",
    "max_autotune": "torch.compile's max-autotune is left out: which kernels it takes is known on a card only",
}


def left_out(model: Any = None, *args: Any, **kwargs: Any) -> Any:
    """In place of ``torch.compile``: the model runs as it is."""
    _tell(LEFT_OUT)
    return (lambda function: function) if model is None else model


def prepare() -> None:
    """Before anything of torch is replaced: the compiler's tables of functions and classes are made of torch's own."""
    with contextlib.suppress(ImportError, AttributeError):  # of another torch: see `install`
        make_tables()


def install(mode: VirtualMode, redirect: Any, flow: Any, began: Callable[[], None]) -> None:
    """``began``: called when the first graph is planned."""
    if os.environ.get(EAGER) or missing():
        torch.compile = left_out
        return
    torch.compile = CompiledFunctions(mode, redirect, flow, began).compile


def _tell(note: str) -> None:
    from . import training_flow

    training_flow.tell(note)


class CompiledFunctions:
    def __init__(self, mode: VirtualMode, redirect: Any, flow: Any, began: Callable[[], None]) -> None:
        self.mode, self.redirect, self.flow, self.began = mode, redirect, flow, began
        self.original = torch.compile
        self.is_followed = False

    def compile(
        self, model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: Any = "inductor",
        mode: str | None = None, options: Any = None, disable: bool = False, **more: Any,
    ) -> Any:  # fmt: skip
        if model is None:
            return lambda function: self.compile(
                function, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options,
                disable=disable,
            )  # fmt: skip
        if disable:
            return model
        if backend != "inductor":
            return left_out(model)
        settings = torch._TorchCompileInductorWrapper(mode, options, dynamic).config
        for name, note in _NOT_FOLLOWED.items():
            if settings.get(name):
                _tell(note)
        if not self.is_followed:
            self.is_followed = True
            follow(self.mode, self.redirect)
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        made = self.original(
            model,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=functools.partial(self._planned, {**settings, **dict.fromkeys(_NOT_FOLLOWED, False)}),
        )
        if made is model:  # TORCHDYNAMO_DISABLE
            return model
        if isinstance(model, torch.nn.Module):
            made.forward = self._called(made.forward, model)
            return made
        owner = getattr(model, "__self__", None)  # model.compile() compiles what calls the hooks
        return self._called(made, model, owner if isinstance(owner, torch.nn.Module) else None)

    def _called(self, compiled: Callable[..., Any], plain: Callable[..., Any], module: Any = None) -> Any:
        """``module``: one whose passes are to be counted here, since its own hooks are part of what is compiled."""
        failed = False

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal failed
            if failed:
                return plain(*args, **kwargs)
            try:
                with self._counted(module, args), _without_hooks():
                    return compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:
                _tell(f"{LEFT_OUT} ({_name(plain)}: {_first_line(error)})")
                failed = True
            return plain(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _counted(self, module: Any, args: Any) -> Iterator[None]:
        if module is None or self.flow.modules:
            yield
            return
        self.flow._enter(module, args)
        try:
            yield
        finally:
            self.flow._leave(module, args, None)

    def _planned(self, settings: dict[str, Any], graph: Any, inputs: Any) -> Any:
        """Called by the compiler with each graph and the tensors it has met; a graph that cannot be planned runs as it is."""
        from . import planned_graphs

        if not any(self._is_on_card(item) for item in inputs):
            return graph.forward
        self.began()
        try:
            return planned_graphs.planned(self.mode, graph, inputs, settings)
        except torch._dynamo.exc.RestartAnalysis:  # no fault: it will come again with another graph
            raise
        except Exception as error:
            _tell(f"{LEFT_OUT} (of a part: {_first_line(error)})")
            return graph.forward

    def _is_on_card(self, item: Any) -> bool:
        return isinstance(item, FakeTensor) and self.mode.log.where(item) == GPU


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"


@contextlib.contextmanager
def _without_hooks() -> Iterator[None]:
    """Ours count passes of all modules; the compiler would make them part of the graph."""
    from torch.nn.modules import module as modules

    hooks = [
        value
        for name, value in vars(modules).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
    before = [dict(value) for value in hooks]
    for value in hooks:
        value.clear()
    try:
        yield
    finally:
        for value, kept in zip(hooks, before, strict=True):
            value.update(kept)
