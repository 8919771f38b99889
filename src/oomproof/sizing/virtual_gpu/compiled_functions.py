"""``torch.compile`` on the virtual card: torch's own compiler runs, up to the program whose kernels would be made; see `planned_graphs`."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import compiler_view
from .step_limits import EAGER
from .storage_log import GPU
from .virtual_mode import VirtualMode

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
        compiler_view.make_tables()


def install(mode: VirtualMode, redirect: Any, flow: Any, began: Callable[[], None]) -> None:
    """``began``: called when the first graph is planned."""
    if os.environ.get(EAGER) or compiler_view.missing():
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
            compiler_view.follow(self.mode, self.redirect)
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
        return isinstance(item, FakeTensor) and self.mode.log.where(item.untyped_storage()) == GPU


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
