"""The cards, from a helper process that may hang without us: asked once, or told every few seconds."""

from __future__ import annotations

import time

from oomproof.machine import gpu, nvidia

_DEADLINE = 3.0  # seconds: as `check` waits


class CardsOnce:
    """For one look: the helper works while the rest is read."""

    def __init__(self, sys: str = "/sys") -> None:
        self._sys = sys
        self._query = gpu.start_query()

    def read(self) -> gpu.Gpus:
        query, self._query = self._query, None
        return gpu.read(_DEADLINE, query, self._sys)

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
        problem = "the GPU driver does not answer (try: nvidia-smi)" if silent else None
        return gpu.with_amd(gpu.Gpus(cards, problem), self._sys)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
