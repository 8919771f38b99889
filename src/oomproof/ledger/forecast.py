"""What a live run tells those who want to start beside it: what it holds, and what its growth will bring."""

from __future__ import annotations

import os
import struct
from collections import deque
from pathlib import Path
from typing import Any

from oomproof.ledger.live_runs import RUNS, WHEN, WHEN_AT, LiveRun, put
from oomproof.trend.growth import expected_growth, expected_lift

RECORD = struct.Struct("=qd")  # growth expected in bytes, boottime
_LOOK_BACK = 60.0
_APART = 0.9  # seconds between two samples
_VISITS = 8  # of each phase, remembered
_NAMES = 64
_WILD = 1 << 46  # bytes: no process holds as much, whatever a message says
_CHANGES = 256  # of phase, between two looks of the guard


class Phases:
    """What a run that has told its phases will hold: it comes back to each of them, as high as it was there before.

    Where the same phase was higher each time, that goes on. Loading is done once and does not count.
    A change of phase may be heard of long after it: samples belong to the phase that their time lies in.
    """

    def __init__(self) -> None:
        self._tops: dict[str, deque[tuple[float, int]]] = {}  # phase → top of each of its last visits
        self._name, self._since = "", 0.0
        self._recent: deque[tuple[float, int]] = deque()  # samples of this visit's last minute
        self._older: tuple[float, int] | None = None  # the top of those before
        self._turned_back = False
        self._known = self._lift = 0  # the highest of all, and what the coming visits add to it

    def note(self, t: float, use: int) -> None:
        """A sample: of those within a second the highest."""
        recent = self._recent
        if recent and abs(t - recent[-1][0]) < _APART:
            recent[-1] = max(recent[-1], (t, use), key=_size)
        else:
            recent.append((t, use))
        while recent[0][0] < t - _LOOK_BACK:
            self._older = _higher(self._older, recent.popleft())

    def enter(self, name: str, t: float, held: int | None = None) -> None:
        """``held`` at that moment, at least: short phases have no sample of their own."""
        if t < self._since:  # told by the job's record first, then by a message that came late
            self._remember(name, None)
        elif name != self._name:
            recent, top = list(self._recent), self._older
            if held is not None and 0 <= held < _WILD and self._name != "unknown":
                top = _higher(top, (t, held))
            for sample in recent:
                if sample[0] < t:
                    top = _higher(top, sample)
            self._remember(self._name, top)
            self._turned_back = self._turned_back or name in self._tops
            self._name, self._since, self._older = name, t, None
            self._recent = deque(sample for sample in recent if sample[0] >= t)

    def _remember(self, name: str, top: tuple[float, int] | None) -> None:
        """A phase that was left. What has no name is one only where it has a sample: there is such a moment between any two."""
        if name in ("", "load") or (name == "unknown" and top is None):
            return
        tops = self._tops.setdefault(name, deque(maxlen=_VISITS))
        if len(self._tops) > _NAMES:  # a job that numbers its phases comes back to none
            del self._tops[next(iter(self._tops))]
        if top is not None:
            tops.append(top)
            self._known = max(size for tops in self._tops.values() for _, size in tops)
            self._lift = max(expected_lift(list(tops)) for tops in self._tops.values())

    def growth(self, use: int) -> int | None:
        """Bytes to expect on top of ``use``; None while no phase came again, or when it is higher than ever."""
        if not self._turned_back or use > self._known:
            return None
        return self._known + self._lift - use


def _size(sample: tuple[float, int]) -> int:
    return sample[1]


def _higher(top: tuple[float, int] | None, sample: tuple[float, int]) -> tuple[float, int]:
    return sample if top is None or sample[1] >= top[1] else top


class LiveClaim(LiveRun):
    """A run's place among the living that also tells how fast the run grows, for those who want to start beside it."""

    def __init__(self, run_id: str, boottime: float, folder: Path | None = None, **more: Any) -> None:
        self._changes: deque[tuple[str, float, int | None]] = deque(maxlen=_CHANGES)
        self._is_pinning = self._forget = False
        self._phases = Phases()
        self._samples: deque[tuple[float, int]] = deque()
        self._forecast_path: Path | None = None
        self._forecast: int | None = None
        super().__init__(run_id, boottime, folder, **more)

    def _join(self, runtime: Path) -> None:
        forecasts = runtime / "forecast"
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
        self._forget = True  # by the guard's own thread, with its next look

    def enter_phase(self, name: str, t: float, held: int | None = None) -> None:
        """From the agent's thread: what the job says it is doing since ``t``, and what one of its processes held then."""
        self._changes.append((name, t, held))

    def update(self, use: int, boottime: float, rate: float = 0.0, paused: int = RUNS) -> None:
        while self._changes:
            self._phases.enter(*self._changes.popleft())
        self._phases.note(boottime, use)
        super().update(use, boottime, rate, paused)
        if self._is_pinning:
            put(self._forecast, RECORD.pack(0, boottime))
            return
        samples = self._samples
        if self._forget:
            self._forget = False
            samples.clear()
        if not samples or boottime - samples[-1][0] >= _APART:
            samples.append((boottime, use))
            while boottime - samples[0][0] > _LOOK_BACK:
                samples.popleft()
            growth = self._phases.growth(use)
            expected = growth if growth is not None else expected_growth(samples)
            put(self._forecast, RECORD.pack(expected, boottime))

    def confirm(self, boottime: float) -> None:
        super().confirm(boottime)
        put(self._forecast, WHEN.pack(boottime), WHEN_AT)

    def leave(self) -> None:
        super().leave()
        if self._forecast_path is not None:
            try:
                self._forecast_path.unlink(missing_ok=True)
            except OSError:
                pass  # the folder was cleaned under us
