"""What people feel stays in RAM: `memory.low` for the desktop's own slice and those above it, as drop-in files of systemd.

A desktop whose pages were swapped out answers when they have been read back, which takes as long as the machine thrashes: 47 s in the
lab, 1.1 s with this (`bench/desktop_protection.py`). The protection is the kernel's and only as large as what the desktop holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.units import GIB, MIB

_MARK = "# Written by `oomproof guard install --system`; `oomproof guard uninstall --system` removes it.\n"
_FILE = "60-oomproof-desktop.conf"
# Each level has to hand it down. GNOME and KDE keep their shell in session.slice; what is started from it is elsewhere.
_LEVELS = {
    "/etc/systemd/system/user.slice.d": "Slice",
    "/etc/systemd/system/user-.slice.d": "Slice",
    "/etc/systemd/system/user@.service.d": "Service",
    "/etc/systemd/user/session.slice.d": "Slice",
}
_SHARE, _MOST = 10, 2 * GIB  # a tenth of RAM: more is no desktop


def drop_ins(ram: int) -> dict[Path, str]:
    """File to text."""
    low = min(ram // _SHARE, _MOST) // MIB
    return {
        Path(folder) / _FILE: f"{_MARK}[{section}]\nMemoryLow={low}M\n" for folder, section in _LEVELS.items()
    }


def write(files: Mapping[Path, str], root: Path = Path("/")) -> None:
    for path, text in files.items():
        at = root / path.relative_to("/")
        if at.exists() and not at.read_text().startswith(_MARK):
            raise OomproofError(f"{at} is not ours", "move it away first, or add --no-desktop")
        try:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)
        except OSError as error:
            raise OomproofError(
                f"cannot write {at}: {error.strerror}",
                "oomproof guard install --system --no-desktop leaves it out",
            ) from error


def remove(root: Path = Path("/")) -> bool:
    """Whether any was there. A file that somebody else has written under that name stays."""
    found = False
    for folder in _LEVELS:
        path = root / (Path(folder) / _FILE).relative_to("/")
        try:
            ours = path.read_text().startswith(_MARK)
        except OSError:
            continue
        if ours:
            path.unlink()
            found = True
            try:
                path.parent.rmdir()
            except OSError:  # others keep files there
                pass
    return found
