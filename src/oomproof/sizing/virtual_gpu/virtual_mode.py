"""Tensors without bytes, on a virtual card or in the host's memory, and a log of their storages."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from . import cuda_kernels
from .known_elements import KnownElements, SetElements, UniformTensors
from .nested_tensors import fakes
from .operation_signatures import Signatures, is_familiar, possible
from .storage_log import BACKWARD, GPU, HOST, PARTS_OF_STEP, StorageLog

_MANY = 16  # samples, from which on one pixel's filters go to oneDNN with one thread too
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def copies(func: Any, args: Any, out: Any) -> int:
    """Bytes beyond operands and results, at most."""
    if func is aten.convolution.default:
        image, weight, stride, transposed, groups = (args[place] for place in (0, 1, 3, 6, 8))
        is_blocked = _is_blocked(image, weight, stride)
        return _forward(image, weight, out, stride, transposed, groups) if is_blocked else 0
    if func is aten.convolution_backward.default:
        gradient, image, weight, stride = (args[place] for place in (0, 1, 2, 4))
        transposed, groups, wanted = (args[place] for place in (7, 9, 10))
        is_blocked = _is_blocked(image, weight, stride)
        return _backward(image, weight, gradient, stride, transposed, groups, wanted) if is_blocked else 0
    return 0


def _is_blocked(image: Any, weight: Any, stride: Any) -> bool:
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    if image.dtype not in (torch.float32, torch.bfloat16, torch.float16) or image.dim() not in (3, 4, 5):
        return False
    last = _LAST.get(image.dim())
    for tensor in (image, weight):
        if last is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=last):
            return False
    pixel = _one_pixel(weight) and max(stride, default=1) == 1
    return not (pixel and image.shape[0] < _MANY and torch.get_num_threads() == 1)


def _one_pixel(weight: Any) -> bool:
    return bool(weight.shape[2:].numel() == 1)


def _block() -> int:
    """Channels, by the widest registers."""
    return 16 if "512" in torch.backends.cpu.get_cpu_capability() else 8


def _bytes(tensor: Any) -> int:
    return int(tensor.nbytes)


def _filled(tensor: Any, groups: int, block: int) -> int:
    """With its channels up to whole blocks; groups stay as they are."""
    channels = int(tensor.shape[1])
    if groups > 1 or not channels:
        return _bytes(tensor)
    return _bytes(tensor) // channels * (-(-channels // block) * block)


def _forward(image: Any, weight: Any, out: Any, stride: Any, transposed: bool, groups: int) -> int:
    block, made = _block(), _bytes(out)
    read = 0 if _is_read_as_it_is(image, groups, block, _one_pixel(weight)) else _filled(image, groups, block)
    most = max(read + _bytes(weight) - made, 0) + _filled(out, groups, block)
    return max(most, _spread(out, stride, groups, block)) if transposed else most


def _backward(
    image: Any, weight: Any, gradient: Any, stride: Any, transposed: bool, groups: int, wanted: Any
) -> int:
    """The image's gradient first; beside it that of the weights is computed."""
    block, most = _block(), 0
    if wanted[0]:
        most = _filled(image, groups, block) + max(0, _filled(gradient, groups, block) - _bytes(image))
        if not transposed:
            most = max(most, _spread(image, stride, groups, block))
    if wanted[1]:
        if groups == 1 and image.shape[1] < block and not _one_pixel(weight):
            block = 8  # there are no kernels for wider blocks
        read = 0 if _is_colours(image, groups) else _filled(image, groups, block)
        most = max(most, read + _filled(gradient, groups, block) + _bytes(weight))
    return most


def _spread(made: Any, stride: Any, groups: int, block: int) -> int:
    """What steps of more than one pixel spread out: once more than the others."""
    return 2 * _filled(made, groups, block) if max(stride, default=1) > 1 and groups == 1 else 0


def _is_read_as_it_is(image: Any, groups: int, block: int, one_pixel: bool) -> bool:
    few = groups == 1 and image.shape[1] < block and not one_pixel
    return few or _is_colours(image, groups)


def _is_colours(image: Any, groups: int) -> bool:
    channels = int(image.shape[1])
    return groups == 1 and (channels == 3 or (channels < 3 and _block() == 16))


aten = torch.ops.aten
_LOSSES = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
_PRODUCTS = {aten.mm.default, aten.addmm.default}
WATCHED = _LOSSES | _PRODUCTS
_MEAN = 1  # of torch's reductions
_MOST = 64


class BatchFacts:
    """``rows``: of losses that are the mean over them. ``squares``: n of products that are n × n: each sample with each other."""

    def __init__(self) -> None:
        self.norms = 0  # layers that take mean and variance of the batch
        self.rows: set[int] = set()
        self.squares: set[int] = set()

    def see(self, func: Any, args: Any, out: Any) -> None:
        if func in _LOSSES:
            if args[3] == _MEAN and len(self.rows) < _MOST:
                self.rows.add(int(args[1].numel()))
        elif out.shape[0] == out.shape[1] and len(self.squares) < _MOST:
            self.squares.add(int(out.shape[0]))

    def see_module(self, module: Any) -> None:
        kind = torch.nn.modules.batchnorm._BatchNorm
        self.norms += sum(part.training for part in module.modules() if isinstance(part, kind))


CARD = torch.device("cuda", 0)
TRACING, LOWERING = "tracing", "lowering"  # see `compiler_view` and `planned_graphs`
_CPU = torch.device("cpu")
_META = torch.device("meta")
_DROPOUT = torch.ops.aten.native_dropout.default  # makes its second result, the mask, first
_GRADIENTS = torch.ops.aten.convolution_backward.default
_ADD = torch.ops.aten.add.Tensor
_BACKWARD = PARTS_OF_STEP.index(BACKWARD)


@functools.cache
def _is_made_of_others(func: Any) -> bool:
    """A convolution with its bias, a norm: outside of `torch.inference_mode` only their parts come here."""
    return bool(func.namespace == "aten" and func._can_decompose())


class _Depth(threading.local):
    inside = 0  # an operation on fake tensors is under way: its own look at `device` must see what torch has
    creating: str | None = None  # where what this thread makes now is put
    in_kernel = False  # of torch's, on tensors that it takes for those of the meta device

    def __init__(self) -> None:
        self.entered: list[Any] = []  # torch's own stack of what was active before the mode was


class VirtualMode(FakeTensorMode):  # type: ignore[misc]
    """torch's fake tensors on "cpu", so that backward needs no driver; which of them are on the card is in the log."""

    def __init__(self, log: StorageLog, limit: float = 60.0) -> None:
        self.depth = _Depth()
        super().__init__(allow_non_fake_inputs=True)
        self.log = log
        self.known = KnownElements(log, limit)
        self.uniform = UniformTensors(log)
        self.set_elements = SetElements(log, self.uniform)
        self.one_at_a_time = threading.Lock()  # of threads: fake tensors keep their state in the mode
        self.scalars = 0
        self.convolutions = self.matrices = 0  # how often
        self.widened: dict[str, int] = {}
        self.unfamiliar: dict[str, int] = {}  # operation → how often
        self.solvers: set[str] = set()  # operations of linear algebra, which load a library of their own
        # bytes that kernels take for themselves, one after the other
        self.workspaces: Any = lambda *given: ()
        self.signatures = Signatures()
        self.batch_facts = BatchFacts()
        self.whole: dict[Any, Any] = {}  # operations of several, as the card has them
        self.compiling = (
            ""  # while torch's compiler works, on tensors of its own that stand for those of the card
        )

    # torch keeps these two in the mode as if there were one thread: another one would take its tensors for those of a kernel
    @property
    def in_kernel_invocation(self) -> bool:
        return self.depth.in_kernel

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self.depth.in_kernel = value

    @property
    def enter_stack(self) -> list[Any]:
        return self.depth.entered

    @enter_stack.setter
    def enter_stack(self, value: list[Any]) -> None:
        self.depth.entered = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        depth = self.depth
        if depth.inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        whole = self.whole.get(func)
        if whole is not None:  # in torch.inference_mode, which passes by the kernels in `library`
            with self:
                return whole(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_made_of_others(func):
            with self:
                return func.decompose(*args, **kwargs)
        depth.inside += 1
        try:
            with self.one_at_a_time, torch._C.DisableTorchFunction():
                handler = cuda_kernels.replaced(func)
                out = cuda_kernels.exact(self, func, args, kwargs)
                if out is None and handler is not None:
                    out = handler(self, func, args, kwargs)
                elif out is None:
                    out = super().__torch_dispatch__(func, types, args, kwargs)
                self._see_all(func, args, kwargs, out)
                self.set_elements.see(func, args, kwargs, out)
                self.uniform.see(func, args, kwargs, out)
                self.known.see(func, args, kwargs, out)
                if func in WATCHED:
                    self.batch_facts.see(func, args, out)
                return out
        finally:
            depth.inside -= 1

    def take(self, library: Any, op: Any, kernel: Any) -> None:
        """In place of torch's own kernel."""
        self.whole[op] = kernel
        for key in ("CPU", "AutogradCPU"):
            library.impl(op, kernel, key)

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation as part of one that is replaced."""
        return super().__torch_dispatch__(func, (), args, kwargs)

    def _see_all(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if func is _GRADIENTS and self.place_of(args) == GPU:
            self._see_gradients(args, kwargs, out)
            return
        where = self.depth.creating
        fresh = False
        for tensor in fakes(out[::-1] if func is _DROPOUT else out):
            if self.log.is_known(tensor.untyped_storage()):
                continue
            if where is None:
                where = self.place_of(args, kwargs)
            fresh = True
            self.log.see(tensor, where)
        if fresh and where == GPU:
            if func is _ADD and self.log.part == _BACKWARD:
                self._note_sum(args, out)
            sizes = self.workspaces(func, args, kwargs, out)
            self.log.passing_all(sizes, self.signatures.number(func, args, kwargs))
        elif fresh:
            self.log.passing(copies(func, args, out), HOST)
        self._see_unfamiliar(func, args, kwargs, out)

    def _see_unfamiliar(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if is_familiar(func) or self.place_of(args, list(kwargs.values())) != GPU:
            return
        if "linalg" in str(func):
            self.solvers.add(str(func))
        size = possible(func, args, kwargs, out)
        if size:
            self.unfamiliar[str(func)] = self.unfamiliar.get(str(func), 0) + 1
            self.log.perhaps(size, self.signatures.number(func, args, kwargs, str(func)))

    def _see_gradients(self, args: Any, kwargs: Any, out: Any) -> None:
        """Of a convolution: each is made and computed before the next one is."""
        signature = self.signatures.number(_GRADIENTS, args, kwargs)
        sizes = self.workspaces(_GRADIENTS, args, kwargs, out)
        for index, (tensor, size) in enumerate(zip(fakes(out), sizes, strict=True)):
            self.log.see(tensor, GPU)
            self.log.passing_all((size,), signature, first=not index)

    def _note_sum(self, args: Any, out: Any) -> None:
        """autograd adds up two gradients of one tensor in the first one's memory, but never in that of a tensor of another class,
        such as ours; see `virtual_run`."""
        operands = [tensor for tensor in args[:2] if isinstance(tensor, FakeTensor)]
        numbers = [self.log.number(tensor) for tensor in (*operands, out)]
        known = [number for number in numbers if number is not None]
        if len(known) == 3 and operands[0].shape == out.shape:
            self.log.sums[known[2]] = (known[0], known[1])

    def place_of(self, *given: Any) -> str:
        """The card if any operand is there."""
        for tensor in fakes(given):
            if self.log.where(tensor) == GPU:
                return GPU
        return HOST

    def is_on_card(self, tensor: Any) -> bool:
        if self.compiling:
            return isinstance(tensor, torch.Tensor)
        if not isinstance(tensor, FakeTensor):
            return False
        with torch._C.DisableTorchFunction():
            return self.log.where(tensor) == GPU

    def seen_device(self, tensor: Any) -> torch.device:
        if self.in_kernel_invocation:
            return _META
        if self.depth.inside or self.compiling:
            return tensor.fake_device
        return CARD if self.is_on_card(tensor) else _CPU

    @contextlib.contextmanager
    def making(self, where: str) -> Iterator[None]:
        before, self.depth.creating = self.depth.creating, where
        try:
            with self:
                yield
        finally:
            self.depth.creating = before

    def like(self, tensor: Any, where: str, dtype: Any = None, memory_format: Any = None) -> Any:
        """A new tensor of the same shape and order of dimensions, with its own storage."""
        if tensor.layout is not torch.strided:
            raise NotImplementedError("sparse tensors on the GPU")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            kept = memory_format if memory_format is not None else torch.preserve_format
            if isinstance(tensor, FakeTensor):
                shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            else:
                shape = tensor
            strides = torch.empty_like(shape, device="meta", memory_format=kept).stride()
            with self.making(where):
                return torch.empty_strided(tensor.shape, strides, dtype=dtype or tensor.dtype)
