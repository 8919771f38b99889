"""An allocator snapshot in a few numbers: what is whole, what is split, how large the pieces are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MIB = 1 << 20
# PyTorch keeps a small pool (to 1 MiB, segments of 2) and a large one; from 10 MiB a block has a segment of its own.
CLASSES: tuple[tuple[str, int], ...] = (
    ("under 1M", MIB),
    ("1M to 10M", 10 * MIB),
    ("10M to 100M", 100 * MIB),
    ("100M to 1G", 1024 * MIB),
    ("over 1G", 1 << 62),
)


def summarize(segments: Iterable[dict[str, Any]], device: int) -> dict[str, Any]:
    """Of torch.cuda.memory_snapshot(): sums, the largest free piece, and a table by size."""
    count = reserved = active = wholly_free = split_free = pools = 0
    largest_free = largest_whole = rounding = 0
    table: dict[str, list[int]] = {name: [0, 0, 0, 0] for name, _ in CLASSES}
    for segment in segments:
        if segment.get("device", device) != device:
            continue
        count += 1
        size = int(segment.get("total_size", 0))
        reserved += size
        private = tuple(segment.get("segment_pool_id") or (0, 0)) != (0, 0)
        free_here, largest_here, used_here = 0, 0, 0
        for block in segment.get("blocks", ()):
            length = int(block.get("size", 0))
            row = table[_class_of(length)]
            if str(block.get("state", "")).startswith("active"):
                used_here += length
                asked = block.get("requested_size")
                if asked:
                    rounding += max(0, length - int(asked))
                row[0] += 1
                row[1] += length
            else:
                free_here += length
                largest_here = max(largest_here, length)
                row[2] += 1
                row[3] += length
        active += used_here
        if private:
            pools += free_here  # of a CUDA graph: free, but only for that graph
            continue
        largest_free = max(largest_free, largest_here)
        if used_here == 0:
            wholly_free += size
            largest_whole = max(largest_whole, size)
        else:
            split_free += free_here
    return {
        "segments": count,
        "reserved": reserved,
        "active": active,
        "wholly_free": wholly_free,
        "largest_whole": largest_whole,
        "split_free": split_free,
        "largest_free": largest_free,
        "private_free": pools,
        "rounding": rounding,
        "classes": [
            {"size": name, **dict(zip(("used", "used_bytes", "free", "free_bytes"), row))}
            for name, row in table.items()
            if any(row)
        ],
    }


def _class_of(size: int) -> str:
    return next(name for name, below in CLASSES if size < below)


def lines_of(segments: Iterable[dict[str, Any]], device: int, top: int = 12) -> list[dict[str, Any]]:
    """Which lines of the user's code made what is alive; empty unless allocation lines were recorded."""
    by_line: dict[str, list[int]] = {}
    for segment in segments:
        if segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            if not str(block.get("state", "")).startswith("active"):
                continue
            line = user_line(block.get("frames") or ())
            if line is not None:
                entry = by_line.setdefault(line, [0, 0])
                entry[0] += int(block.get("size", 0))
                entry[1] += 1
    ranked = sorted(by_line.items(), key=lambda candidate: -candidate[1][0])[:top]
    return [{"line": line, "bytes": size, "count": count} for line, (size, count) in ranked]


def user_line(frames: Iterable[dict[str, Any]]) -> str | None:
    """The innermost frame that is not a library's; else the innermost Python one."""
    first = None
    for frame in frames:
        file = str(frame.get("filename") or "")
        if not file.endswith(".py") and not file.startswith("<"):
            continue
        text = "{} ({}:{})".format(frame.get("name") or "?", file.rpartition("/")[2], frame.get("line") or 0)
        if first is None:
            first = text
        if not is_library(file):
            return text
    return first


def is_library(file: str) -> bool:
    return (
        "/site-packages/" in file
        or "/dist-packages/" in file
        or file.startswith("<frozen")
        or "/lib/python3" in file
        or "/oomproof/agent/" in file
    )
