"""Small trainings on the CPU whose memory is known: each sample holds so many bytes while a step runs."""

from __future__ import annotations

from typing import Any

import torch

from oomproof.sizing.fitting.batch_api import fit_batch
from oomproof.sizing.fitting.memory_meter import HostMeter

MIB = 1 << 20
A_SAMPLE = 8 * MIB
torch.set_num_threads(
    1
)  # small tensors: threads that wait for each other take most of the time on a busy machine


def capacity_for(samples: int) -> int:
    """Bytes with which this process can hold so many samples of A_SAMPLE, and three for all else. The libraries' own are held before."""
    fit_batch(effective=1, capacity="100G", quiet=True)(Training(holds=0))()
    return HostMeter.own() + (samples + 3) * A_SAMPLE


def too_large() -> None:
    """What PyTorch itself raises where the CPU has no memory."""
    torch.empty(1 << 50)


class Training:
    """Counts its calls; holds A_SAMPLE for each sample of a pass."""

    def __init__(self, steps: int = 4, holds: int = A_SAMPLE) -> None:
        self.steps, self.holds = steps, holds
        self.calls: list[tuple[int, int, bool]] = []
        self.made: list[int] = []

    def __call__(self, batch: Any) -> list[float]:
        self.calls.append((batch.size, batch.accum, batch.probing))
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(self.steps):
            for _ in range(batch.accum):
                held = torch.ones(batch.size, self.holds // 4) if self.holds else None
                batch.scale(model(torch.ones(batch.size, 8)).square().mean()).backward()
                del held
            optimizer.step()
            optimizer.zero_grad()
            self.after(step, batch)
        self.made.append(batch.size)
        return [float(value) for value in model.weight.detach().flatten()]

    def after(self, step: int, batch: Any) -> None:
        """For what goes wrong."""

    @property
    def sizes(self) -> list[int]:
        """Of the calls that were meant."""
        return [size for size, _, probing in self.calls if not probing]
