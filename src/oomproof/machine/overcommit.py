"""What the kernel grants when a program asks for memory: vm.overcommit_memory."""

from __future__ import annotations

from oomproof.leaf.proc_files import kib_field
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Mode 0 refuses the absurd, 1 refuses nothing, 2 refuses everything past ``limit``."""

    mode: int
    limit: int  # CommitLimit: binding in mode 2 only
    committed: int


def read(proc: str = "/proc") -> Overcommit | None:
    """None where the kernel does not tell (macOS, some sandboxes)."""
    try:
        with open(f"{proc}/sys/vm/overcommit_memory", "rb") as file:
            mode = int(file.read())
        with open(f"{proc}/meminfo", "rb") as file:
            text = file.read()
    except (OSError, ValueError):
        return None
    return Overcommit(mode, kib_field(text, b"CommitLimit:"), kib_field(text, b"Committed_AS:"))
