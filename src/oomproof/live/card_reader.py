"""The cards, from a helper process that may hang without us: asked once, or told every few seconds."""

from __future__ import annotations

import time

from oomproof.machine import gpu, nvidia

_DEADLINE = 3.0  # seconds: as `check` waits


class CardsOnce:
    """For one look: the helper works while the rest is read."""

    def __init__(self, sys: str = "/sys") -> None:
        self._sys = sys
        self._query = gpu.Query() if nvidia.driver_present() else None

    def read(self) -> gpu.Gpus:
        answer = self._query.answer(_DEADLINE) if self._query is not None else gpu.Gpus()
        self._query = None
        return _with_amd(answer, self._sys)

    def close(self) -> None:
        if self._query is not None:
            self._query.answer(0.0)


class CardsAgain:
    """For a view that stays: never waits; what is older than five seconds is no figure."""

    def __init__(self, every: float = 2.0, sys: str = "/sys") -> None:
        self._sys = sys
        self._feed = None
        self._since = time.monotonic()
        if nvidia.driver_present():
            from oomproof.runner.gpu_feed import GpuFeed

            try:
                self._feed = GpuFeed(every)
            except OSError:
                pass

    def read(self) -> gpu.Gpus:
        cards = self._feed.latest() if self._feed is not None else ()
        silent = self._feed is not None and not cards and time.monotonic() - self._since > _DEADLINE
        return _with_amd(
            gpu.Gpus(cards, "the GPU driver does not answer (try: nvidia-smi)" if silent else None), self._sys
        )

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()


def _with_amd(cards: gpu.Gpus, sys: str) -> gpu.Gpus:
    return gpu.Gpus(cards.gpus + gpu.read_amd(sys, first_index=len(cards.gpus)), cards.problem)
