"""Makes an operation of its signature, runs it on the card, and notes what it took beyond its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

DEVICE = "cuda"
# bytes of a tensor that is made and freed right before the operation, to find its place in the trace
_MARK = 512 * 1009
_ENTRIES = 20000  # of the allocator's history
_STEPS = 400  # of a workspace's history: beyond that its peak has to do


class TooLarge(Exception):
    """Not tried: the card has no memory for it now."""


def _operation(name: str) -> Any:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def operand_bytes(value: Any) -> int:
    """Of a signature: what its tensors take."""
    if isinstance(value, list):
        return sum(operand_bytes(item) for item in value)
    if isinstance(value, dict) and "tensor" in value:
        last = sum((size - 1) * step for size, step in zip(value["shape"], value["strides"]))  # noqa: B905 - 3.9
        return (last + 1) * getattr(torch, value["tensor"]).itemsize if all(value["shape"]) else 0
    return sum(operand_bytes(item) for item in value.values()) if isinstance(value, dict) else 0


def operands(value: Any) -> Any:
    """Values do not matter, but indexes must be inside: zeros."""
    if isinstance(value, list):
        return [operands(item) for item in value]
    if isinstance(value, dict) and "dtype" in value:
        return getattr(torch, value["dtype"])
    if isinstance(value, dict):
        dtype = getattr(torch, value["tensor"])
        tensor = torch.empty_strided(value["shape"], value["strides"], dtype=dtype, device=DEVICE)
        return tensor if dtype.is_floating_point or dtype.is_complex else tensor.zero_()
    return value


def _set_flags(flags: Any, matrix: bool) -> None:
    cudnn = torch.backends.cudnn
    cudnn.benchmark = flags.get("benchmark", False)
    cudnn.deterministic = flags.get("deterministic", False)
    cudnn.enabled = flags.get("cudnn", True)
    if matrix:
        torch.backends.cuda.matmul.allow_tf32 = flags.get("tf32", False)
    else:
        cudnn.allow_tf32 = flags.get("tf32", True)


def _prepared(signature: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """Backward of attention wants what its forward returned, which is the card's own."""
    name = signature["op"]
    args = operands(signature["args"])
    kwargs = {key: operands(value) for key, value in signature.get("kwargs", {}).items()}
    if name == "aten._scaled_dot_product_flash_attention_backward.default":
        _, query, key, value, *_ = args
        dropout, causal = args[10], args[11]
        with torch.no_grad():
            found = torch.ops.aten._scaled_dot_product_flash_attention.default(
                query, key, value, dropout, causal, False, **kwargs
            )
        args[4], args[5] = found[0], found[1]
        args[6:10] = found[2:6]
        args[12], args[13] = found[6], found[7]
    elif name == "aten._scaled_dot_product_efficient_attention_backward.default":
        _, query, key, value, bias, *_ = args
        dropout, causal = args[9], args[11] if len(args) > 11 else False
        with torch.no_grad():
            found = torch.ops.aten._scaled_dot_product_efficient_attention.default(
                query, key, value, bias, True, dropout, causal, **kwargs
            )
        args[5], args[6], args[7], args[8] = found[0], found[1], found[2], found[3]
    elif name == "aten._scaled_dot_product_cudnn_attention_backward.default":
        _, query, key, value, *_ = args
        with torch.no_grad():
            found = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
                query, key, value, args[8], True, args[13], args[14], False, **kwargs
            )
        args[4], args[5], args[6], args[7] = found[0], found[1], found[6], found[7]
        args[9:13] = found[2:6]
    return _operation(name), args, kwargs


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def measure(signature: Any, free: int) -> dict[str, Any]:
    """``later``: what it takes each time; ``first``, where it differs: the first time (cuDNN's search, libraries that start).

    Each is a list: bytes of an allocation, minus the position (from 1) of the one that is given back, 0 where the allocator
    gave its cached segments back. ``extra``: the most it held at once; ``results``: bytes it returned."""
    wanted = operand_bytes(signature["args"])
    if 3 * wanted > free:
        raise TooLarge(f"its operands take {wanted >> 20} MiB, {free >> 20} MiB are free on the card")
    _set_flags(signature.get("flags", {}), signature["op"].endswith("mm.default"))
    operation, args, kwargs = _prepared(signature)
    torch.cuda.synchronize()
    first = _once(operation, args, kwargs)
    later = _once(operation, args, kwargs)
    found = {"extra": later[0], "later": later[1], "results": later[2]}
    if first[1] != later[1]:
        found["first_extra"], found["first"] = first[:2]
    return found


def _once(operation: Any, args: Any, kwargs: Any) -> tuple[int, list[int], int]:
    traced = _trace_on()
    torch.empty(_MARK, dtype=torch.uint8, device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = operation(*args, **kwargs)
    torch.cuda.synchronize()
    peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    extra = max(0, peak - max(before, after))
    steps = _traced_steps() if traced else None
    results = sum(
        {
            tensor.untyped_storage().data_ptr(): int(tensor.untyped_storage().nbytes())
            for tensor in _tensors(out)
        }.values()
    )
    del out
    if steps is None or len(steps) > _STEPS:
        steps = [extra, -1] if extra else []
    return extra, steps, results


def _trace_on() -> bool:
    """Off and on: that empties it."""
    try:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)
    except Exception:  # a torch with other names for it
        return False
    return True


def _traced_steps() -> list[int] | None:
    try:
        traces = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(None)
        return temporaries(traces[torch.cuda.current_device()])
    except Exception:  # a torch that writes its history down otherwise: the peak has to do
        return None


def temporaries(entries: Any) -> list[int]:
    """Of a trace: what was taken and given back behind the mark. Results stay, and so are left out."""
    marks = [
        at
        for at, entry in enumerate(entries)
        if entry["action"] in ("free_completed", "free_requested") and entry["size"] == _MARK
    ]
    begin = marks[-1] + 1 if marks else 0
    taken: list[tuple[int, int]] = []  # address, bytes
    live: dict[int, int] = {}  # address → index into taken
    order: list[int] = []  # index + 1 of what is taken, minus that of what is given back, 0 for emptied
    for entry in entries[begin:]:
        action, address = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            live[address] = len(taken)
            taken.append((address, entry["size"]))
            order.append(len(taken))
        elif action in ("free_requested", "free_completed") and address in live:
            order.append(-live.pop(address) - 1)
        elif action == "segment_free" and (not order or order[-1] != 0):
            order.append(0)
    kept = set(live.values())
    places: dict[int, int] = {}
    steps: list[int] = []
    for step in order:
        if step > 0 and step - 1 not in kept:
            places[step] = len(places) + 1
            steps.append(taken[step - 1][1])
        elif step < 0:
            steps.append(-places[-step])
        elif step == 0:
            steps.append(0)
    return steps


# What the card takes that no tensor shows, after a small training step of each kind: context, libraries, their workspaces.


def measure_constants(used: Callable[[], int], before: int) -> dict[str, int]:
    """Bytes. ``used``: of the card, by anybody; ``before``: the same before this process came to it."""
    found: dict[str, int] = {}

    def note(name: str) -> None:
        torch.cuda.synchronize()
        found[name] = used() - before - torch.cuda.memory_reserved()

    torch.zeros(1, device="cuda")
    note("context")
    _matrices(found)
    note("with_matrices")
    _attention()
    note("with_attention")
    _convolutions()
    note("with_convolutions")
    torch.cuda.empty_cache()
    return found


def _matrices(found: dict[str, int]) -> None:
    """cuBLAS takes a workspace a handle and stream, and backward runs in a thread with a handle of its own."""
    layer = nn.Linear(1024, 1024, device="cuda")
    images = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        before = torch.cuda.memory_allocated()
        out = layer(images)
        torch.cuda.synchronize()
        found["matrix_workspace"] = max(0, torch.cuda.memory_allocated() - before - _rounded_size(out))
    out = layer(images)
    gradient = torch.ones_like(out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out.backward(gradient)
    torch.cuda.synchronize()
    made = _rounded_size(layer.weight.grad) + _rounded_size(layer.bias.grad)
    found["matrix_workspace_backward"] = max(0, torch.cuda.memory_allocated() - before - made)
    _train(layer, images)


def _attention() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda")
    tokens = torch.randn(4, 128, 256, device="cuda")
    _train(layer, tokens)
    _train(layer, tokens, torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16)


def _convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to("cuda")  # fmt: skip
    images = torch.randn(8, 3, 64, 64, device="cuda")
    _train(model, images)
    _train(model, images, torch.float16)


def _train(model: Any, inputs: Any, dtype: Any = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
            out = model(inputs).float()
            loss = nn.functional.cross_entropy(out.flatten(0, -2), out.detach().argmax(-1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss.item()


def _rounded_size(tensor: Any) -> int:
    return -(-int(tensor.untyped_storage().nbytes()) // 512) * 512
