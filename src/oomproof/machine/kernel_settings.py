"""Kernel settings for memory and rights, from /proc/sys and /sys; overcommit and MGLRU; the limits of `ulimit`."""

from __future__ import annotations

import re

from oomproof.leaf.proc_files import kib_field, read_text
from oomproof.records import dataclass

_LIMIT = re.compile(r"^Max (.+?) {2,}(\S+) +(\S+)", re.MULTILINE)
SYSRQ_ALL = 1
SYSRQ_SIGNALS = 64  # the bit that allows SysRq+e, +i and +f


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """None: this kernel does not have it, or hides it."""

    swappiness: int | None = None
    oom_kill_allocating_task: int | None = None
    sysrq: int | None = None
    dmesg_restrict: int | None = None
    ptrace_scope: int | None = None

    @property
    def sysrq_may_kill(self) -> bool | None:
        """Whether SysRq+f at the keyboard calls the OOM killer. Root may always write to /proc/sysrq-trigger."""
        return None if self.sysrq is None else self.sysrq == SYSRQ_ALL or bool(self.sysrq & SYSRQ_SIGNALS)


def read(proc: str = "/proc") -> KernelSettings:
    return KernelSettings(
        swappiness=number(f"{proc}/sys/vm/swappiness"),
        oom_kill_allocating_task=number(f"{proc}/sys/vm/oom_kill_allocating_task"),
        sysrq=number(f"{proc}/sys/kernel/sysrq"),
        dmesg_restrict=number(f"{proc}/sys/kernel/dmesg_restrict"),
        ptrace_scope=number(f"{proc}/sys/kernel/yama/ptrace_scope"),
    )


def number(path: str) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Mglru:
    enabled: bool
    min_ttl_ms: int | None  # pages used within this time are not evicted: the OOM killer acts instead. 0: off


def read_mglru(sys: str = "/sys") -> Mglru | None:
    """None: the kernel has none."""
    enabled = read_text(f"{sys}/kernel/mm/lru_gen/enabled").strip()  # 0x0007: a bit for each part of it
    if not enabled:
        return None
    return Mglru(enabled.lower() not in ("0", "0x0000", "n"), number(f"{sys}/kernel/mm/lru_gen/min_ttl_ms"))


@dataclass(frozen=True, slots=True)
class Overcommit:
    """Mode 0 refuses the absurd, 1 refuses nothing, 2 refuses everything past ``limit``."""

    mode: int
    limit: int  # CommitLimit: binding in mode 2 only
    committed: int


def read_overcommit(proc: str = "/proc") -> Overcommit | None:
    """None where the kernel does not tell (macOS, some sandboxes)."""
    try:
        with open(f"{proc}/sys/vm/overcommit_memory", "rb") as file:
            mode = int(file.read())
        with open(f"{proc}/meminfo", "rb") as file:
            text = file.read()
    except (OSError, ValueError):
        return None
    return Overcommit(mode, kib_field(text, b"CommitLimit:"), kib_field(text, b"Committed_AS:"))


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Soft limits in bytes; None: unlimited, or not told."""

    address_space: int | None = None  # ulimit -v
    data: int | None = None  # ulimit -d
    locked: int | None = None  # ulimit -l
    open_files: int | None = None  # ulimit -n, a count


def user_limits(proc: str = "/proc", pid: int | str = "self") -> UserLimits:
    soft = {name: value for name, value, _ in _LIMIT.findall(read_text(f"{proc}/{pid}/limits"))}

    def limit(name: str) -> int | None:
        value = soft.get(name, "")
        return int(value) if value.isascii() and value.isdigit() else None

    return UserLimits(limit("address space"), limit("data size"), limit("locked memory"), limit("open files"))
