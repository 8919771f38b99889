"""The cards as a run sees them: NVIDIA's by a helper process, read by a thread and never waited for; AMD's from sysfs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from oomproof.machine import gpu, nvidia

_STALE = 5.0  # seconds; an older figure is no figure


class GpuFeed:
    def __init__(self, every: float = 1.0) -> None:
        self._newest: tuple[float, tuple[gpu.Gpu, ...]] = (0.0, ())
        self._helper = subprocess.Popen(
            [sys.executable, "-P", "-m", "oomproof.machine.gpu", "--every", str(every)],
            stdin=subprocess.PIPE,  # the helper ends when we do: its end of this pipe closes
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._read, name="gpu", daemon=True).start()

    def _read(self) -> None:
        assert self._helper.stdout is not None
        for line in self._helper.stdout:
            gpus = gpu.from_json(line)
            if gpus.gpus:
                self._newest = (time.monotonic(), gpus.gpus)

    def latest(self) -> tuple[gpu.Gpu, ...]:
        seen, devices = self._newest
        return devices if time.monotonic() - seen < _STALE else ()

    def close(self) -> None:
        self._helper.kill()  # without waiting: inside a driver call it may take for ever
        # stdout stays open: closing it would wait for the thread that reads it, and that one for the driver
        if self._helper.stdin is not None:
            self._helper.stdin.close()


def start(every: float = 1.0) -> GpuFeed | None:
    try:
        return GpuFeed(every) if nvidia.driver_present() else None
    except OSError:
        return None


class EveryCard:
    """The cards of every vendor, for a run that shares none."""

    def __init__(self, sys: str = "/sys") -> None:
        self._feed, self._sys = start(), sys

    def latest(self) -> tuple[gpu.Gpu, ...]:
        nvidias = self._feed.latest() if self._feed is not None else ()
        return gpu.with_amd(gpu.Gpus(nvidias), self._sys).gpus

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
