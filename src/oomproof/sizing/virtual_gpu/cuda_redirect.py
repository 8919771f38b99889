"""Sends what a script puts on "cuda" to the virtual card; tensors of the host stay real."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from .cuda_kernels import unknown_value
from .storage_log import GPU, HOST
from .virtual_mode import CARD, VirtualMode

Tensor = torch.Tensor
LARGE = 1 << 20  # bytes; above it a copy back to the host has no bytes either, and is counted


def is_cuda(device: Any) -> bool:
    if isinstance(device, bool) or device is None:
        return False
    if isinstance(device, int):
        return True
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


def _is_device(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] in ("cpu", "cuda", "meta", "mps", "xpu")
    return isinstance(value, torch.device) or (isinstance(value, int) and not isinstance(value, bool))


def asked_of_to(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The device, dtype and memory format of ``tensor.to(…)``."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    other = kwargs.get("other")
    for value in args:
        if isinstance(value, Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            dtype = value
        elif _is_device(value) and device is None:
            device = value
    if other is not None:
        device, dtype = other.device, other.dtype
    return device, dtype, kwargs.get("memory_format")


def stand_in(shape: Any, dtype: Any, known: Any = None) -> Any:
    """Values of the card, which nobody has, on the host."""
    value = known if known is not None else unknown_value(dtype)
    return torch.full(tuple(shape), value, dtype=dtype)


def elements_of(tensor: Any) -> Any:
    """Of a fake tensor, on the host: the true ones where they are known."""
    mode = tensor.fake_mode
    with torch._C.DisableTorchFunction():
        known = mode.known.elements(tensor) if isinstance(mode, VirtualMode) else None
        if known is not None:
            return known.clone()
        value = mode.uniform.value(tensor) if isinstance(mode, VirtualMode) else None
        if value is None and isinstance(mode, VirtualMode) and mode.uniform.is_truth(tensor):
            value = 0
        return stand_in(tensor.shape, tensor.dtype, value)


class Redirect(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, mode: VirtualMode) -> None:
        super().__init__()
        self.mode = mode
        self.active = True
        self.of_matrices: Any = None  # once there are sparse ones on the card
        self.as_parameter = 0  # a module is being moved: its tensors never become real
        self.handlers: dict[Any, Any] = {
            Tensor.to: self._to,
            Tensor.cuda: lambda func, args, kwargs: self.to_card(args[0]),
            Tensor.cpu: lambda func, args, kwargs: self.to_host(args[0]),
            Tensor.numpy: self._values,
            Tensor.pin_memory: lambda func, args, kwargs: args[0],
            Tensor.is_pinned: lambda func, args, kwargs: False,
            Tensor.get_device: self._index_of,
            Tensor.is_cuda.__get__: self._is_cuda,
            Tensor.is_cpu.__get__: lambda func, args, kwargs: not self._is_cuda(func, args, kwargs),
            Tensor.data_ptr: self._data_ptr,
            Tensor.type: self._type,
            Tensor.type_as: lambda func, args, kwargs: self._to(Tensor.to, args, kwargs),
            Tensor.copy_: self._copy,
            Tensor.record_stream: lambda func, args, kwargs: None,
            Tensor.share_memory_: self._share,
            torch.device: self._device,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or self.mode.compiling:
            return func(*args, **kwargs)
        if (
            self.of_matrices is not None
            and (done := self.of_matrices(func, args, kwargs)) is not NotImplemented
        ):
            return done
        handler = self.handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        if "device" in kwargs and is_cuda(kwargs["device"]):
            return self.make(func, args, kwargs)
        if kwargs.get("pin_memory"):  # a factory; without a driver nothing can be pinned
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)

    def make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A factory with ``device="cuda"``."""
        kwargs = {name: value for name, value in kwargs.items() if name not in ("pin_memory", "generator")}
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            return self.to_card(func(*args, **{**kwargs, "device": None}), learns=kwargs.get("requires_grad"))
        with self.mode.making(GPU):
            return func(*args, **{**kwargs, "device": "cpu"})

    def to_card(self, tensor: Any, dtype: Any = None, memory_format: Any = None, learns: Any = None) -> Any:
        if self.mode.is_on_card(tensor):
            wanted = {
                name: value for name, value in (("dtype", dtype), ("memory_format", memory_format)) if value
            }
            return tensor.to(**wanted) if wanted else tensor
        if tensor.requires_grad and torch.is_grad_enabled() and not tensor.is_leaf:
            return _Move.apply(tensor, self.mode, GPU, dtype)
        if tensor.is_sparse:
            raise NotImplementedError("sparse tensors on the GPU")
        moved = self.mode.like(tensor, GPU, dtype, memory_format)
        if not isinstance(tensor, FakeTensor):
            self.mode.uniform.arrived(tensor, moved)
            self.mode.known.arrived(tensor, moved)
        if learns or (tensor.requires_grad and torch.is_grad_enabled()):
            return (
                moved.requires_grad_()
                if learns or not tensor.is_leaf
                else _Move.apply(tensor, self.mode, GPU, dtype)
            )
        return moved

    def to_host(self, tensor: Any, dtype: Any = None) -> Any:
        if not isinstance(tensor, FakeTensor):
            return tensor if dtype is None else tensor.to(dtype)
        if not self.mode.is_on_card(tensor):
            return tensor if dtype is None else tensor.to(dtype)
        dtype = dtype or tensor.dtype
        with torch._C.DisableTorchFunction():
            known = self.mode.known.elements(tensor)
        if known is not None and not self.as_parameter and not tensor.requires_grad:
            return known.to(dtype, copy=True)
        if self.as_parameter or tensor.requires_grad or tensor.numel() * dtype.itemsize > LARGE:
            if tensor.requires_grad and torch.is_grad_enabled():
                return _Move.apply(tensor, self.mode, HOST, dtype)
            return self.mode.like(tensor, HOST, dtype)
        return elements_of(tensor).to(dtype)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        device, dtype, memory_format = asked_of_to(args[1:], kwargs)
        if device is None:
            return func(*args, **kwargs)
        if is_cuda(device):
            return self.to_card(args[0], dtype, memory_format)
        if isinstance(args[0], FakeTensor) and torch.device(device).type == "cpu":
            return self.to_host(args[0], dtype)
        return func(*args, **kwargs)

    def _values(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if isinstance(tensor, FakeTensor):
            tensor = elements_of(tensor)
        return func(tensor, *args[1:], **kwargs)

    def _index_of(self, func: Any, args: Any, kwargs: Any) -> int:
        return 0 if self.mode.is_on_card(args[0]) else -1

    def _is_cuda(self, func: Any, args: Any, kwargs: Any) -> bool:
        return self.mode.is_on_card(args[0])

    def _data_ptr(self, func: Any, args: Any, kwargs: Any) -> int:
        if isinstance(args[0], FakeTensor):
            # tells tied tensors from others; nothing may read there
            return int(args[0].untyped_storage()._cdata)
        return int(func(*args, **kwargs))

    def _type(self, func: Any, args: Any, kwargs: Any) -> Any:
        kind = args[1] if len(args) > 1 else kwargs.get("dtype")
        if isinstance(args[0], FakeTensor) and kind is None and self.mode.is_on_card(args[0]):
            return f"torch.cuda.{func(*args, **kwargs).rpartition('.')[2]}"
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            return self.to_card(args[0], torch.empty(0).type("torch." + kind.rpartition(".")[2]).dtype)
        return func(*args, **kwargs)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """From the card into a real tensor of the host: nothing to copy."""
        target, source = args[0], args[1] if len(args) > 1 else kwargs["other"]
        if isinstance(source, FakeTensor) and not isinstance(target, FakeTensor):
            return target
        return func(*args, **kwargs)

    def _device(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A number alone is a card's; a torch that was built without CUDA knows of none."""
        index = args[0] if args else kwargs.get("type")
        return torch.device("cuda", index) if isinstance(index, int) else func(*args, **kwargs)

    def _share(self, func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if isinstance(args[0], FakeTensor) else func(*args, **kwargs)

    def copied(self, tensor: Any, memo: Any) -> Any:
        if id(tensor) not in memo:
            copied = self.mode.like(tensor, GPU if self.mode.is_on_card(tensor) else HOST)
            if getattr(tensor, "_is_param", False):
                copied._is_param = True
            memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
            if tensor.grad is not None:
                copied.grad = self.mode.like(tensor.grad, GPU if self.mode.is_on_card(tensor.grad) else HOST)
        return memo[id(tensor)]


class _Move(torch.autograd.Function):  # type: ignore[misc]
    """Between host and card with a gradient that comes back."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mode: VirtualMode, where: str, dtype: Any) -> Any:
        ctx.mode, ctx.dtype = mode, tensor.dtype
        ctx.back = GPU if mode.is_on_card(tensor) else HOST
        return mode.like(tensor, where, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.mode.like(gradient, ctx.back, ctx.dtype), None, None, None


def follow_device_context(redirect: Redirect) -> None:
    """``with torch.device("cuda")`` and ``set_default_device``: torch's own mode lies below ours."""
    from torch.utils import _device

    original = _device.DeviceContext.__torch_function__
    constructors = _device._device_constructors()

    def made(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if redirect.active and func in constructors and is_cuda(kwargs.get("device") or self.device):
            return redirect.make(func, args, kwargs)
        return original(self, func, types, args, kwargs)

    _device.DeviceContext.__torch_function__ = made


def follow_threads(redirect: Redirect) -> None:
    """A mode is of one thread; those that the script starts, such as one that fetches the next batch, see the card too."""
    run = threading.Thread.run

    def followed(thread: threading.Thread) -> None:
        with redirect:
            run(thread)

    setattr(threading.Thread, "run", followed)  # noqa: B010


def show_bodies() -> None:
    """torch's functions in Python give themselves to a mode as a whole, which then sees nothing of what they call. Here they
    run as they are unless an operand is of a class with its own way."""
    import torch._tensor
    import torch.functional
    import torch.nn.functional
    import torch.nn.init

    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    none = torch._C._disabled_torch_function_impl  # the compiler's tensors

    def own_way(tensors: Any) -> bool:
        return any(
            isinstance(item, Tensor) and type(item) not in plain and type(item).__torch_function__ is not none
            for item in tensors
        )

    for module in (torch.functional, torch.nn.functional, torch.nn.init, torch._tensor, torch.autograd):
        for name, test in (
            ("has_torch_function", own_way),
            ("has_torch_function_unary", lambda item: own_way((item,))),
            ("has_torch_function_variadic", lambda *items: own_way(items)),
        ):
            if hasattr(module, name):
                setattr(module, name, test)


def show_devices(redirect: Redirect) -> None:
    """What Python sees of a fake tensor: the card it is on, and methods that torch has in Python."""
    FakeTensor.__deepcopy__ = lambda tensor, memo: redirect.copied(tensor, memo)
    FakeTensor.__array__ = lambda tensor, dtype=None, **given: elements_of(tensor).numpy()
    FakeTensor.tolist = lambda tensor: elements_of(tensor).tolist()
    FakeTensor.__reduce_ex__ = lambda tensor, protocol: (stand_in, (tuple(tensor.shape), tensor.dtype))
    FakeTensor.device = property(_seen_device)
    FakeTensor.__repr__ = lambda tensor, **given: (
        f"tensor(…, device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"
    )
    FakeTensor.__format__ = lambda tensor, spec: (
        format(tensor.item(), spec) if tensor.dim() == 0 else repr(tensor)
    )


def _seen_device(tensor: Any) -> torch.device:
    mode = tensor.fake_mode
    if isinstance(mode, VirtualMode):
        return mode.seen_device(tensor)
    return torch.device("meta") if mode.in_kernel_invocation else tensor.fake_device  # the compiler's


__all__ = [
    "CARD",
    "Redirect",
    "follow_device_context",
    "follow_threads",
    "is_cuda",
    "show_bodies",
    "show_devices",
]


_NAMES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64, "IntTensor": torch.int32, "ShortTensor": torch.int16, "CharTensor": torch.int8,
    "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


class _CardType(type):
    """Called with sizes, with numbers or with a tensor; asked with ``isinstance``; given to ``tensor.type(…)``."""

    dtype: Any
    redirect: Redirect

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor) and bool(value.is_cuda) and value.dtype is cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return made(cls.redirect, cls.dtype, args)


def made(redirect: Redirect, dtype: Any, args: Any) -> Any:
    """What ``torch.cuda.FloatTensor(…)`` and ``tensor.new(…)`` make."""
    first = args[0] if args else 0
    if isinstance(first, Tensor):
        return redirect.to_card(first, dtype)
    if isinstance(first, (int, torch.Size)):
        sizes = first if isinstance(first, torch.Size) else args or (0,)
        return redirect.make(torch.empty, tuple(sizes), {"dtype": dtype, "device": "cuda"})
    return redirect.to_card(torch.as_tensor(first).to(dtype))


def install(redirect: Redirect) -> None:
    host_types = {getattr(torch, name): dtype for name, dtype in _NAMES.items() if hasattr(torch, name)}
    for name, dtype in _NAMES.items():
        body = {"dtype": dtype, "redirect": redirect, "__module__": "torch.cuda"}
        setattr(torch.cuda, name, _CardType(name, (), body))
    typed = redirect.handlers[Tensor.type]

    def change_type(func: Any, args: Any, kwargs: Any) -> Any:
        kind = args[1] if len(args) > 1 else kwargs.get("dtype")
        if isinstance(kind, _CardType):
            return redirect.to_card(args[0], kind.dtype)
        if isinstance(kind, type) and kind in host_types:
            return redirect.to_host(args[0], host_types[kind])
        return typed(func, args, kwargs)

    def new(func: Any, args: Any, kwargs: Any) -> Any:
        if redirect.mode.is_on_card(args[0]):
            return made(redirect, args[0].dtype, args[1:])
        return func(*args, **kwargs)

    def default(kind: Any) -> None:
        card = isinstance(kind, _CardType) or str(kind).startswith("torch.cuda.")
        dtype = (
            kind.dtype if isinstance(kind, _CardType) else _NAMES[str(kind).rpartition(".")[2].rstrip("'>")]
        )
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda" if card else "cpu")

    redirect.handlers[Tensor.type] = change_type
    redirect.handlers[Tensor.new] = new
    torch.set_default_tensor_type = default
