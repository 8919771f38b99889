"""Inductor's program, run for its memory: buffers are taken, reused and given back in its order, kernels do nothing."""

from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .storage_log import GPU
from .virtual_mode import VirtualMode

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
                size = int(operand.numel() * operand.itemsize)
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
            mode.log.perhaps(sum(int(item.numel() * item.itemsize) for item in matrices), None)


def _is_odd(matrix: Any) -> bool:
    return any(
        side > 1 and side * matrix.itemsize % _ALIGNED and matrix.dtype.is_floating_point
        for side in matrix.shape[-2:]
    )
