"""Everything of torch that the virtual GPU changes, put back: for a step that is sized inside its user's own process."""

from __future__ import annotations

import contextlib
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

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
