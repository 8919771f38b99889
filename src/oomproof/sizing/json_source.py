"""JSON files of a model (config, index, manifest): read whole, bounded in size and depth; what is wrong is one line."""

from __future__ import annotations

from typing import Any

from oomproof.recording.json_shapes import parse
from oomproof.sizing.data.source_file import BadFile, file_size, open_source
from oomproof.units import MIB, format_size

_LONGEST = 64 * MIB  # the index of the largest models (a hundred thousand tensors) has 10 MiB


def read_object(path: str) -> dict[str, Any]:
    """The object in it; raises ``BadFile``."""
    with open_source(path) as file:
        if (size := file_size(file)) > _LONGEST:
            raise BadFile(
                path, f"has {format_size(size)}: no file of this kind is so long", "check what wrote it"
            )
        try:
            value = parse(file.read().decode("utf-8"))
        except (ValueError, RecursionError):
            raise BadFile(path, "is not sound JSON", "copy it again, or check what wrote it") from None
    if not isinstance(value, dict):
        raise BadFile(path, "is JSON, but no object", "check what wrote it")
    return value


def whole_number(config: dict[str, Any], *names: str) -> int | None:
    """The first of these that is a positive whole number of a sensible size."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
            return value
    return None
