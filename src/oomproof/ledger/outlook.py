"""What a live run tells those who want to start beside it: what it holds, and what its growth will bring."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from oomproof.ledger.live import RUNS, LiveRun, runtime_folder

LOOK_AHEAD = 600.0  # seconds of growth that a run without a known need has reserved
FAR = 10.0  # nobody looks further ahead than this many times as far as was looked back
RECORD = struct.Struct("=qd")  # growth expected in bytes, boottime
_LOOK_BACK = 60.0
_SHORTEST = 3.0  # seconds of samples before growth means anything


def expected_growth(samples: Iterable[tuple[float, int]], shortest: float = _SHORTEST) -> int:
    """Bytes that the growth of these (time, bytes) samples would bring, as far ahead as they carry.

    Growth is what went on: a model that was loaded and now sits there has none, whatever it did before.
    """
    points = list(samples)
    if len(points) < 2:
        return 0
    seconds = points[-1][0] - points[0][0]
    if seconds < shortest:
        return 0
    half = next(point for point in points if point[0] >= points[0][0] + seconds / 2)
    rate = (points[-1][1] - points[0][1]) / seconds
    if half[0] < points[-1][0]:
        rate = min(rate, (points[-1][1] - half[1]) / (points[-1][0] - half[0]))
    return max(0, int(rate * min(LOOK_AHEAD, FAR * seconds)))


class LiveClaim(LiveRun):
    """A run's place among the living that also tells how fast the run grows, for those who want to start beside it."""

    def __init__(self, run_id: str, boottime: float, folder: Path | None = None, **more: Any) -> None:
        super().__init__(run_id, boottime, folder, **more)
        self._samples: deque[tuple[float, int]] = deque()
        outlooks = (folder or runtime_folder()) / "outlook"
        outlooks.mkdir(mode=0o700, exist_ok=True)
        self._outlook_path = outlooks / run_id
        self._outlook = os.open(self._outlook_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def update(self, use: int, boottime: float, rate: float = 0.0, frozen: int = RUNS) -> None:
        super().update(use, boottime, rate, frozen)
        samples = self._samples
        if not samples or boottime - samples[-1][0] >= 0.9:
            samples.append((boottime, use))
            while boottime - samples[0][0] > _LOOK_BACK:
                samples.popleft()
            os.pwrite(self._outlook, RECORD.pack(expected_growth(samples), boottime), 0)

    def leave(self) -> None:
        super().leave()
        os.close(self._outlook)
        self._outlook_path.unlink(missing_ok=True)
