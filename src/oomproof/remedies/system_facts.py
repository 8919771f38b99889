"""What `oomproof system` goes by (one look at the machine, the rights of its user, a sample of a live job's pages), and the changes it can plan."""

from __future__ import annotations

import os
import sys as system

from oomproof.ledger.machine_facts import Facts, gather
from oomproof.machine import (
    asking_user,
    daemons,
    disk_space,
    kernel_settings,
    nvidia,
    page_sample,
    processes,
    systemd_manager,
)
from oomproof.machine.jobs import Job
from oomproof.records import dataclass

SYSCTL_FILE = "/etc/sysctl.d/99-zz-oomproof.conf"  # after 99-sysctl.conf, which is /etc/sysctl.conf
BY_HAND_SYSCTL_FILE = "/etc/sysctl.d/99-zz-local.conf"
SWAP_FILE = "/swapfile_oomproof"  # no dash in it: systemd's name for it is then its own
SWAP_UNIT = "swapfile_oomproof.swap"
UNIT_FOLDER = "/etc/systemd/system"
DELEGATION_FILE = f"{UNIT_FOLDER}/user@.service.d/50-oomproof.conf"
HEAD = "# Written by `oomproof system --apply`; `oomproof system --undo` takes it away.\n"
DELEGATION_TEXT = f"{HEAD}[Service]\nDelegate=pids memory cpu\n"


@dataclass(frozen=True, slots=True)
class Sysctl:
    key: str
    value: int


@dataclass(frozen=True, slots=True)
class SwapFile:
    size: int
    priority: int | None = None

    @property
    def unit_text(self) -> str:
        priority = f"Priority={self.priority}\n" if self.priority is not None else ""
        return (
            f"{HEAD}[Unit]\nDescription=Swap file of oomproof\n\n"
            # taking swap away reads all of it back: no time is too long for that
            f"[Swap]\nWhat={SWAP_FILE}\n{priority}TimeoutSec=infinity\n\n[Install]\nWantedBy=swap.target\n"
        )


@dataclass(frozen=True, slots=True)
class Delegate:
    """The memory controller for every user's own manager."""


Step = Sysctl | SwapFile | Delegate


@dataclass(frozen=True, slots=True)
class Change:
    name: str  # swap, sysrq…: what --only calls it
    title: str
    why: str
    does: str
    does_not: str
    commands: tuple[str, ...]
    step: Step | None = None  # None: by hand


@dataclass(frozen=True, slots=True)
class Fine:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    changes: tuple[Change, ...] = ()
    fine: tuple[Fine, ...] = ()
    notes: tuple[str, ...] = ()  # what else the user should know, a sentence each
    blocked: str = ""  # why nothing can be applied here

    @property
    def to_apply(self) -> tuple[Change, ...]:
        return () if self.blocked else tuple(change for change in self.changes if change.step is not None)


def sysctl_command(*settings: Sysctl) -> str:
    lines = "\\n".join(f"{setting.key}={setting.value}" for setting in settings)
    return f"printf '{lines}\\n' | sudo tee -a {BY_HAND_SYSCTL_FILE} && sudo sysctl -p {BY_HAND_SYSCTL_FILE}"


_WORTH_A_SAMPLE = 256 << 20  # bytes; the pages of a small job say nothing about the next training
_PROCESSES = 4  # of a job, the largest: one of them may be sampled


@dataclass(frozen=True, slots=True)
class SampledJob:
    job: Job
    pages: page_sample.PageSample | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    host: Facts
    user: asking_user.AskingUser
    kernel: kernel_settings.KernelSettings
    limits: kernel_settings.UserLimits
    delegation: systemd_manager.Delegation
    systemd: bool = True
    lingers: bool = False
    kernel_log: bool = True  # whether the user may read it
    mglru: kernel_settings.Mglru | None = None
    thresholds: tuple[daemons.Threshold, ...] = ()
    disk: disk_space.DiskSpace | None = None  # what / is on
    driver: str | None = None
    sampled: SampledJob | None = None
    macos: bool = False


def gather_system(
    proc: str = "/proc",
    sys: str = "/sys",
    dev: str = "/dev",
    root: str = "/",
    user: asking_user.AskingUser | None = None,
) -> SystemFacts:
    host = gather(proc, sys, dev, root)
    user = user or asking_user.read()
    kernel = kernel_settings.read(proc)
    return SystemFacts(
        host=host,
        user=user,
        kernel=kernel,
        limits=kernel_settings.user_limits(proc),
        delegation=systemd_manager.delegation(user.uid, proc, sys),
        systemd=systemd_manager.has_systemd(os.path.join(root, "run")),
        lingers=systemd_manager.lingers(user.name, os.path.join(root, systemd_manager.LINGER.lstrip("/"))),
        kernel_log=_may_read_log(user, kernel, dev),
        mglru=kernel_settings.read_mglru(sys),
        thresholds=daemons.thresholds(host.daemons, proc, root),
        disk=disk_space.read(root),
        driver=nvidia.driver_version(proc),
        sampled=_sampled(host, user.uid, proc),
        macos=system.platform == "darwin",
    )


def _may_read_log(user: asking_user.AskingUser, kernel: kernel_settings.KernelSettings, dev: str) -> bool:
    """Behind `sudo` our own rights say nothing about the user's."""
    if user.reads_journal:
        return True
    if user.uid != os.geteuid():
        return kernel.dmesg_restrict == 0
    try:
        os.close(os.open(f"{dev}/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _sampled(host: Facts, uid: int, proc: str) -> SampledJob | None:
    """The largest job of this user, if there is one."""
    job = next((job for job in host.jobs if job.uid == uid and job.use >= _WORTH_A_SAMPLE), None)
    if job is None:
        return None
    held = {pid: memory.anon for pid in job.pids if (memory := processes.memory(pid, proc)) is not None}
    problem = ""
    for pid in sorted(held, key=lambda pid: -held[pid])[:_PROCESSES]:
        pages, problem = page_sample.sample(pid, uid, proc)
        if pages is not None:
            return SampledJob(job, pages)
    return SampledJob(job, None, problem)
