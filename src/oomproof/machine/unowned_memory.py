"""RAM that no process owns and that /proc/meminfo's main lines leave out."""

from __future__ import annotations

from oomproof.leaf.proc_files import kib_field
from oomproof.machine import swap
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Unowned:
    """Bytes."""

    zram: int  # the pool of compressed pages
    zswap: int  # the same, in front of a disk swap
    huge_pages: int  # set aside at boot or by sysctl, used or not
    per_cpu: int
    balloon: int  # taken back by the hypervisor


def read(proc: str = "/proc", sys: str = "/sys") -> Unowned:
    try:
        with open(f"{proc}/meminfo", "rb") as file:
            text = b"\n" + file.read()
    except OSError:
        text = b""
    return Unowned(
        zram=swap.zram_in_ram(sys),
        zswap=kib_field(text, b"\nZswap:"),
        huge_pages=kib_field(text, b"\nHugetlb:"),
        per_cpu=kib_field(text, b"\nPercpu:"),
        balloon=kib_field(text, b"\nBalloon:"),
    )
