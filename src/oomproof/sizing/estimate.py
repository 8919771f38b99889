"""What sizing answers: an interval of bytes with its parts, by phase."""

from __future__ import annotations

from collections.abc import Mapping

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes. ``parts`` of the expected figure, in the order to print."""

    low: int
    expected: int
    high: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    gpu: int | None
    host: int | None
    reached: bool


@dataclass(frozen=True, slots=True)
class Sizing:
    gpu: Estimate | None
    host: Estimate | None
    phases: tuple[Phase, ...]
    basis: str
    refused: str | None = None  # one sentence with the way out, when it could not be sized
    notes: tuple[str, ...] = ()  # what was held off, widened, not reached
    peak: str = ""  # "loss.backward() train.py:41, in decoder.layers.11.mlp"
