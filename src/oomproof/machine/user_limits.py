"""The limits of `ulimit` over this process and what it starts."""

from __future__ import annotations

import re

from oomproof.leaf.proc_files import read_text
from oomproof.records import dataclass

_LINE = re.compile(r"^Max (.+?) {2,}(\S+) +(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Soft limits in bytes; None: unlimited, or not told."""

    address_space: int | None = None  # ulimit -v
    data: int | None = None  # ulimit -d
    locked: int | None = None  # ulimit -l
    open_files: int | None = None  # ulimit -n, a count


def read(proc: str = "/proc", pid: int | str = "self") -> UserLimits:
    soft = {name: value for name, value, _ in _LINE.findall(read_text(f"{proc}/{pid}/limits"))}

    def limit(name: str) -> int | None:
        value = soft.get(name, "")
        return int(value) if value.isascii() and value.isdigit() else None

    return UserLimits(limit("address space"), limit("data size"), limit("locked memory"), limit("open files"))
