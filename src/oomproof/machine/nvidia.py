"""Whether there is an NVIDIA driver to ask. A leaf of its own: the guard looks without what asking needs."""

from __future__ import annotations

import os


def driver_present(proc: str = "/proc", dev: str = "/dev") -> bool:
    """/dev/dxg is WSL2's door to Windows' driver."""
    return any(map(os.path.exists, (f"{proc}/driver/nvidia", f"{dev}/nvidiactl", f"{dev}/dxg")))
