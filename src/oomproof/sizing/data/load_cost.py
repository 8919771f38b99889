"""What loading one file costs in memory: the record that every reader of headers returns."""

from __future__ import annotations

from typing import Any

from oomproof.records import asdict, dataclass

# How the figure was found, from the best to the weakest.
EXACT = "exact, from the header"
SAMPLED = "estimated from a sample"
AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Part:
    """An array, a tensor or a column."""

    name: str
    type: str
    shape: tuple[int, ...] | None
    bytes: int | None  # in memory; None: unknown before it is loaded


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Bytes. ``peak`` and ``kept`` are what the process grows by; None: cannot be told without loading it."""

    format: str  # "npz, compressed"
    loader: str  # which loader of load_child.py proves it; empty: none
    contents: str  # "3 arrays", "about 1,200,000 rows of 4 columns"
    disk: int
    usual: str  # the call whose cost this is
    peak: int | None
    kept: int | None
    basis: str
    parts: tuple[Part, ...] = ()
    mapped: bool = False  # ``kept`` are pages of the file, which the kernel can take back
    notes: tuple[str, ...] = ()
    cheaper: tuple[str, ...] = ()  # lines of code, or commands

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "loader"}


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def call(function: str, path: str, *arguments: str) -> str:
    """A line of code to paste."""
    quoted = f'"{path}"' if '"' not in path and "\\" not in path else repr(path)
    return f"{function}({', '.join([quoted, *arguments])})"
