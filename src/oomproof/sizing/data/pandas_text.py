"""How pandas keeps text: as Arrow does, or as Python objects, which take two to four times as much."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata


def pandas_version() -> int:
    """The major one. Without pandas the figures are those of version 2, which takes more."""
    return _major_version("pandas") or 2


def text_is_arrow() -> bool:
    return pandas_version() >= 3 and _major_version("pyarrow") > 0


def _major_version(package: str) -> int:
    try:
        return int(metadata.version(package).partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return 0


def object_size(value: object) -> int:
    """As CPython's allocator rounds it."""
    return (sys.getsizeof(value) + 15) // 16 * 16


def objects_per_row(values: Sequence[object]) -> float:
    """Bytes a row takes: a pointer, and an object for each value that is not the same as one before."""
    distinct = {value for value in values if value is not None}
    return 8 + sum(map(object_size, distinct)) / max(1, len(values))
