"""The commands that add swap, as a file system wants them."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.machine.swap import Swap
from oomproof.units import GIB, MIB

_FIRST = 4 * GIB  # half of RAM where that is less
_STEP = 64 * MIB


def free_path(areas: Sequence[Swap]) -> str:
    """A usual name for a swap file that no active one has."""
    taken = {area.path for area in areas}
    return next(name for name in ("/swapfile", *(f"/swapfile{n}" for n in range(2, 99))) if name not in taken)


def first_size(ram: int) -> int:
    """Of the first swap on a disk, where no job on record asks for more; in whole GiB where it has one."""
    size = min(_FIRST, ram // 2)
    return size // GIB * GIB or size // _STEP * _STEP


def add_swap_file(path: str, size: int, filesystem: str, priority: int | None = None) -> str:
    """One line to type. btrfs wants a file without copy-on-write, in a subvolume that is never in a snapshot."""
    on = f"swapon -p {priority} {path}" if priority is not None else f"swapon {path}"
    typed = f"{size // GIB}G" if size % GIB == 0 else f"{size // MIB}M"
    if filesystem == "btrfs":
        return f"sudo sh -c 'btrfs filesystem mkswapfile --size {typed} {path} && {on}'"
    return f"sudo sh -c 'fallocate -l {typed} {path} && chmod 600 {path} && mkswap {path} && {on}'"
