"""What /proc/sys says about memory and rights: the settings people change, and the ones that change what we may read."""

from __future__ import annotations

from oomproof.leaf.proc_files import read_text
from oomproof.records import dataclass

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
