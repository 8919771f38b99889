"""What `oomproof system` goes by: one look at the machine's settings, its user's rights and a sample of a live job's pages."""

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
