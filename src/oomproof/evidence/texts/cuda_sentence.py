"""The numbers of PyTorch's out-of-memory sentence, in every wording since 1.0 (CUDA, HIP, XPU, MPS)."""

from __future__ import annotations

import re

from oomproof.evidence.texts.finding import GpuNumbers
from oomproof.evidence.texts.quantities import SIZE, amount, size_after

_INDEX = re.compile(r"GPU:? ?(\d+)\b|on device (\d+)|device[: ](\d+)")
_REQUESTED = re.compile(
    rf"(?:[Tt]r(?:ied|ying) to allocate|[Aa]llocating|[Cc]annot allocate|[Rr]equested(?:\s{{1,40}}:| memory:)?|Need:|CUDA (?:host )?[cm]?alloc|failed to allocate|[Ff]ailed to cudaMalloc) {SIZE}"
    r"|(?:requested buffer|allocation) of size (\d+)\b|size::(\d+)\b|GPU memory \((\d+) bytes\)|available failed, (\d+) >|[Rr]equested memory: (\d{4,})\b|\bstream \w+ size (\d+) bytes \("
)
# "capacty" was PyTorch 2.1's spelling; cudaMallocAsync's backend prints a table instead
_TOTAL = re.compile(rf"(?:total capaci?ty of|Device limit\s{{1,40}}:) {SIZE}")
_TOTAL_OLD = re.compile(rf"{SIZE} total(?: capacity|$)")  # a paste may end there
_FREE = re.compile(rf"of which {SIZE} is free")
_FREE_PADDLE = re.compile(rf"available memory is only\s{{1,80}}{SIZE}")
_FREE_OLD = re.compile(rf"{SIZE} free\b|; Free {SIZE}")
_ALLOCATED = re.compile(rf"{SIZE} is allocated by PyTorch")
# of its own table's lines, perhaps escaped into one
_FREE_TABLE = re.compile(rf"Free \(according to CUDA\)\s{{0,40}}: {SIZE}")
_ALLOCATED_TABLE = re.compile(rf"Currently allocated\s{{1,40}}: {SIZE}")
_ALLOCATED_OLD = re.compile(rf"{SIZE} already allocated")
_ALLOCATED_PADDLE = re.compile(rf"{SIZE} memory has been allocated")
_ALLOCATED_MPS = re.compile(rf"MPS allocated: {SIZE}")
_SPARE = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{SIZE} (?:reserved in total|cached)")
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_OTHERS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
_WARNING = re.compile(r"allocate (\d+) bytes \(free: (\d+), total: (\d+)\)")  # the C++ warning, plain bytes


def gpu_numbers(text: str) -> GpuNumbers | None:
    """None where the text holds no number at all. ``neighbours`` only where the text names them."""
    index = _INDEX.search(text)
    total, free = size_after(_TOTAL, text), _first(text, _FREE, _FREE_PADDLE, _FREE_TABLE)
    asked = _REQUESTED.search(text)
    plain = asked and (asked[3] or asked[4] or asked[5] or asked[6] or asked[7] or asked[8])
    requested = int(plain) if plain else amount(asked[1], asked[2]) if asked else None
    warning = _WARNING.search(text)
    if warning:
        requested, free, total = int(warning[1]), int(warning[2]), int(warning[3])
    total = size_after(_TOTAL_OLD, text) if total is None else total
    free = _either(_FREE_OLD, text) if free is None else free
    allocated = _first(text, _ALLOCATED, _ALLOCATED_OLD, _ALLOCATED_MPS, _ALLOCATED_PADDLE, _ALLOCATED_TABLE)
    spare = size_after(_SPARE, text)
    reserved = size_after(_RESERVED, text)
    if spare is None and reserved is not None and allocated is not None:
        spare = max(0, reserved - allocated)
    own, others = _processes(text, allocated, spare)
    neighbours = sum(size for size, _ in others) if others else None
    card = next((int(group) for group in index.groups() if group), None) if index else None
    pids = tuple(pid for _, pid in sorted(others, reverse=True))
    numbers = GpuNumbers(card, total, free, requested, allocated, spare, own, neighbours, pids)
    figures = (total, free, requested, allocated, own, neighbours)
    return numbers if any(value is not None for value in figures) else None


def _either(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return amount(match[1] or match[3], match[2] or match[4]) if match else None


def _first(text: str, *patterns: re.Pattern[str]) -> int | None:
    return next((size for pattern in patterns if (size := size_after(pattern, text)) is not None), None)


def _processes(
    text: str, allocated: int | None, spare: int | None
) -> tuple[int | None, list[tuple[int, int]]]:
    """Who holds the card: this process, and (bytes, pid) of the others it names."""
    own = size_after(_OWN, text)
    named = [
        (size, int(process[1][:10]))
        for process in _OTHERS.finditer(text)
        if (size := amount(process[2], process[3])) is not None
    ]
    if own is None and named and allocated is not None:
        # PyTorch 2.1 and 2.2 list this process among the others: it is the smallest that can hold
        # what PyTorch itself has reserved (two decimals are printed, hence the slack)
        floor = (allocated + (spare or 0)) * 0.99
        mine = min((process for process in named if process[0] >= floor), default=None)
        if mine is not None:
            named.remove(mine)
            own = mine[0]
    return own, named
