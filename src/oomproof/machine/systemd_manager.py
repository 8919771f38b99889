"""Whether systemd runs this machine, and whether a user's own manager outlives the last logout."""

from __future__ import annotations

import os

LINGER = "/var/lib/systemd/linger"


def has_systemd(run: str = "/run") -> bool:
    return os.path.isdir(f"{run}/systemd/system") and any(
        os.access(os.path.join(folder, "systemd-run"), os.X_OK) for folder in os.get_exec_path()
    )


def lingers(user: str, linger: str = LINGER) -> bool:
    return os.path.exists(f"{linger}/{user}")
