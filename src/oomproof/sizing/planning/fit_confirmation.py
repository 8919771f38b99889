"""What a short real run of a plan says of its prediction: confirmed, or too large after all. Pure."""

from __future__ import annotations

from typing import Any

from oomproof.records import dataclass
from oomproof.sizing.planning.fit_tiers import Tier
from oomproof.sizing.planning.step_times import step_text
from oomproof.sizing.rehearsing import Rehearsal
from oomproof.units import format_size


@dataclass(frozen=True, slots=True)
class Confirmation:
    """``fits``: None where the run said nothing about memory. Bytes."""

    tier: str
    fits: bool | None
    gpu: int | None = None
    host: int | None = None
    sentence: str = ""
    step_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "fits": self.fits,
            "gpu_bytes": self.gpu,
            "host_bytes": self.host,
            "sentence": self.sentence,
            "step_seconds": self.step_seconds,
        }


def confirmation(tier: Tier, rehearsal: Rehearsal) -> Confirmation:
    """Of a plan that was rehearsed: its largest batch, an evaluation, a generation, a checkpoint."""
    assert tier.predicted is not None
    if rehearsal.refused:
        return Confirmation(tier.name, None, sentence=f"not confirmed by a real run: {rehearsal.refused}")
    gpu, host = rehearsal.peak("gpu"), rehearsal.peak("host")
    if (oom := rehearsal.out_of_memory) is not None:
        where = "the card" if oom.where == "gpu" else "RAM"
        return Confirmation(
            tier.name,
            False,
            gpu,
            host,
            f"a real run of the {tier.name} plan ran out of memory on {where} in {oom.phase}",
        )
    predicted = tier.predicted
    figures = []
    if gpu is not None and predicted.gpu is not None:
        figures.append(f"{format_size(gpu)} of the card ({format_size(predicted.gpu.expected)} predicted)")
    if host is not None:
        figures.append(f"{format_size(host)} of RAM ({format_size(predicted.host.expected)} predicted)")
    reached = ", ".join(phase.name for phase in rehearsal.phases if phase.reached)
    step = rehearsal.step_seconds
    pace = f"; its quickest step took {step_text(step)}" if step is not None else ""
    return Confirmation(
        tier.name,
        True,
        gpu,
        host,
        f"a real run of the {tier.name} plan took {' and '.join(figures)}; reached: {reached}{pace}",
        step,
    )
