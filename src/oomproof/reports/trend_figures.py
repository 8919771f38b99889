"""`oomproof trend --json`: schema 1."""

from __future__ import annotations

from math import isfinite
from typing import Any

from oomproof.diagnosis.verdict import plain
from oomproof.evidence.gpu_trend import GpuTrend
from oomproof.evidence.heap_growth import HeapGrowth, places
from oomproof.evidence.run_trend import RunTrend
from oomproof.reports.trend_text import Answer, alert_text
from oomproof.trend.leaks import Range


def trend_json(answer: Answer) -> dict[str, Any]:
    trend, of_run = answer.trend, answer.of_run
    workers = of_run.workers if of_run else None
    return {
        "schema": 1,
        "kind": trend.kind,
        "bytes_per_second": trend.rate.expected if trend.rate else None,
        "bytes_per_second_range": _range(trend.rate),
        "full_in_seconds": _range(trend.full_in),
        "plateau_bytes": _whole(trend.plateau),
        "held_bytes": _whole(trend.held),
        "top_bytes": _whole(trend.top),
        "grown_bytes": _whole(trend.grown),
        "period_seconds": trend.period,
        "limit_bytes": _whole(answer.limit),
        "limit_from": answer.limit_from or None,
        "seen_seconds": answer.seen,
        "last_sample": answer.end_wall,
        "last_sample_boottime": of_run.end if of_run else None,
        "phase": (of_run.phase or None) if of_run else None,
        **_counts_json(of_run),
        "bytes_per_step": of_run.bytes_per_step if of_run else None,
        "seconds_per_step": of_run.seconds_per_step if of_run else None,
        "workers": {"count": workers[0], "grown_bytes": workers[1]} if workers else None,
        "heap": _heap_json(of_run.heap) if of_run and of_run.heap else None,
        "where": [plain(place) for place in places(of_run.trace)] if of_run and of_run.trace else [],
        "mappings": (of_run.mappings or None) if of_run else None,
        "not_a_leak": (of_run.proof or None) if of_run else None,
        "gpus": [_gpu_json(card) for card in answer.gpus],
        "alert": alert_text(answer),
    }


def _gpu_json(card: GpuTrend) -> dict[str, Any]:
    trend = card.trend
    return {
        "index": card.device,
        "of": card.what,
        "kind": trend.kind,
        "fragmentation": card.is_fragmentation,
        "bytes_per_second": trend.rate.expected if trend.rate else None,
        "full_in_seconds": _range(trend.full_in),
        "limit_bytes": _whole(card.limit),
        "limit_from": card.limit_from,
        "held_bytes": _whole(trend.held),
        "grown_bytes": _whole(trend.grown),
        "allocated_bytes": _whole(card.allocated),
        "reserved_bytes": _whole(card.reserved),
        "bytes_per_step": card.bytes_per_step,
        "seen_seconds": card.seen,
    }


def _counts_json(of_run: RunTrend | None) -> dict[str, Any]:
    cycle, ends = (of_run.cycle, of_run.ends) if of_run else (None, None)
    rate = of_run.trend.rate if of_run else None
    return {
        "cycle": {"name": cycle.name, "phase": cycle.phase, "seconds": cycle.seconds} if cycle else None,
        "bytes_per_cycle": rate.expected * cycle.seconds if cycle and rate else None,
        "full_in_cycles": _range(of_run.full_in_cycles) if of_run else None,
        "full_in_steps": _range(of_run.full_in_steps) if of_run else None,
        "ends": {
            "step": ends.step,
            "total_steps": ends.total,
            "in_seconds": ends.seconds,
            "told_by": ends.told_by,
            "full_before": of_run.is_full_first if of_run else None,
        }
        if ends
        else None,
        "file_bytes": of_run.files if of_run else None,
    }


def _heap_json(heap: HeapGrowth) -> dict[str, Any]:
    return {
        "kind": heap.kind or None,
        "grown_bytes": heap.grown,
        "by_kind": heap.by_kind,
        "objects": heap.objects,
        "containers": [plain(container) for container in heap.containers],
    }


def _range(of: Range | None) -> dict[str, float | None] | None:
    if of is None:
        return None
    return {
        name: value if isfinite(value) else None
        for name, value in (("low", of.low), ("expected", of.expected), ("high", of.high))
    }


def _whole(size: float | None) -> int | None:
    return round(size) if size is not None and isfinite(size) else None
