"""The flags of `run` that act inside the job, on its GPU memory; they reach it through its agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.units import GIB, parse_size

SETTINGS = {"release", "gpu_limit", "trace_alloc"}
_RELEASE = ("warn", "auto", "always", "never")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--gpu-limit",
        metavar="SIZE[:GPU]",
        help="each process of the job may hold this much of a GPU, such as 14G or 14G:0,20G:1 (PyTorch)",
    )
    add(
        "--release",
        metavar="WHEN",
        help="give unused GPU memory back after eval or generate: warn, auto, always or never (default warn)",
    )
    add(
        "--trace-alloc",
        action="store_true",
        default=None,
        help="record the line of code behind each live GPU tensor (PyTorch; costs about 2 us an allocation)",
    )


def agent_settings(given: Mapping[str, Any], with_agent: bool) -> dict[str, Any]:
    """What the agent inside the job is told, checked here where an error can still be shown."""
    release = str(given["release"] or "warn").lower()
    if release not in _RELEASE:
        raise OomproofError(
            f"--release {given['release']} is not known", f"give one of {', '.join(_RELEASE)}", USAGE
        )
    limits = gpu_limits(given["gpu_limit"])
    if limits and not with_agent:
        raise OomproofError(
            "--gpu-limit is kept by the agent inside the job, and --no-agent leaves it out",
            "leave out one of the two",
            USAGE,
        )
    trace = str(given["trace_alloc"]).lower() in ("1", "true", "yes", "on")
    return {"release": release, "gpu_limit": limits, "trace_alloc": trace}


def gpu_limits(value: Any) -> list[list[int | None]]:
    """[[bytes, GPU or None for all], …] of ``14G`` or ``14G:0,20G:1``; a list of such in a settings file."""
    if value is None:
        return []
    words = [str(each) for each in value] if isinstance(value, list) else str(value).split(",")
    found: list[list[int | None]] = []
    for word in words:
        size, colon, index = word.strip().partition(":")
        limit = parse_size(size)
        if (colon and not index.isdigit()) or limit < GIB:
            raise OomproofError(
                f"--gpu-limit {word}: give at least 1G, and the GPU as a number",
                "--gpu-limit 14G for every GPU, --gpu-limit 14G:0 for the first (CUDA itself takes about 0.75 GiB)",
                USAGE,
            )
        found.append([limit, int(index) if colon else None])
    return found
