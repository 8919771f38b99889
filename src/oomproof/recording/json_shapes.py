"""What stands in a run's JSON files, by type: a value of another type, as a damaged file has it, counts as absent."""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 40  # levels; our own files have less than ten

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parse(text: str, deepest: int = DEEPEST) -> object:
    """The value. Raises ValueError for what is no JSON, or is nested deeper than that.

    Python 3.13 does not count the depth by the thread's own stack: 256 KiB overflow, and the process is gone."""
    if text.count("[") + text.count("{") > deepest and _depth(text) > deepest:
        raise ValueError(f"nested deeper than {deepest} levels")
    return json.loads(text)


def _depth(text: str) -> int:
    depth = highest = 0
    for match in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if match[0] in "[{" else -1
        highest = max(highest, depth)
    return highest


Shape = Any  # a type, [shape of each], {name: shape}; the name ... stands for all others

_PROCESS = {"pid": int, "start": int}
_COUNTERS = {...: int}
_RANGE = {"low": int, "expected": int, "high": int}

RUN: Shape = {
    "id": str, "name": str, "argv": [str], "cwd": str, "env": {...: str}, "created": float, "boot_id": str,
    "host": str, "user": int, "version": str, "adopted": bool, "address_space": int,
    "settings": {
        "limit": int, "margin": int, "floor": int, "grace": float, "stop_file": str, "stop_signal": int,
        "watch_only": bool, "alert_above": int, "alert_gpu_above": int,
        "oom_exit_code": int, "agent": bool, "protect": bool, "pause_max": float,
        "retry": int,
    },
    "flags": {...: str},
    "claim": {
        "key": str, "need": int, "need_low": int, "basis": str, "gpu_need": int, "gpu": int, "priority": int,
        "asked": float, "cap": int, "twin": str,
    },
    "predicted": {"host": _RANGE, "gpu": _RANGE},
    "plan": {...: str}, "names": {...: str}, "change": str, "resumed_from": str,  # with --retry
    "code": {
        "script": str, "script_sha256": str, "git_commit": str, "git_dirty": bool, "git_diff_sha256": str,
    },
}  # fmt: skip
STARTED: Shape = {
    "boot_id": str, "boottime": float, "wall": float, "keeper": _PROCESS, "job": _PROCESS, "guard": _PROCESS,
    "backend": {
        "name": str, "version": int, "limit": int, "memory": str, "procs": str, "kill": str, "freezer": str,
        "reclaim": str, "remove": [str], "note": str, "why_not_better": [str],
    },
    "memcg": str, "terminal": [int], "streams": {...: int}, "files": {...: [int]}, "counters": _COUNTERS,
}  # fmt: skip
EXIT: Shape = {
    "boottime": float, "wall": float, "status": int, "code": int, "signal": int, "core": bool,
    "counters": _COUNTERS, "shm": {"total": int, "free": int}, "adopted": bool,
}  # fmt: skip
WAITING: Shape = {"front": _PROCESS, "need": int, "since": float, "reasons": [str]}
MARK: Shape = {"by": str, "why": str, "since": float, "until": float}


def shaped(value: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """The same without what has another type; names the shape does not know stay as they are."""
    clean, _ = _part(value, shape)
    return clean


def wrong(value: dict[str, Any], shape: Shape) -> list[str]:
    """The names of what has another type."""
    _, names = _part(value, shape)
    return names


def _part(value: dict[str, Any], shape: Shape) -> tuple[dict[str, Any], list[str]]:
    clean: dict[str, Any] = {}
    names: list[str] = []
    for name, inner in value.items():
        wanted = shape.get(name, shape.get(...))
        if isinstance(wanted, dict) and isinstance(inner, dict):
            clean[name], more = _part(inner, wanted)
            names += [f"{name}.{candidate}" for candidate in more]
        elif wanted is None or inner is None or _fits(inner, wanted):
            clean[name] = inner
        else:
            names.append(name)
    return clean, names


def _fits(value: object, shape: Shape) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(element, shape[0]) for element in value)
    if isinstance(value, bool):
        return shape is bool
    if shape is int:
        return isinstance(value, int) and abs(value) < 1 << 63
    if shape is float:  # seconds: also such that a calendar has a date for them
        return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e12
    return isinstance(shape, type) and isinstance(value, shape)
