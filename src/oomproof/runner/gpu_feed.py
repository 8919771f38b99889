"""The GPU helper process of a run: started only where a driver is, read by a thread, never waited for."""

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

    @property
    def pid(self) -> int:
        return self._helper.pid

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
