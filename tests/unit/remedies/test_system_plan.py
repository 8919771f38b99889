"""Facts and peaks in, a plan out: each setting right, wrong and not told; containers, WSL2, btrfs, a disk that is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine, freeze_machine
from hypothesis import given
from hypothesis import strategies as st

from oomproof.ledger.job_history import JobHistory, JobPeak, declared
from oomproof.machine.asking_user import AskingUser
from oomproof.machine.daemons import Daemon, Threshold
from oomproof.machine.disk_space import DiskSpace
from oomproof.machine.gpu import Gpu, Gpus
from oomproof.machine.host_identity import HostEnvironment
from oomproof.machine.kernel_settings import KernelSettings, Overcommit, UserLimits
from oomproof.machine.page_sample import PageSample
from oomproof.machine.swap import Swap, Zram
from oomproof.machine.systemd_manager import Delegation
from oomproof.records import replace
from oomproof.remedies.system_facts import Change, SampledJob, SwapFile, Sysctl, SystemFacts, gather_system
from oomproof.remedies.system_plan import plan, swap_wanted
from oomproof.units import GIB, MIB

ADA = AskingUser(1000, 1000, "ada", "/home/ada")
I0 = JobHistory(12, (JobPeak("glm", 20 * GIB), JobPeak("train", 19 * GIB)))
NONE = JobHistory()


@pytest.fixture
def facts(tmp_path: Path) -> SystemFacts:
    """The desktop of the freeze, with everything else as it should be."""
    machine = freeze_machine(tmp_path)
    told = gather_system(machine.proc, machine.sys, machine.dev, str(tmp_path), ADA)
    return replace(
        told,
        host=replace(told.host, daemons=(), shm=DiskSpace(16 * GIB, 16 * GIB)),
        kernel=KernelSettings(60, 0, 1, 0, 0),
        delegation=Delegation(2, ("cpu", "memory", "pids")),
        systemd=True,
        lingers=True,
        kernel_log=True,
        thresholds=(),
        disk=DiskSpace(500 * GIB, 300 * GIB),
        limits=UserLimits(),
        sampled=None,
    )


def change(facts: SystemFacts, jobs: JobHistory, name: str) -> Change | None:
    return next((change for change in plan(facts, jobs).changes if change.name == name), None)


def with_host(facts: SystemFacts, **values: Any) -> SystemFacts:
    return replace(facts, host=replace(facts.host, **values))


# --- swap ---------------------------------------------------------------------------------------------------


def test_swap_is_the_shortfall_of_the_freeze(facts: SystemFacts) -> None:
    add = change(facts, I0, "swap")
    assert add is not None and add.step == SwapFile(9 * GIB)
    sum_of_it = (
        "glm 20.0 GiB + train 19.0 GiB + margin 5.0 GiB − 31.0 GiB RAM − 4.0 GiB of swap = 9.0 GiB short"
    )
    assert add.why == sum_of_it
    assert "fallocate -l 9G /swapfile " in add.commands[0]


def test_nothing_is_added_where_the_jobs_fit(facts: SystemFacts) -> None:
    small = declared([10 * GIB])
    assert change(facts, small, "swap") is None
    assert any("enough for 10.0 GiB" in finding.text for finding in plan(facts, small).fine)


def test_without_any_swap_a_small_one(facts: SystemFacts) -> None:
    add = change(with_host(facts, swaps=()), NONE, "swap")
    assert add is not None and add.step == SwapFile(4 * GIB)


def test_a_tenth_of_the_disk_stays_free(facts: SystemFacts) -> None:
    add = change(replace(facts, disk=DiskSpace(100 * GIB, 15 * GIB)), I0, "swap")
    assert add is not None and add.step == SwapFile(5 * GIB) and "10 % of the disk stay free" in add.why
    full = change(replace(facts, disk=DiskSpace(100 * GIB, 9 * GIB)), I0, "swap")
    assert full is not None and full.step is None, "no swap file fits, and none is made"


def test_never_more_than_ram() -> None:
    size, why = swap_wanted(31 * GIB, 0, declared([200 * GIB]))
    assert size == 31 * GIB and "make the job smaller" in why


@given(
    st.integers(256 * MIB, 512 * GIB),
    st.integers(0, 64 * GIB),
    st.lists(st.integers(0, 600 * GIB), max_size=2),
)
def test_swap_and_ram_cover_the_jobs_or_it_is_said(ram: int, on_disk: int, sizes: list[int]) -> None:
    jobs = declared(sizes)
    size, why = swap_wanted(ram, on_disk, jobs)
    assert size >= 0 and (not size or size % (64 * MIB) == 0)
    assert ram + on_disk + size >= jobs.use or "make the job smaller" in why


def test_btrfs_wants_its_own_steps(facts: SystemFacts) -> None:
    place = HostEnvironment(False, False, "btrfs")
    add = change(with_host(facts, place=place), I0, "swap")
    assert add is not None and add.step is None
    assert add.commands[0].startswith("sudo btrfs subvolume create") and "mkswapfile" in add.commands[1]


@pytest.mark.parametrize("filesystem", ["zfs", "overlay", "tmpfs", ""])
def test_no_swap_file_where_none_works(facts: SystemFacts, filesystem: str) -> None:
    add = change(with_host(facts, place=HostEnvironment(False, False, filesystem)), I0, "swap")
    assert add is not None and add.step is None and "swap partition" in add.commands[0]


def test_without_systemd_the_command_is_told(facts: SystemFacts) -> None:
    told = plan(replace(facts, systemd=False), I0)
    add = next(change for change in told.changes if change.name == "swap")
    assert add.step is None and "swapon" in add.commands[0]
    assert any("systemd does not run this machine" in note for note in told.notes)


def test_before_zram_that_saves_nothing(facts: SystemFacts) -> None:
    zram = Swap("/dev/zram0", 4 * GIB, GIB, 100, Zram(GIB, GIB, GIB))
    job = facts.host.jobs[0]
    busy = with_host(facts, swaps=(zram,))
    tensors = replace(busy, sampled=SampledJob(job, PageSample(job.pid, 1024, 1024 * 4096)))
    add = change(tensors, I0, "swap")
    assert add is not None and isinstance(add.step, SwapFile) and add.step.priority == 200
    assert "Priority=200" in add.step.unit_text
    assert any(
        "it is no extra memory for this job" in note and "python (pid 4242)" in note
        for note in plan(tensors, I0).notes
    )
    text = replace(busy, sampled=SampledJob(job, PageSample(job.pid, 1024, 1024 * 1000)))
    add = change(text, I0, "swap")
    assert add is not None and isinstance(add.step, SwapFile) and add.step.priority is None
    assert any("it would give about" in note for note in plan(text, I0).notes)


def test_zram_is_no_disk(facts: SystemFacts) -> None:
    zram = Swap("/dev/zram0", 64 * GIB, 0, 100, Zram(0, 0, 0))
    add = change(with_host(facts, swaps=(zram,)), I0, "swap")
    assert add is not None and add.step == SwapFile(13 * GIB)


# --- places where it is not ours to change ------------------------------------------------------------------


def test_container_changes_nothing(facts: SystemFacts) -> None:
    told = plan(with_host(facts, place=HostEnvironment(True, False, "overlay")), I0)
    assert told.blocked.startswith("this is a container") and not told.to_apply
    add = next(change for change in told.changes if change.name == "swap")
    assert "on the host" in add.commands[0] and "--memory-swap" in add.commands[1]


def test_wsl_sets_swap_in_windows(facts: SystemFacts) -> None:
    told = plan(with_host(facts, place=HostEnvironment(False, True, "ext4")), I0)
    assert not told.to_apply
    assert ".wslconfig" in next(change for change in told.changes if change.name == "swap").commands[0]


def test_macos(facts: SystemFacts) -> None:
    assert plan(replace(facts, macos=True), I0).changes == ()


# --- kernel settings ----------------------------------------------------------------------------------------


def test_what_is_right_is_left_alone(facts: SystemFacts) -> None:
    told = plan(facts, declared([10 * GIB]))
    assert told.changes == ()
    assert {"swap", "swappiness", "overcommit", "victim", "sysrq", "delegation"} <= {
        f.name for f in told.fine
    }


@pytest.mark.parametrize(
    ("kernel", "name", "step"),
    [
        (KernelSettings(swappiness=0), "swappiness", Sysctl("vm.swappiness", 60)),
        (KernelSettings(oom_kill_allocating_task=1), "victim", Sysctl("vm.oom_kill_allocating_task", 0)),
        (KernelSettings(sysrq=176), "sysrq", Sysctl("kernel.sysrq", 240)),
        (KernelSettings(sysrq=0), "sysrq", Sysctl("kernel.sysrq", 64)),
    ],
)
def test_kernel_settings(facts: SystemFacts, kernel: KernelSettings, name: str, step: Sysctl) -> None:
    told = change(replace(facts, kernel=kernel), NONE, name)
    assert told is not None and told.step == step
    assert f"{step.key}={step.value}" in told.commands[0]


@pytest.mark.parametrize("mode", [1, 2])
def test_overcommit(facts: SystemFacts, mode: int) -> None:
    told = change(with_host(facts, overcommit=Overcommit(mode, 20 * GIB, 19 * GIB)), NONE, "overcommit")
    assert told is not None and told.step == Sysctl("vm.overcommit_memory", 0)
    assert ("protects nothing" in told.why) is (mode == 1)


def test_a_low_swappiness_is_a_choice(facts: SystemFacts) -> None:
    assert change(replace(facts, kernel=KernelSettings(swappiness=1)), NONE, "swappiness") is None


def test_what_the_kernel_does_not_tell_is_no_change(facts: SystemFacts) -> None:
    told = plan(with_host(replace(facts, kernel=KernelSettings()), overcommit=None), NONE)
    assert not {"swappiness", "victim", "sysrq", "overcommit"} & {change.name for change in told.changes}


def test_delegation(facts: SystemFacts) -> None:
    missing = replace(facts, delegation=Delegation(2, ("pids",)))
    told = change(missing, NONE, "delegation")
    assert told is not None and told.step is not None and "only pids" in told.why
    assert change(replace(missing, systemd=False), NONE, "delegation") is None
    assert change(replace(missing, user=AskingUser(0, 0, "root", "/root")), NONE, "delegation") is None
    assert change(replace(facts, delegation=Delegation(2, None)), NONE, "delegation") is None, (
        "unknown is no change"
    )
    v1 = change(replace(facts, delegation=Delegation(1)), NONE, "cgroup")
    assert v1 is not None and v1.step is None


# --- by hand ------------------------------------------------------------------------------------------------


def test_by_hand(facts: SystemFacts) -> None:
    worse = replace(
        with_host(facts, shm=DiskSpace(64 * MIB, 64 * MIB), gpus=Gpus((Gpu(0, "L4", 1, 0, 1, persistence=False),))),
        limits=UserLimits(address_space=32 * GIB), lingers=False, kernel_log=False, driver="535.54",
    )  # fmt: skip
    told = plan(worse, NONE)
    by_name = {change.name: change for change in told.changes}
    assert {"shm", "ulimit", "linger", "kernel-log", "gpu-persistence", "gpu-driver"} <= set(by_name)
    assert not {change.name for change in told.to_apply} & set(by_name) - {"swap"}
    assert "CUDA" in by_name["ulimit"].why and "remount,size=15G" in by_name["shm"].commands[0]
    assert by_name["linger"].commands == ("loginctl enable-linger ada",)
    container = plan(with_host(worse, place=HostEnvironment(True, False, "overlay")), NONE)
    assert "--shm-size" in next(c for c in container.changes if c.name == "shm").commands[0]


def test_driver_that_gives_memory_back(facts: SystemFacts) -> None:
    assert any(
        finding.name == "gpu-driver" for finding in plan(replace(facts, driver="570.86.15"), NONE).fine
    )


@pytest.mark.parametrize(
    ("threshold", "first"),
    [
        (Threshold(Daemon("earlyoom", 7), 10, None, 10, settings_file="/etc/default/earlyoom"), True),
        (Threshold(Daemon("earlyoom", 7), 2, None, 10), False),
        (Threshold(Daemon("earlyoom", 7), 10, 512 * MIB, 10), False),
        (Threshold(Daemon("nohang", 8), 5, None, 10, settings_file="/etc/nohang/nohang.conf"), True),
        (Threshold(Daemon("systemd-oomd", 9), pressure=("user@.service above 50% for 20s",)), False),
        (Threshold(Daemon("oomd", 9)), False),
    ],
)
def test_who_acts_first(facts: SystemFacts, threshold: Threshold, first: bool) -> None:
    """oomproof's floor is 4 % of RAM here."""
    told = change(replace(facts, thresholds=(threshold,)), NONE, "daemon")
    assert (told is not None) is first
    if told is not None:
        assert f"{threshold.daemon.name} is first" in told.why and threshold.settings_file in told.commands[0]
        assert "3" in told.commands[0].split(":")[1], "below our floor of 4 %"


def test_an_empty_machine_tells_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.meminfo(MemTotal=8 << 20, MemAvailable=4 << 20)
    told = gather_system(machine.proc, machine.sys, machine.dev, str(tmp_path), ADA)
    assert plan(told, NONE).changes  # no swap, at least
