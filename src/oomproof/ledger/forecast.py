"""What a live run tells those who want to start beside it: what it holds, and what its growth will bring."""

from __future__ import annotations

import os
import struct
from collections import deque
from pathlib import Path
from typing import Any

from oomproof.ledger.live_runs import RUNS, LiveRun, put
from oomproof.trend.growth import expected_growth, expected_lift

RECORD = struct.Struct("=qd")  # growth expected in bytes, boottime
_LOOK_BACK = 60.0
_VISITS = 8  # of each phase, remembered
_NAMES = 64


class Phases:
    """What a run that has told its phases will hold: it comes back to each of them, as high as it was there before.

    Where the same phase was higher each time, that goes on. Loading is done once and does not count.
    """

    def __init__(self) -> None:
        # phase → (time, bytes) at the top of its last visits
        self._tops: dict[str, deque[tuple[float, int]]] = {}
        self._name = ""
        self._top = (0.0, 0)
        self._turned_back = False
        self._known = self._lift = 0  # the highest of all, and what the coming visits add to it

    def note(self, name: str, t: float, use: int) -> None:
        if name != self._name:
            if self._name and self._name != "load":
                self._tops.setdefault(self._name, deque(maxlen=_VISITS)).append(self._top)
                if len(self._tops) > _NAMES:  # a job that numbers its phases comes back to none
                    del self._tops[next(iter(self._tops))]
                self._known = max(max(size for _, size in tops) for tops in self._tops.values())
                self._lift = max(expected_lift(list(tops)) for tops in self._tops.values())
            self._turned_back = self._turned_back or name in self._tops
            self._name, self._top = name, (t, use)
        elif use >= self._top[1]:
            self._top = (t, use)

    def growth(self, use: int) -> int | None:
        """Bytes to expect on top of ``use``; None while no phase came again, or when it is higher than ever."""
        if not self._turned_back or use > self._known:
            return None
        return self._known + self._lift - use


class LiveClaim(LiveRun):
    """A run's place among the living that also tells how fast the run grows, for those who want to start beside it.

    ``phase`` is what the job says it is doing, where it says so.
    """

    def __init__(self, run_id: str, boottime: float, folder: Path | None = None, **more: Any) -> None:
        self.phase = ""
        self._is_pinning = False
        self._phases = Phases()
        self._samples: deque[tuple[float, int]] = deque()
        self._forecast_path: Path | None = None
        self._forecast: int | None = None
        super().__init__(run_id, boottime, folder, **more)

    def _join(self, runtime: Path) -> None:
        forecasts = runtime / "outlook"
        forecasts.mkdir(mode=0o700, exist_ok=True)
        self._forecast_path = forecasts / self.id
        self._forecast = os.open(self._forecast_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        super()._join(runtime)

    def _on_slot_lost(self, error: Exception) -> None:
        super()._on_slot_lost(error)
        if self._forecast is not None:
            os.close(self._forecast)
            self._forecast = None

    def pins(self, is_pinning: bool) -> None:
        """Host memory for the card is being pinned: what it grows by meanwhile was asked for, and ends."""
        self._is_pinning = is_pinning
        self._samples.clear()

    def update(self, use: int, boottime: float, rate: float = 0.0, frozen: int = RUNS) -> None:
        super().update(use, boottime, rate, frozen)
        if self._is_pinning:
            put(self._forecast, RECORD.pack(0, boottime))
            return
        samples = self._samples
        if not samples or boottime - samples[-1][0] >= 0.9:
            samples.append((boottime, use))
            while boottime - samples[0][0] > _LOOK_BACK:
                samples.popleft()
            if self.phase:
                self._phases.note(self.phase, boottime, use)
            growth = self._phases.growth(use)
            expected = growth if growth is not None else expected_growth(samples)
            put(self._forecast, RECORD.pack(expected, boottime))

    def leave(self) -> None:
        super().leave()
        if self._forecast_path is not None:
            try:
                self._forecast_path.unlink(missing_ok=True)
            except OSError:
                pass  # the folder was cleaned under us
