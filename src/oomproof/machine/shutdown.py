"""Whether the machine is being shut down right now."""

from __future__ import annotations

import os


def under_way(systemctl: str = "systemctl", run: str = "/run", timeout: float = 5.0) -> bool:
    """systemd calls itself "stopping" as soon as a shutdown is queued; anybody may ask."""
    if not os.path.isdir(f"{run}/systemd/system"):
        return False
    import subprocess  # only at the end of a run that was told to end

    try:
        asked = subprocess.run(
            [systemctl, "is-system-running"], capture_output=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == b"stopping"
