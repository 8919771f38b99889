"""A graph of torch's compiler, planned by Inductor for the card: differentiated, split into forward and backward, fused and scheduled,
up to the program in Python that takes the buffers and starts the kernels."""

from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .storage_log import GPU
from .virtual_mode import CARD, LOWERING, VirtualMode

# Inductor's program, run for its memory: buffers are taken, reused and given back in its order, kernels do nothing.

_ALIGNED = 16  # bytes: rows of a matrix that tensor cores take as they are
PADDED = "products of matrices with odd sides, which the compiler may widen"


def runnable(mode: VirtualMode, source: str) -> Callable[[Any], Any]:
    space: dict[str, Any] = {"__name__": "planned_program"}
    for node in ast.parse(source).body:
        kernel = _kernel(node)
        if kernel is not None:
            space[kernel[0]] = Kernel(mode, kernel[1])
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            with contextlib.suppress(ImportError):  # Triton, the driver
                _execute(node, space)
        elif isinstance(node, (ast.Assign, ast.FunctionDef, ast.ClassDef)) and not _compiles(node):
            with contextlib.suppress(ImportError, AttributeError):  # of other kinds of cards
                _execute(node, space)
    space.update(_stand_ins(mode))
    call = space["call"]

    def run(args: Any) -> Any:
        _bring_zeros(mode, args)
        with torch.no_grad():
            return call(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _bring_zeros(mode: VirtualMode, args: Any) -> None:
    """For a gradient that is missing autograd makes zeros, on the host where fake tensors are on "cpu"."""
    for index, item in enumerate(args):
        if isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor) and item.dim():
            args[index] = mode.like(item, GPU)


def _execute(node: ast.stmt, space: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), "planned program", "exec"), space)


def _kernel(node: ast.stmt) -> tuple[str, ast.Call] | None:
    """``name = async_compile.triton(…)``"""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        func, target = node.value.func, node.targets[0]
        if isinstance(func, ast.Attribute) and _is_compiler(func.value) and isinstance(target, ast.Name):
            return target.id, node.value
    return None


def _compiles(node: ast.stmt) -> bool:
    """Starts, awaits or forgets the processes that would make the kernels."""
    return isinstance(node, ast.Assign) and any(_is_compiler(part) for part in ast.walk(node))


def _is_compiler(part: Any) -> bool:
    return isinstance(part, ast.Name) and part.id in ("async_compile", "AsyncCompile")


def _stand_ins(mode: VirtualMode) -> dict[str, Any]:
    def taken(size: Any, stride: Any, dtype: Any) -> Any:
        with mode.making(GPU), torch._C.DisableTorchFunction():
            return torch.empty_strided(size, stride, dtype=dtype)

    def viewed(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        return tensor.as_strided(size, stride, tensor.storage_offset() + offset)

    return {
        "empty_strided_cuda": taken,
        "reinterpret_tensor": viewed,
        "assert_size_stride": _nothing,
        "assert_alignment": _nothing,
        "copy_if_misaligned": lambda tensor: tensor,
        "get_raw_stream": lambda device: 0,
        "extern_kernels": ExternKernels(mode),
        "torch": _Torch(),
    }


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class _Torch:
    cuda = types.SimpleNamespace(
        set_device=_nothing,
        synchronize=_nothing,
        _DeviceGuard=lambda device: contextlib.nullcontext(),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Kernel:
    """Does nothing; but where Triton has several configurations, its first launch tries them on clones of what it changes, and empties
    the card's cache between by writing a buffer as large (triton_heuristics.py, benchmarking.py)."""

    def __init__(self, mode: VirtualMode, made: ast.Call) -> None:
        self.log = mode.log
        source = made.args[1].value if len(made.args) > 1 and isinstance(made.args[1], ast.Constant) else ""
        text = source if isinstance(source, str) else ""
        self.is_to_be_tried = "@triton_heuristics.pointwise(" in text
        self.operands = list(_literal(text, r"'signature': (\{[^}]*\})"))
        self.changed = set(_literal(text, r"'mutated_arg_names': (\[[^\]]*\])"))

    def run(self, *given: Any, **named: Any) -> None:
        if not self.is_to_be_tried:
            return
        self.is_to_be_tried = False
        clones = list(self._clones(given))
        self.log.passing_all(clones, None)
        self.log.passing_within(torch.cuda.get_device_properties().L2_cache_size, clones)

    def _clones(self, given: Iterable[Any]) -> Iterator[int]:
        """As many as do not raise the peak; the others are copied to the host."""
        left = self.log.peak[GPU] - self.log.live[GPU]
        for name, operand in zip(self.operands, given, strict=False):
            if name in self.changed and isinstance(operand, torch.Tensor):
                size = int(operand.nbytes)
                if size <= left:
                    left -= size
                    yield size


def _literal(source: str, pattern: str) -> Any:
    found = re.search(pattern, source)
    return ast.literal_eval(found[1]) if found else ()


class ExternKernels:
    """Those of libraries: they write into the program's buffers, or return their own."""

    def __init__(self, mode: VirtualMode) -> None:
        self.mode = mode

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            if out is None:
                return getattr(torch, name)(*args, **kwargs)
            operation = getattr(getattr(torch.ops.aten, name, None), "default", None)
            if operation is not None:
                self._takes(operation, args, kwargs, out)
            return out

        return call

    def _takes(self, operation: Any, args: Any, kwargs: Any, out: Any) -> None:
        mode = self.mode
        sizes = mode.workspaces(operation, args, kwargs, out)
        signature = mode.signatures.number(operation, args, kwargs)
        mode.log.passing_all(sizes, signature)
        matrices = [item for item in (*args, out) if isinstance(item, torch.Tensor) and item.dim() > 1]
        if any(_is_odd(item) for item in matrices):
            mode.unfamiliar[PADDED] = mode.unfamiliar.get(PADDED, 0) + 1
            mode.log.perhaps(sum(int(item.nbytes) for item in matrices), None)


def _is_odd(matrix: Any) -> bool:
    return any(
        side > 1 and side * matrix.itemsize % _ALIGNED and matrix.dtype.is_floating_point
        for side in matrix.shape[-2:]
    )


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
