"""Whether there is a driver of cards to ask, and which. A file of its own: the guard looks without what asking needs."""

from __future__ import annotations

import os


def driver_present(proc: str = "/proc", dev: str = "/dev") -> bool:
    """/dev/dxg is WSL2's door to Windows' driver."""
    return any(map(os.path.exists, (f"{proc}/driver/nvidia", f"{dev}/nvidiactl", f"{dev}/dxg")))


def any_driver_present(proc: str = "/proc", dev: str = "/dev") -> bool:
    """Of NVIDIA or, for programs that compute, of AMD."""
    return driver_present(proc, dev) or os.path.exists(f"{dev}/kfd")


def driver_version(proc: str = "/proc") -> str | None:
    """``570.86.15``; None where there is no such driver, or it does not tell (WSL2)."""
    import re

    from oomproof.leaf.proc_files import read_text

    text = read_text(f"{proc}/driver/nvidia/version")
    match = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return match[1] if match else None
