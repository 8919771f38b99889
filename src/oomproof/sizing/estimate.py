"""How much something will need: the record every estimator returns, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oomproof.records import dataclass

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes. ``parts``: name → bytes of the expected figure, in the order to print."""

    low: int
    expected: int
    high: int
    parts: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "low_bytes": self.low,
            "expected_bytes": self.expected,
            "high_bytes": self.high,
            "parts": dict(self.parts),
        }

    @staticmethod
    def from_json(value: Any) -> Estimate | None:
        """None for what is not there, or was damaged."""
        try:
            low, expected, high = (int(value[f"{name}_bytes"]) for name in ("low", "expected", "high"))
            parts = {str(name): int(size) for name, size in value["parts"].items()}
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        return Estimate(low, expected, high, parts)


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase takes at its peak; None: not known. ``reached``: whether the estimate got so far."""

    name: str
    gpu: int | None
    host: int | None
    reached: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "phase": self.name,
            "gpu_bytes": self.gpu,
            "host_bytes": self.host,
            "reached": self.reached,
        }


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer to "how much will it need?"."""

    gpu: Estimate | None
    host: Estimate | None
    phases: tuple[Phase, ...]
    basis: str
    refused: str | None = None  # one sentence with the way out, when it could not be sized
    passing: bool = False  # another moment, or another machine, may not refuse it
    notes: tuple[str, ...] = ()  # what was held off, widened, not reached
    peak: str = ""  # "loss.backward() train.py:41, in decoder.layers.11.mlp"

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "gpu": self.gpu.as_json() if self.gpu else None,
            "host": self.host.as_json() if self.host else None,
            "phases": [phase.as_json() for phase in self.phases],
            "basis": self.basis,
            "refused": self.refused,
            "notes": list(self.notes),
            "peak": self.peak,
        }
