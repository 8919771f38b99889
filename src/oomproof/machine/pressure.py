"""Pressure stall information: how much time tasks lost waiting for memory."""

from __future__ import annotations

import os

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Pressure:
    """Averages in percent of time, totals in microseconds since boot."""

    some_avg10: float
    some_avg60: float
    full_avg10: float
    full_avg60: float
    some_total: int
    full_total: int


def parse(text: bytes) -> Pressure | None:
    try:
        some, full = (
            dict(pair.split(b"=", 1) for pair in line.split()[1:]) for line in text.splitlines()[:2]
        )
        return Pressure(
            float(some[b"avg10"]),
            float(some[b"avg60"]),
            float(full[b"avg10"]),
            float(full[b"avg60"]),
            int(some[b"total"]),
            int(full[b"total"]),
        )
    except (KeyError, ValueError):
        return None


def total(text: bytes, kind: bytes) -> int:
    """Microseconds of ``some`` or ``full`` stall since boot, for the loop."""
    at = text.find(kind)
    at = text.find(b"total=", at)
    end = text.find(b"\n", at)
    return int(text[at + 6 : end if end > 0 else None]) if at >= 0 else 0


class PressureReader:
    """None everywhere on kernels without PSI (before 4.20, or psi=0)."""

    def __init__(self, path: str = "/proc/pressure/memory") -> None:
        try:
            self._fd: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    def totals(self) -> tuple[int, int]:
        """(some, full) in microseconds; zeros where the kernel has no PSI."""
        if self._fd is None:
            return 0, 0
        try:
            text = os.pread(self._fd, 512, 0)
        except OSError:  # EOPNOTSUPP: compiled in, switched off
            return 0, 0
        return total(text, b"some"), total(text, b"full")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def read(proc: str = "/proc") -> Pressure | None:
    try:
        with open(f"{proc}/pressure/memory", "rb") as file:
            return parse(file.read())
    except OSError:
        return None
