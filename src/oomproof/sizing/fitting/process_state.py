"""What a process has once, as it was before a training was measured: random numbers, the modes of PyTorch, a scaler from outside."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


def outer_values(function: Any) -> list[Any]:
    """Each once, by identity."""
    found: dict[int, Any] = {}
    waiting, file = [function], _file_of(function)
    while waiting:
        for value in _values(waiting.pop()):
            if id(value) not in found:
                found[id(value)] = value
                if isinstance(value, types.FunctionType) and value.__code__.co_filename == file:
                    waiting.append(value)
    return list(found.values())


def _file_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(
        inspect.getattr_static(type(function), "__call__", None), "__code__", None
    )
    return code.co_filename if code is not None else ""


def _values(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _values(function.func)
    elif isinstance(function, types.MethodType):
        yield from vars(function.__self__).values() if hasattr(function.__self__, "__dict__") else ()
        yield from _values(function.__func__)
    elif isinstance(function, types.FunctionType):
        from oomproof.sizing.virtual_gpu.fake_copies import names_in

        names = names_in(function.__code__)
        yield from (function.__globals__[name] for name in names if name in function.__globals__)
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty yet
                yield cell.cell_contents
    elif isinstance(called := inspect.getattr_static(type(function), "__call__", None), types.FunctionType):
        yield from _values(types.MethodType(called, function))


Back = Callable[[], None]


def process_state(*functions: Any) -> Back:
    """What puts it back, as often as it is called: measured or not, the training has the same numbers. ``functions``: whose own generators count too."""
    parts = [*_generators(), *_modes()]
    for function in functions:
        for value in outer_values(function):
            # a stand-in of the user's may not bear to be looked at
            with contextlib.suppress(Exception):
                parts += _of_value(value)

    def back() -> None:
        for part in parts:
            part()

    return back


def _generators() -> Iterator[Back]:
    import torch

    python, generator = random.getstate(), torch.get_rng_state()
    yield lambda: random.setstate(python)
    yield lambda: torch.set_rng_state(generator)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        arrays = numpy.random.get_state()
        yield lambda: numpy.random.set_state(arrays)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        cards = torch.cuda.get_rng_state_all()
        yield lambda: torch.cuda.set_rng_state_all(cards)
    elif torch.cuda.is_available():
        # the measured steps start CUDA: its numbers then begin where they would have begun
        yield lambda: rewind(torch.cuda.default_generators) if torch.cuda.is_initialized() else None


def rewind(generators: Any) -> None:
    """Each to its first number."""
    for generator in generators:
        generator.manual_seed(generator.initial_seed())


def _modes() -> Iterator[Back]:
    import torch

    gradients, kind = torch.is_grad_enabled(), torch.get_default_dtype()
    yield lambda: torch.set_grad_enabled(gradients) and None
    yield lambda: torch.set_default_dtype(kind)
    device = _default_device(torch)
    # set only where it changed: a default device, even the usual one, costs time in every call
    yield lambda: None if _default_device(torch) == device else torch.set_default_device(device)


def _default_device(torch: Any) -> Any:
    """None: none is set."""
    return getattr(
        getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None), "device", None
    )


def _of_value(value: Any) -> Iterator[Back]:
    import torch

    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, torch.utils.data.DataLoader):
        value = value.generator
    if isinstance(value, torch.Generator):
        state = value.get_state()
        yield lambda: value.set_state(state) and None
    elif type(value) is random.Random:
        python = value.getstate()
        yield lambda: value.setstate(python)
    elif numpy is not None and isinstance(value, numpy.random.Generator):
        bits = copy.deepcopy(value.bit_generator.state)
        yield lambda: setattr(value.bit_generator, "state", copy.deepcopy(bits))
    elif numpy is not None and isinstance(value, numpy.random.RandomState):
        arrays = value.get_state()
        yield lambda: value.set_state(arrays)
    elif is_scaler(value):
        yield scaler_back(value)


def is_scaler(value: Any) -> bool:
    import torch

    return issubclass(type(value), torch.amp.GradScaler)


def scaler_back(scaler: Any) -> Back:
    """A step that was cut short leaves it between unscaling and updating: the next step would then be made with scaled gradients."""
    state = copy.deepcopy(scaler.state_dict())

    def back() -> None:
        if state:
            scaler.load_state_dict(copy.deepcopy(state))
        scaler._per_optimizer_states.clear()

    return back


def settle_scalers(error: BaseException | None) -> None:
    """Those that the frames of an attempt knew, wherever they came from."""
    step = error.__traceback__ if error is not None else None
    while step is not None:
        for value in list(step.tb_frame.f_locals.values()):
            if is_scaler(value):
                value._per_optimizer_states.clear()
        step = step.tb_next
