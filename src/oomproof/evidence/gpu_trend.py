"""The trend of a run's memory on each card: what tensors use and what PyTorch has reserved, apart, and the rest of the process.

Without the agent only the driver tells, and that is all three together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from oomproof.evidence.heap_growth import growth_per_step, warm_since
from oomproof.evidence.run_trend import slices
from oomproof.recording.series import GpuRow, PhaseMark, Series
from oomproof.records import dataclass
from oomproof.trend.leaks import GROWING, GROWS, Trend, trend_of

ALLOCATED, RESERVED, OUTSIDE, USED = "allocated", "reserved", "outside", "used"

_LOOKS = 8  # of the allocator, before anything is said
_LATELY = 60.0  # seconds
_ALONG = 0.3  # of what was reserved


@dataclass(frozen=True, slots=True)
class GpuTrend:
    device: int
    what: str  # which of the figures the trend is of: the first that grows, else allocated; used: all that the driver counts
    trend: Trend
    limit: float | None
    limit_from: str  # "the card", "--gpu-limit…"
    end: float
    seen: float
    allocated: float | None  # now, in tensors
    reserved: float | None  # now, by PyTorch
    bytes_per_step: float | None
    seconds_per_step: float | None

    @property
    def is_fragmentation(self) -> bool:
        """Reserved grows while tensors use no more: pieces that do not fit the next request. No leak."""
        return self.what == RESERVED and self.trend.kind in GROWS


def gpu_trends(series: Series, limit: int | None = None) -> list[GpuTrend]:
    """Of each card that the run used, after loading; a card of too few looks is left out."""
    marks = series.phase_marks()
    begin = warm_since(marks)
    told = _by_card(series, begin)
    trends = [_of_allocator(series, device, looks, marks, limit) for device, looks in sorted(told.items())]
    known = set(told)
    trends += [
        found
        for device in sorted(series.cards_used(set()) - known)
        if (found := _of_driver(series, device, begin, marks, limit)) is not None
    ]
    return trends


def _by_card(series: Series, begin: float) -> dict[int, list[tuple[float, dict[str, Any]]]]:
    """What the allocators told of each card. Of several processes on one, the one that holds most."""
    looks: dict[tuple[int, int], list[tuple[float, dict[str, Any]]]] = {}
    names = ("device", "pid", "allocated", "reserved", "free", "total")
    for t, told in series.told_numbers("agent:allocator"):
        if t >= begin and all(isinstance(told.get(name), int) for name in names):
            looks.setdefault((told["device"], told["pid"]), []).append((t, told))
    cards: dict[int, list[tuple[float, dict[str, Any]]]] = {}
    for (device, _), of_process in looks.items():
        most = cards.get(device)
        if len(of_process) >= _LOOKS and (
            most is None or most[-1][1]["reserved"] < of_process[-1][1]["reserved"]
        ):
            cards[device] = of_process
    return cards


def _of_allocator(
    series: Series,
    device: int,
    looks: Sequence[tuple[float, dict[str, Any]]],
    marks: Sequence[PhaseMark],
    limit: int | None,
) -> GpuTrend:
    last = looks[-1][1]
    capacity, capacity_from = float(last["reserved"] + last["free"]), "the card"
    allowed = last.get("allowed")
    if limit is not None:
        capacity, capacity_from = float(limit), "--gpu-limit"
    elif isinstance(allowed, int) and allowed < capacity:
        capacity, capacity_from = float(allowed), "--gpu-limit, less what CUDA itself takes"
    above = _above(looks)
    tensors = [
        point
        for t, told in looks
        for point in ((t, float(told["allocated"])), (t, told["allocated"] + above))
    ]
    of_tensors = trend_of(tensors, capacity)
    what, trend = ALLOCATED, of_tensors
    if of_tensors.kind not in GROWS:
        of_reserved = trend_of([(t, float(told["reserved"])) for t, told in looks], capacity)
        if of_reserved.kind == GROWING and not _grew_along(looks, of_reserved):
            what, trend = RESERVED, of_reserved
        elif (of_rest := _outside(series, device, looks, capacity)) is not None:
            what, trend = OUTSIDE, of_rest
    begin, end = looks[0][0], looks[-1][0]
    per_step = growth_per_step(trend, marks, end)
    return GpuTrend(
        device, what, trend, capacity, capacity_from, end, end - begin, last["allocated"], last["reserved"], *per_step
    )  # fmt: skip


def _grew_along(looks: Sequence[tuple[float, dict[str, Any]]], reserved: Trend) -> bool:
    """Whether tensors took a good part of what was reserved meanwhile: then it is not the pieces."""
    since = [told["allocated"] for t, told in looks if reserved.since is None or t >= reserved.since]
    part = max(1, len(since) // 5)
    before, after = sorted(since[:part])[part // 2], sorted(since[-part:])[part // 2]
    return bool(after - before > _ALONG * reserved.grown)


def _above(looks: Sequence[tuple[float, dict[str, Any]]]) -> float:
    """What a step takes beyond what is held between steps: by PyTorch's peak, where that step was the one to raise it."""
    fresh = [
        told["peak"] - told["allocated"]
        for (_, before), (_, told) in pairwise(looks)
        if isinstance(told.get("peak"), int)
        and isinstance(before.get("peak"), int)
        and told["peak"] > before["peak"]
    ]
    return float(max(0, sorted(fresh)[len(fresh) // 2])) if fresh else 0.0


def _outside(
    series: Series, device: int, looks: Sequence[tuple[float, dict[str, Any]]], capacity: float
) -> Trend | None:
    """Of what the process holds on the card beside PyTorch's allocator, where that grows: other libraries' buffers. Only where
    the driver's numbers of the cards are the process's own."""
    use = series.gpu_use(device)
    if not use or use.at(looks[-1][0]) < looks[-1][1]["reserved"]:
        return None
    trend = trend_of(
        [(t, use.at(t) - told["reserved"]) for t, told in looks], capacity - looks[-1][1]["reserved"]
    )
    return trend if trend.kind == GROWING else None


def _of_driver(
    series: Series, device: int, begin: float, marks: Sequence[PhaseMark], limit: int | None
) -> GpuTrend | None:
    use = series.gpu_use(device)
    if not use or begin >= use.end:
        return None
    begin = max(begin, use.begin)
    rows = [row for row in series.newest(GpuRow, _LATELY) if row.idx == device]
    capacity = rows[-1].total - rows[-1].used + (rows[-1].job_used or 0) if rows else None
    level, level_from = (limit, "--gpu-limit") if limit is not None else (capacity, "the card")
    trend = trend_of(slices(use, begin), level)
    per_step = growth_per_step(trend, marks, use.end)
    seen = use.end - begin
    return GpuTrend(device, USED, trend, level, level_from, use.end, seen, None, None, *per_step)
