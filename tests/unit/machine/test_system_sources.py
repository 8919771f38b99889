"""Settings and rights as the kernel and the settings files tell them, from plain folders; what is not there is None."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from oomproof.machine import (
    asking_user,
    daemons,
    disk_space,
    kernel_settings,
    nvidia,
    page_sample,
    systemd_manager,
)
from oomproof.machine.daemons import Daemon

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max data size             unlimited            unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
Max address space         34359738368          unlimited            bytes
"""


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_kernel_settings(machine: FakeMachine) -> None:
    assert kernel_settings.read(machine.proc) == kernel_settings.KernelSettings()
    machine.write("proc/sys/vm/swappiness", "100\n")
    machine.write("proc/sys/kernel/sysrq", "176\n")
    machine.write("proc/sys/kernel/dmesg_restrict", "what\n")
    now = kernel_settings.read(machine.proc)
    assert (now.swappiness, now.sysrq, now.dmesg_restrict) == (100, 176, None)


@pytest.mark.parametrize(
    ("value", "may"),
    [(0, False), (1, True), (16, False), (176, False), (438, False), (64, True), (502, True)],
)
def test_sysrq_f_wants_its_bit(value: int, may: bool) -> None:
    assert kernel_settings.KernelSettings(sysrq=value).sysrq_may_kill is may


def test_mglru(machine: FakeMachine) -> None:
    assert kernel_settings.read_mglru(machine.sys) is None
    machine.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n")
    machine.write("sys/kernel/mm/lru_gen/min_ttl_ms", "1000\n")
    assert kernel_settings.read_mglru(machine.sys) == kernel_settings.Mglru(True, 1000)
    machine.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n")
    assert kernel_settings.read_mglru(machine.sys) == kernel_settings.Mglru(False, 1000)


def test_user_limits(machine: FakeMachine) -> None:
    assert kernel_settings.user_limits(machine.proc) == kernel_settings.UserLimits()
    machine.write("proc/self/limits", LIMITS)
    assert kernel_settings.user_limits(machine.proc) == kernel_settings.UserLimits(
        32 << 30, None, 8 << 20, 1024
    )


def test_user_limits_of_a_real_shell() -> None:
    shown = "import sys; from oomproof.machine import kernel_settings; print(kernel_settings.user_limits().address_space)"
    limited = subprocess.run(
        ["bash", "-c", 'ulimit -v 4194304; exec "$0" -c "$1"', sys.executable, shown],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert limited.stdout.strip() == str(4 << 30)


def test_delegation(machine: FakeMachine) -> None:
    assert systemd_manager.delegation(1000, machine.proc, machine.sys).version == 0
    mount = "35 24 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"
    machine.write("proc/self/mountinfo", mount)
    assert systemd_manager.delegation(1000, machine.proc, machine.sys).has_memory is None, "no manager runs"
    manager = "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
    machine.write(f"{manager}/cgroup.events", "populated 1\n")
    machine.write(f"{manager}/cgroup.controllers", "\n")
    assert systemd_manager.delegation(1000, machine.proc, machine.sys).has_memory is False
    machine.write(f"{manager}/cgroup.controllers", "cpu memory pids\n")
    assert systemd_manager.delegation(1000, machine.proc, machine.sys).has_memory is True
    v1 = "36 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    machine.write("proc/self/mountinfo", mount + v1)
    assert systemd_manager.delegation(1000, machine.proc, machine.sys).version == 1


def test_linger_and_systemd(tmp_path: Path) -> None:
    assert not systemd_manager.has_systemd(str(tmp_path))
    (tmp_path / "ada").touch()
    assert systemd_manager.lingers("ada", str(tmp_path)) and not systemd_manager.lingers("bob", str(tmp_path))


def test_disk_space(tmp_path: Path) -> None:
    space = disk_space.read(str(tmp_path))
    assert space is not None and 0 <= space.free <= space.total
    assert disk_space.read(str(tmp_path / "gone")) is None


def test_driver_version(machine: FakeMachine) -> None:
    assert nvidia.driver_version(machine.proc) is None
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    machine.write("proc/driver/nvidia/version", text)
    assert nvidia.driver_version(machine.proc) == "580.65.06"


def test_who_asks() -> None:
    assert asking_user.read({}, own=os.getuid()).uid == os.getuid()
    assert asking_user.read({"SUDO_UID": "4000000"}, own=0).uid == 4000000, "who typed sudo, known or not"
    assert asking_user.read({"SUDO_UID": "0"}, own=12345).uid == 12345, "only root was made root by sudo"
    assert asking_user.read({"SUDO_UID": "ada; rm"}, own=0).is_root


# --- OOM daemons --------------------------------------------------------------------------------------------


def test_earlyoom(machine: FakeMachine) -> None:
    def threshold(*argv: str) -> daemons.Threshold:
        machine.process(7, "earlyoom", argv=("/usr/bin/earlyoom", *argv))
        return daemons.thresholds([Daemon("earlyoom", 7)], machine.proc, str(machine.folder))[0]

    assert (threshold("-r", "3600").memory_percent, threshold().swap_percent) == (10, 10)
    assert threshold("-m", "5,3", "-s", "100").memory_percent == 5
    assert threshold("-m5", "-M", "1048576,524288").memory_bytes == 1 << 30
    assert threshold("-m").memory_percent == 10, "a value that is missing is none"


def test_nohang(machine: FakeMachine) -> None:
    machine.process(8, "nohang", argv=("python3", "nohang", "--monitor", "--config", "/etc/n.conf"))
    text = "# soft_threshold_min_mem = 9 %\nsoft_threshold_min_mem = 5 %\nsoft_threshold_min_swap = 300 M\n"
    machine.write("etc/n.conf", text)
    (threshold,) = daemons.thresholds([Daemon("nohang", 8)], machine.proc, str(machine.folder))
    assert (threshold.memory_percent, threshold.swap_percent) == (5, None)
    assert threshold.settings_file == "/etc/n.conf"


def test_systemd_oomd_as_debian_sets_it(machine: FakeMachine) -> None:
    units = "usr/lib/systemd/system"
    machine.write("etc/systemd/oomd.conf", "[OOM]\n#SwapUsedLimit=90%\n")
    machine.write("usr/lib/systemd/oomd.conf.d/10.conf", "[OOM]\nDefaultMemoryPressureDurationSec=20s\n")
    machine.write(f"{units}/-.slice.d/10-oomd.conf", "[Slice]\nManagedOOMSwap=kill\n")
    pressure = "[Service]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=50%\n"
    machine.write(f"{units}/user@.service.d/10-oomd.conf", pressure)
    (threshold,) = daemons.thresholds([Daemon("systemd-oomd", 9)], machine.proc, str(machine.folder))
    assert threshold.pressure == ("user@.service above 50% for 20s",)
    assert threshold.swap_percent == 10
    machine.write("etc/systemd/system/user@.service.d/10-oomd.conf", "[Service]\n")  # hides the one of /usr
    (threshold,) = daemons.thresholds([Daemon("systemd-oomd", 9)], machine.proc, str(machine.folder))
    assert threshold.pressure == ()


# --- pages of a job -----------------------------------------------------------------------------------------

HOLD = """
import os, sys
data = bytearray(32 << 20)
for at in range(0, len(data), 4096):
    data[at : at + 4096] = {fill}
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("fill", "low", "high"),
    [
        ("os.urandom(4096)", 0.9, 1.0),
        ("b'the quick brown fox ' * 204 + b'jumps over a lazy'[:16]", 0.0, 0.35),
    ],
)
def test_compressibility_of_a_real_process(fill: str, low: float, high: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.format(fill=fill)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None and job.stdin is not None
        assert job.stdout.readline() == b"ready\n"
        pages, problem = page_sample.sample(job.pid, os.getuid())
        other, refused = page_sample.sample(job.pid, os.getuid() + 1)
        job.stdin.close()
    if pages is None and problem == "Permission denied":
        pytest.skip("this kernel does not let us read a child's memory")
    assert pages is not None, problem
    assert 500 < pages.pages <= page_sample.MOST_PAGES
    assert low <= pages.share <= high
    assert other is None and refused == "another user's process"


def test_looking_brings_no_page_into_ram() -> None:
    """Memory that was mapped and never touched stays untouched."""
    code = "import mmap, sys\nm = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stdin is not None
        job.stdout.readline()

        def resident() -> int:
            return int(Path(f"/proc/{job.pid}/statm").read_text().split()[1])

        before = resident()
        page_sample.sample(job.pid, os.getuid())
        grown = resident() - before
        job.stdin.close()
    assert grown < 16


def test_a_process_that_is_gone_is_a_value() -> None:
    assert page_sample.sample(1 << 22, os.getuid())[0] is None


def test_cost_of_a_page() -> None:
    assert page_sample.cost(bytes(4096)) == 0
    assert page_sample.cost(b"\x01\x02\x03\x04\x05\x06\x07\x08" * 512) == 0, "one word repeated"
    assert page_sample.cost(os.urandom(4096)) == 4096, "kept whole"
    assert 0 < page_sample.cost(b"abcdefghi" * 455 + b"x") < 1000
