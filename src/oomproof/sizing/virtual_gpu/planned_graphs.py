"""A graph of torch's compiler, planned by Inductor for the card: differentiated, split into forward and backward, fused and scheduled,
up to the program in Python that takes the buffers and starts the kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .planned_program import runnable
from .virtual_mode import CARD, LOWERING, VirtualMode

# nothing is read from or written to a cache, no process is started, nothing is measured
_SETTINGS = {
    "fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1, "max_autotune_gemm": False,
    "max_autotune_pointwise": False, "coordinate_descent_tuning": False, "benchmark_kernel": False,
    "benchmark_fusion": False, "cpp_wrapper": False,
}  # fmt: skip
_map_all = torch.utils._pytree.tree_map
_OF_AUTOGRAD = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}


def planned(mode: VirtualMode, graph: Any, inputs: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    """``inputs``: tensors of the virtual card, of which the compiler has its own."""
    from torch._functorch import config as autograd_config
    from torch._inductor import compile_fx, config

    settings = {**settings, **_known(config, _SETTINGS)}

    def inner(module: Any, examples: Any, **given: Any) -> Any:
        before, mode.compiling = mode.compiling, LOWERING
        try:
            with config.patch(settings):
                return _program(mode, module, examples, given)
        finally:
            mode.compiling = before

    with (
        config.patch(settings),
        autograd_config.patch(_known(autograd_config, _OF_AUTOGRAD)),
        _planned_for_card(),
    ):
        made: Callable[..., Any] = compile_fx.compile_fx(graph, _seen(graph, inputs), inner_compile=inner)
        return made


def _known(config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if hasattr(config, name)}


def _seen(graph: Any, inputs: Any) -> list[Any]:
    """The inputs as the compiler has them."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [
        node.meta["example_value"] if isinstance(given, FakeTensor) else given
        for node, given in zip(places, inputs, strict=True)
    ]


@contextlib.contextmanager
def _planned_for_card() -> Iterator[None]:
    """What is differentiated is on "cpu", also what the script makes on the card, for some of it is computed when constants are folded; all of it
    moves to the card before it is split into forward and backward."""
    from torch._inductor import compile_fx

    passes = compile_fx._recursive_joint_graph_passes

    def then_moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        _name_device(module, torch.device("cpu"))
        out = passes(module, *args, **kwargs)
        _move(module if out is None else out)
        return out

    with mock.patch.object(compile_fx, "_recursive_joint_graph_passes", then_moved):
        yield


def _move(module: Any) -> None:
    _name_device(module, CARD)
    moved: dict[int, Any] = {}
    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _map_all(lambda item: _on_card(item, moved), node.meta["val"])


def _name_device(module: Any, device: torch.device) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = _map_all(
                lambda item: device if isinstance(item, torch.device) else item, (node.args, node.kwargs)
            )


def _on_card(item: Any, moved: dict[int, Any]) -> Any:
    if not isinstance(item, FakeTensor) or item.fake_device.type == "cuda":
        return item
    if id(item) not in moved:
        with torch.no_grad(), item.fake_mode:
            twin = torch.empty_strided(item.size(), item.stride(), dtype=item.dtype, device=CARD)
        moved[id(item)] = (twin, item)  # kept, so that no other tensor gets its address
    return moved[id(item)][0]


class _Taken(BaseException):
    """The program's source. Not an Exception: the compiler would take it for a fault of its own."""


def _program(mode: VirtualMode, module: Any, examples: Any, given: dict[str, Any]) -> Any:
    from torch._inductor import compile_fx, graph, utils

    if not any(node.op not in ("placeholder", "output") for node in module.graph.nodes):
        return _boxed(module)
    _move(module)
    moved: dict[int, Any] = {}
    given = {**given, "cudagraphs": utils.BoxedBool(False)}

    def take(lowered: Any) -> None:
        raise _Taken(lowered.codegen()[0].value)

    try:
        with mock.patch.object(graph.GraphLowering, "compile_to_module", take), _as_with_a_card():
            compile_fx.compile_fx_inner(module, [_on_card(item, moved) for item in examples], **given)
    except _Taken as taken:
        return runnable(mode, str(taken))
    raise RuntimeError("the compiler made no program")


def _boxed(module: Any) -> Any:
    def run(args: Any) -> Any:
        return module.forward(*args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def _as_with_a_card() -> Iterator[None]:
    """Triton is asked for nothing but its version."""
    from torch._dynamo import device_interface
    from torch._inductor import scheduler
    from torch.utils import _triton

    class Interface(device_interface.CudaInterface):  # type: ignore[misc]
        current_device = staticmethod(lambda: 0)
        set_device = staticmethod(lambda device: None)
        device_count = staticmethod(lambda: 1)
        synchronize = staticmethod(lambda device=None: None)
        get_device_properties = staticmethod(lambda device=None: torch.cuda.get_device_properties(device))
        get_raw_stream = staticmethod(lambda device=0: 0)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        raise_if_triton_unavailable = staticmethod(lambda device=None: None)

    known = {"cuda": Interface, "cuda:0": Interface}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(device_interface.device_interfaces, known))
        if hasattr(scheduler, "has_triton"):
            stack.enter_context(mock.patch.object(scheduler, "has_triton", lambda *given: True))
        stack.enter_context(mock.patch.object(_triton, "triton_hash_with_backend", lambda *given: ""))
        yield
