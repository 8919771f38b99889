"""Which programs on this machine kill processes when memory runs out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from oomproof.leaf.proc_files import name_of
from oomproof.records import dataclass

_NAMES = frozenset({"earlyoom", "nohang", "nohang-desktop", "systemd-oomd", "oomd", "bustd"})


class _Named(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Daemon:
    name: str
    pid: int


def among(processes: Iterable[_Named]) -> tuple[Daemon, ...]:
    """The OOM daemons among these processes, known by the kernel's name for them."""
    return tuple(Daemon(process.name, process.pid) for process in processes if process.name in _NAMES)


def running(proc: str = "/proc") -> tuple[Daemon, ...]:
    """The same of all processes, by a look at nothing but their names."""
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return ()
    return tuple(Daemon(name, pid) for pid in pids if (name := name_of(pid, proc)) in _NAMES)
