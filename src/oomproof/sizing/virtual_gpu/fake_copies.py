"""A model, its optimizer and a batch once more, on the virtual card: nothing of the originals is touched."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from .cuda_queries import Refused
from .cuda_redirect import LARGE, Redirect
from .nested_tensors import tensors
from .storage_log import GPU, HOST
from .virtual_mode import VirtualMode

_MODULES = (
    "torch", "torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams", "torch.cuda.graphs",
    "torch.cuda.nvtx", "torch.accelerator", "torch.accelerator.memory", "torch.backends.cuda", "torch.backends.cudnn",
    "torch.version", "torch.distributed", "torch.distributed.distributed_c10d", "torch.nn.parallel",
    "torch.nn.parallel.distributed", "torch.functional", "torch.nn.functional", "torch.nn.init", "torch._tensor",
    "torch.autograd", "torch.serialization",
)  # fmt: skip
_FLAGS = (
    ("cudnn", "benchmark"), ("cudnn", "deterministic"), ("cudnn", "enabled"), ("cudnn", "allow_tf32"), ("cuda.matmul", "allow_tf32"),
)  # fmt: skip


def _spaces() -> list[Any]:
    from torch.utils import _device

    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    classes = [
        FakeTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler,
        torch.autocast, torch.nn.DataParallel, torch.nn.RNNBase, _device.DeviceContext,
    ]  # fmt: skip
    return [*modules, *classes]


def _containers() -> list[Any]:
    """Hooks of all modules and optimizers, and the lists of kinds of tensors: changed in place."""
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers
    from torch.utils import _foreach_utils

    found = [value for name, value in vars(modules).items() if name.startswith("_global_")]
    found += [value for name, value in vars(optimizers).items() if name.startswith("_global_")]
    found += [getattr(module, "_foreach_supported_types", None) for module in (optimizers, _foreach_utils)]
    return [value for value in found if isinstance(value, (dict, list))]


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Also the state of the random numbers, and the settings that a step may change."""
    spaces = [(space, dict(vars(space))) for space in _spaces()]
    containers = [(value, value.copy()) for value in _containers()]
    flags = [(owner, name, getattr(owner, name)) for owner, name in _owners()]
    numbers, generator = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy is not None else None
    settings = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    try:
        yield
    finally:
        for space, before in spaces:
            _put_back(space, before)
        for value, before in containers:
            value.clear()
            value.update(before) if isinstance(value, dict) else value.extend(before)
        for owner, name, before in flags:
            if getattr(owner, name) != before:
                setattr(owner, name, before)
        random.setstate(numbers)
        torch.set_rng_state(generator)
        if numpy is not None:
            numpy.random.set_state(arrays)
        torch.set_default_dtype(settings[0])
        torch.set_grad_enabled(settings[1])
        if torch.get_num_threads() != settings[2]:
            torch.set_num_threads(settings[2])


def _owners() -> Iterator[tuple[Any, str]]:
    for path, name in _FLAGS:
        owner: Any = torch.backends
        for part in path.split("."):
            owner = getattr(owner, part)
        try:
            getattr(owner, name)
        except (AttributeError, RuntimeError):  # set by torch's newer names only
            continue
        yield owner, name


def _put_back(space: Any, before: dict[str, Any]) -> None:
    now = dict(vars(space))
    for name, value in now.items():
        if name not in before:
            if not isinstance(value, types.ModuleType):  # a module that was imported meanwhile stays
                delattr(space, name)
        elif value is not before[name]:
            setattr(space, name, before[name])
    for name in before.keys() - now.keys():
        setattr(space, name, before[name])


_PLAIN = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter))


class GuardedRedirect(Redirect):
    """Tensors of the user's own, of which there are copies, may not be used by the step: it would change them."""

    forbidden: frozenset[int] = frozenset()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.forbidden and any(id(tensor) in self.forbidden for tensor in tensors((args, kwargs))):
            raise Refused(
                "the step uses a model, an optimizer or a tensor of yours that it is not given; write it with its arguments alone: step(model, optimizer, batch)"
            )
        return super().__torch_function__(func, types, args, kwargs)


class FakeCopies:
    """``home``: where the model is now: what is there too comes to the card, what is elsewhere stays on the host, with its values."""

    def __init__(self, mode: VirtualMode, model: Any) -> None:
        self.mode = mode
        self.memo: dict[int, Any] = {}
        self.originals: list[Any] = []  # keeps their ids theirs
        for tensor in tensors(model):
            _check(tensor)  # also those of classes that copy themselves
        self.home = next((tensor.device.type for tensor in tensors(model)), "cuda")

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Every tensor, wherever it is in what is copied."""

        def copied(tensor: Any, memo: dict[int, Any]) -> Any:
            if id(tensor) not in memo:
                memo[id(tensor)] = self._copy(tensor)
            return memo[id(tensor)]

        owners = (torch.Tensor, torch.nn.Parameter)
        before = [owner.__dict__["__deepcopy__"] for owner in owners]
        for owner in owners:
            owner.__deepcopy__ = copied
        try:
            yield
        finally:
            for owner, original in zip(owners, before, strict=True):
                owner.__deepcopy__ = original

    def of(self, value: Any, what: str) -> Any:
        try:
            with self.copying():
                return copy.deepcopy(value, self.memo)
        except (TypeError, RuntimeError, AttributeError, NotImplementedError) as error:
            first = (str(error).splitlines() or [""])[0][:160]
            raise Refused(
                f"the {what} cannot be copied ({type(error).__name__}: {first}); size the script instead: oomproof size -- CMD"
            ) from error

    def optimizer(self, optimizer: Any) -> Any:
        """Counters of steps stay numbers of the host, as torch keeps them for a card."""
        for state in getattr(optimizer, "state", {}).values():
            for tensor in tensors(state):
                if tensor.dim() == 0 and tensor.device.type == "cpu" and id(tensor) not in self.memo:
                    self.originals.append(tensor)
                    self.memo[id(tensor)] = tensor.detach().clone()
        return self.of(optimizer, "optimizer")

    def _copy(self, tensor: Any) -> Any:
        _check(tensor)
        self.originals.append(tensor)
        on_card = tensor.device.type in (self.home, "cuda")
        if not on_card and tensor.nbytes <= LARGE:
            made = tensor.detach().clone()
            return made.requires_grad_(tensor.requires_grad)
        made = self.mode.like(tensor, GPU if on_card else HOST)
        if isinstance(tensor, torch.nn.Parameter):
            made._is_param = True
        for name, value in getattr(tensor, "__dict__", {}).items():
            if not hasattr(made, name):
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(made, name, value)
        if tensor.is_leaf:
            made.requires_grad_(tensor.requires_grad)
            if tensor.grad is not None:
                made.grad = self.mode.like(tensor.grad, GPU if on_card else HOST)
        return made

    def function(self, step: Any) -> Any:
        """The same function, with what it takes from outside (a scaler, a schedule, the model itself) copied as well."""
        if isinstance(step, types.MethodType):
            owner = self.of(step.__self__, "object that the step belongs to")
            return types.MethodType(step.__func__, owner)
        if not isinstance(step, types.FunctionType):
            return self.of(step, "step") if not isinstance(step, types.BuiltinFunctionType) else step
        space = dict(step.__globals__)
        return self._function(step, space, {})

    def _function(self, function: types.FunctionType, space: dict[str, Any], known: dict[int, Any]) -> Any:
        if id(function) in known:
            return known[id(function)]
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(
            function.__code__, space, function.__name__, function.__defaults__, cells or None
        )
        made.__kwdefaults__ = function.__kwdefaults__
        known[id(function)] = made
        for name in names_in(function.__code__) & function.__globals__.keys():
            space[name] = self._outside(function.__globals__[name], function, space, known)
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is empty yet
                cell.cell_contents = self._outside(original.cell_contents, function, space, known)
        return made

    def _outside(
        self, value: Any, function: types.FunctionType, space: dict[str, Any], known: dict[int, Any]
    ) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value, space, known) if value.__globals__ is function.__globals__ else value
        if isinstance(value, _copied_classes()) or (
            isinstance(value, (list, tuple, dict)) and next(tensors(value), None) is not None
        ):
            return self.of(value, f"{type(value).__name__} that the step uses")
        return value


def _check(tensor: Any) -> None:
    if isinstance(tensor, UninitializedTensorMixin):
        raise Refused(
            "modules whose size is not known yet (Lazy…) cannot be followed; pass a batch through the model first"
        )
    if type(tensor) not in _PLAIN and not isinstance(tensor, FakeTensor):
        raise Refused(f"tensors of the class {type(tensor).__name__} cannot be followed without a GPU")
    if tensor.layout is not torch.strided:
        raise Refused("sparse tensors on the GPU cannot be followed")


def names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


def _copied_classes() -> tuple[type, ...]:
    return (
        torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler,
    )  # fmt: skip
