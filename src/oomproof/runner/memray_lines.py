"""Reads memray's file of a trace window and prints, as JSON, the lines that allocated what stayed. A script: run by the
job's own Python, because memray is of the job's environment and reads only files of its own version."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

if sys.path and os.path.abspath(sys.path[0] or ".") == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # our own modules have names of their own

# Of the window: what was allocated before this is made once, what after it may only wait for the next step to be freed.
_FROM, _TO = 0.15, 0.75
_TOLD, _NATIVE = 5, 3
_AGENT = os.path.join("oomproof", "agent", "")  # stands between an import and what it imports
_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__) + os.sep, "<frozen", _AGENT)
_INTERPRETER = (
    "_Py",
    "Py",
    "cfunction_",
    "method_",
    "vectorcall",
    "ffi_",
    "_call_function_pointer",
    "<unknown>",
)


def main() -> None:
    import importlib

    reader = importlib.import_module("memray").FileReader(sys.argv[1])
    if sys.argv[2:] == ["peak"]:
        records = reader.get_high_watermark_allocation_records(merge_threads=True)
        _tell([(record, record.size, record.n_allocations) for record in records], 1.0)
        return
    records = list(reader.get_temporal_allocation_records(merge_threads=True))
    last = max(
        (interval.allocated_before_snapshot for record in records for interval in record.intervals), default=0
    )
    begin, end = _FROM * last, _TO * last
    kept = []
    for record in records:
        stays = [
            interval
            for interval in record.intervals
            if interval.deallocated_before_snapshot is None
            and begin <= interval.allocated_before_snapshot < end
        ]
        kept.append((record, sum(stay.n_bytes for stay in stays), sum(stay.n_allocations for stay in stays)))
    largest = _tell(kept, _TO - _FROM)
    if largest is not None:  # symbols of large libraries take seconds
        _tell(kept, _TO - _FROM, _native(largest))


def _tell(kept: list[Any], share: float, native: str | None = None) -> Any:
    """Prints the lines with most bytes; the largest record of the first one."""
    sums: dict[Any, Any] = {}
    for record, size, count in kept:
        if size:
            known = sums.setdefault(_place(record.stack_trace()), [0, 0, 0, None])
            known[0] += size
            known[1] += count
            if size > known[2]:
                known[2:] = [size, record]
    rows = sorted(sums.items(), key=lambda item: -item[1][0])
    lines = [
        [file, line, function, int(size / share), int(count / share), library]
        for (file, line, function, library), (size, count, _, _) in rows[:_TOLD]
    ]
    if lines and native is not None:
        lines[0].append(native)
    whole = int(sum(row[1][0] for row in rows) / share)
    print(json.dumps({"lines": lines, "traced": whole}), flush=True)
    return rows[0][1][3] if rows else None


def _place(stack: list[Any]) -> tuple[str, int, str, bool]:
    """The innermost line of the user's; of a library, or of a native thread, where none is in sight."""
    for function, file, line in stack:
        if not any(part in file for part in _LIBRARIES):
            return os.path.abspath(file), line, function, False
    if stack:
        function, file, line = stack[0]
        return file, line, function, True
    return "", 0, "", True


def _native(record: Any) -> str:
    """The native functions that allocated it, the innermost first, up to the interpreter's."""
    names: list[str] = []
    for function, file, line in record.hybrid_stack_trace(max_stacks=12):
        if file.endswith(".py") or len(names) == _NATIVE:
            break
        if function.startswith(_INTERPRETER):
            if names:
                break
            continue
        names.append(function + (f" ({os.path.basename(file)}:{line})" if line else ""))
    return " < ".join(names)


if __name__ == "__main__":
    main()
