"""A training whose large weights are frozen (LoRA) with those in 8 or 4 bits, as bitsandbytes keeps them. Arithmetic, nothing measured. Pure.

A weight that is used is made anew in 16 bits for that moment: the largest one counts beside the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oomproof.records import dataclass
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.quantized_weights import MADE_BY, NF4_DOUBLE
from oomproof.units import format_size

KINDS = {"nf4": "4 bits (nf4)", "int8": "8 bits"}
# bitsandbytes leaves the head as it is
_KEPT = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|score|classifier)(?:\.|$)")
_WORTH = 0.1  # of the card's figure: less is no reason to quantize
_COMPUTED_IN = 2  # bytes: bfloat16 or float16


@dataclass(frozen=True, slots=True)
class FrozenWeights:
    """Bytes: as they are, in each kind, and the largest of them in 16 bits."""

    held: int
    quantized: Mapping[str, int]
    largest: int

    def less(self, kind: str) -> int:
        """By how much the card's figure goes down."""
        return self.held - self.quantized[kind] - self.largest

    def shifted(self, estimate: Estimate, kind: str) -> Estimate:
        less = self.less(kind)
        return Estimate(
            max(0, estimate.low - less), max(0, estimate.expected - less), max(0, estimate.high - less), {}
        )


def frozen_weights(result: Mapping[str, Any], used: int = 0) -> FrozenWeights | None:
    """Of a virtual run; None where too little is frozen for quantizing to be worth it, beside ``used`` bytes of the card."""
    parts = [
        (rows, columns, size)
        for name, rows, columns, size in result.get("frozen", ())
        if size > 1 and not _KEPT.search(name)  # size 1: is quantized as it is
    ]
    if not parts:
        return None
    found = FrozenWeights(
        sum(rows * columns * size for rows, columns, size in parts),
        {
            "nf4": int(sum(rows * columns for rows, columns, _ in parts) * NF4_DOUBLE),
            "int8": sum(rows * columns + 4 * rows for rows, columns, _ in parts),
        },
        max(rows * columns for rows, columns, _ in parts) * _COMPUTED_IN,
    )
    return found if found.less("nf4") > _WORTH * used else None


def quantized_note(weights: FrozenWeights) -> str:
    """For `size`: what the frozen weights would take."""
    kinds = " or ".join(
        f"{format_size(weights.less(kind))} less in {words}"
        for kind, words in KINDS.items()
        if weights.less(kind) > 0
    )
    return f"its frozen linear weights take {format_size(weights.held)}; by arithmetic, the card would hold {kinds} ({MADE_BY['nf4']})"
