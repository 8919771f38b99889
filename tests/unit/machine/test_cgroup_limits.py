from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from oomproof.guard.host_view import HostView
from oomproof.machine import cgroup_limits
from oomproof.machine.cgroups import CgroupV2

GIB = 1 << 30
V2 = "35 24 0:30 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def v2(
    machine: FakeMachine, path: str, limit: str, current: int, *, high: str = "max", file: int = 0
) -> None:
    folder = f"sys/fs/cgroup{path}"
    machine.write(f"{folder}/memory.max", limit + "\n")
    machine.write(f"{folder}/memory.high", high + "\n")
    machine.write(f"{folder}/memory.current", f"{current}\n")
    machine.write(f"{folder}/memory.stat", f"anon 1\nfile {file}\nactive_file {file}\ninactive_file {file}\n")


def read(machine: FakeMachine, pid: int | str = "self") -> cgroup_limits.Limits:
    return cgroup_limits.read(pid, machine.proc, machine.sys)


def test_every_ancestor_counts_and_a_full_parent_binds_tighter(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/user.slice/job.scope\n")
    v2(machine, "/user.slice", str(16 * GIB), 15 * GIB)
    v2(machine, "/user.slice/job.scope", str(8 * GIB), 3 * GIB, file=GIB)
    found = read(machine)
    assert [level.path.removeprefix(machine.sys) for level in found.levels] == [
        "/fs/cgroup/user.slice/job.scope",
        "/fs/cgroup/user.slice",
    ]
    assert found.tightest and (found.tightest.limit, found.tightest.used) == (8 * GIB, 1 * GIB)
    assert found.fullest and (found.fullest.limit, found.fullest.left) == (16 * GIB, 1 * GIB)


def test_max_is_no_limit_and_high_is_one(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/a\n")
    v2(machine, "/a", "max", GIB)
    assert read(machine) == cgroup_limits.Limits()
    v2(machine, "/a", "max", GIB, high=str(4 * GIB))
    tightest = read(machine).tightest
    assert tightest and tightest.file == "memory.high"


def test_swap_limit_of_v2(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/a\n")
    v2(machine, "/a", str(4 * GIB), GIB)
    machine.write("sys/fs/cgroup/a/memory.swap.max", f"{2 * GIB}\n")
    machine.write("sys/fs/cgroup/a/memory.swap.current", f"{GIB}\n")
    found = read(machine)
    assert (found.swap_limit, found.swap_left) == (2 * GIB, GIB)


def test_container_with_its_own_namespace_sees_its_limit_at_the_mount_point(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/\n")
    v2(machine, "", str(6 * GIB), GIB)
    tightest = read(machine).tightest
    assert tightest and tightest.limit == 6 * GIB and tightest.path.endswith("/fs/cgroup")


def test_path_that_leads_out_of_the_namespace(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/mountinfo", V2.format(root="/../.."))
    machine.write("proc/self/cgroup", "0::/../../other\n")
    v2(machine, "", str(6 * GIB), GIB)
    tightest = read(machine).tightest
    assert tightest and tightest.limit == 6 * GIB


def v1(machine: FakeMachine, path: str, limit: int, usage: int, extra: str = "") -> None:
    folder = f"sys/fs/cgroup/memory{path}"
    machine.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
    machine.write(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
    machine.write(
        f"{folder}/memory.stat", f"cache 9\ntotal_active_file 0\ntotal_inactive_file {GIB}\n{extra}"
    )


def test_v1_in_a_hybrid_tree_with_overflow_as_no_limit(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/7/cgroup", "4:memory:/batch/job\n3:cpuset:/\n0::/\n")
    machine.write("proc/self/mountinfo", V1.format(root="/"))
    v1(machine, "", 9223372036854771712, 9 * GIB)
    v1(machine, "/batch", 9223372036854771712, 5 * GIB)
    v1(machine, "/batch/job", 4 * GIB, 3 * GIB, f"total_swap {GIB}\n")
    machine.write("sys/fs/cgroup/memory/batch/job/memory.memsw.limit_in_bytes", f"{6 * GIB}\n")
    found = read(machine, 7)
    (level,) = found.levels
    assert (level.limit, level.used, level.file) == (4 * GIB, 2 * GIB, "memory.limit_in_bytes")
    assert (found.swap_limit, found.swap_left) == (2 * GIB, GIB)


def test_v1_container_sees_only_its_part_of_the_tree(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write("proc/self/cgroup", "4:memory:/docker/abc\n")
    machine.write("proc/self/mountinfo", V1.format(root="/docker/abc"))
    v1(machine, "", 8 * GIB, 2 * GIB, f"hierarchical_memory_limit {5 * GIB}\n")
    found = read(machine)
    assert [level.limit for level in found.levels] == [
        8 * GIB,
        5 * GIB,
    ]  # the second stands above the container
    assert found.tightest and found.tightest.file == "hierarchical_memory_limit"


def test_a_vanished_process_has_no_limits(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert read(machine, 4711) == cgroup_limits.Limits()


def test_on_this_machine() -> None:
    found = cgroup_limits.read(os.getpid())
    assert all(level.limit > 0 and level.used >= 0 for level in found.levels)


def with_memory(machine: FakeMachine) -> None:
    """8 GiB available, 20 GiB of free swap on a disk."""
    gib = 1 << 20
    machine.meminfo(MemTotal=32 * gib, MemAvailable=8 * gib, SwapTotal=20 * gib, SwapFree=20 * gib)


def test_each_swap_limit_is_compared_with_its_own_cgroup(tmp_path: Path) -> None:
    """The job's own cgroup may swap little and has swapped nothing; the slice above may swap much and has."""
    machine = FakeMachine(tmp_path)
    with_memory(machine)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/slice/job\n")
    for path, limit, used in (("/slice/job", 2 * GIB, 0), ("/slice", 10 * GIB, 7 * GIB)):
        v2(machine, path, str(2 * GIB), GIB)
        machine.write(f"sys/fs/cgroup{path}/memory.swap.max", f"{limit}\n")
        machine.write(f"sys/fs/cgroup{path}/memory.swap.current", f"{used}\n")
    found = read(machine)
    assert [level.left for level in found.swap_levels] == [2 * GIB, 3 * GIB]
    host = HostView(machine.proc, machine.sys)
    assert host.headroom() == (GIB, 2 * GIB), "not 2 - 7 GiB"
    machine.write("sys/fs/cgroup/slice/memory.swap.current", f"{9 * GIB}\n")
    assert HostView(machine.proc, machine.sys).headroom() == (GIB, GIB)
    machine.write("sys/fs/cgroup/slice/job/memory.swap.max", "0\n")
    assert HostView(machine.proc, machine.sys).headroom() == (GIB, 0)


def test_zram_that_is_switched_on_later_is_no_extra_memory(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.meminfo(MemTotal=8 << 20, MemAvailable=1 << 20, SwapTotal=0, SwapFree=0)
    machine.write("proc/swaps", "Filename Type Size Used Priority\n")
    host = HostView(machine.proc, machine.sys)
    assert host.headroom() == (GIB, 0)
    machine.meminfo(MemTotal=8 << 20, MemAvailable=1 << 20, SwapTotal=2 << 20, SwapFree=2 << 20)
    machine.write("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 2097152 0 100\n")
    assert host.headroom() == (GIB, 0)
    machine.meminfo(MemTotal=8 << 20, MemAvailable=1 << 20, SwapTotal=3 << 20, SwapFree=3 << 20)
    disk = "/dev/zram0 partition 2097152 0 100\n/swapfile file 1048576 0 -2\n"
    machine.write("proc/swaps", "Filename Type Size Used Priority\n" + disk)
    assert host.headroom() == (GIB, GIB)


def test_a_swap_limit_without_a_memory_limit_counts_too(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_memory(machine)
    machine.write("proc/self/mountinfo", V2.format(root="/"))
    machine.write("proc/self/cgroup", "0::/a\n")
    v2(machine, "/a", "max", GIB)
    machine.write("sys/fs/cgroup/a/memory.swap.max", f"{GIB}\n")
    machine.write("sys/fs/cgroup/a/memory.swap.current", f"{GIB // 4}\n")
    host = HostView(machine.proc, machine.sys)
    assert host.headroom() == (8 * GIB, GIB - GIB // 4)


def test_swap_of_v1_is_what_memory_and_swap_together_leave(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    with_memory(machine)
    machine.write("proc/self/cgroup", "4:memory:/batch/job\n0::/\n")
    machine.write("proc/self/mountinfo", V1.format(root="/"))
    v1(machine, "/batch", 3 * GIB, 3 * GIB, f"total_swap {5 * GIB}\n")
    v1(machine, "/batch/job", 3 * GIB, 2 * GIB, f"total_swap {GIB // 2}\n")
    machine.write("sys/fs/cgroup/memory/batch/memory.memsw.limit_in_bytes", f"{9 * GIB}\n")
    machine.write("sys/fs/cgroup/memory/batch/job/memory.memsw.limit_in_bytes", f"{4 * GIB}\n")
    host = HostView(machine.proc, machine.sys)
    assert host.headroom() == (GIB, GIB // 2), "the job's own, not 1 - 5 GiB"


# memory.stat as these kernels write it, shortened
STAT_4_18 = "anon 1000\nfile 50\nkernel_stack 16384\nslab 90112\nsock 0\nshmem 0\ninactive_file 20\nactive_file 30\nslab_reclaimable 65536\nslab_unreclaimable 24576\n"
STAT_5_4 = STAT_4_18 + "anon_thp 0\n"
STAT_5_10 = STAT_4_18.replace("slab 90112", "percpu 4096\nslab 90112")
STAT_5_15 = STAT_5_10.replace("percpu 4096", "pagetables 8192\npercpu 4096")
STAT_6_1 = STAT_5_15.replace("kernel_stack", "kernel 120000\nkernel_stack")


@pytest.mark.parametrize(
    ("stat", "kernel"),
    [
        (STAT_4_18, 16384 + 24576),
        (STAT_5_4, 16384 + 24576),
        (STAT_5_10, 16384 + 24576 + 4096),
        (STAT_5_15, 16384 + 24576 + 4096 + 8192),
        (STAT_6_1, 120000 - 65536),
        (STAT_6_1.replace("kernel 120000", "kernel 60000"), 0),  # its counters are behind each other
    ],
)
def test_kernel_memory_of_every_kernel(tmp_path: Path, stat: str, kernel: int) -> None:
    (tmp_path / "memory.stat").write_text(stat)
    (tmp_path / "memory.current").write_text("200000\n")
    (tmp_path / "memory.swap.current").write_text("0\n")
    group = CgroupV2(str(tmp_path))
    found = group.memory()
    group.close()
    assert found is not None
    assert (found.kernel, found.anon, found.file) == (kernel, 1000, 50)


def test_a_cgroup_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    group = CgroupV2(str(tmp_path))
    assert group.memory() is None
    (tmp_path / "memory.stat").write_text("anon 1000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    found = group.memory()
    assert found is not None and found.charged == 2000
    group.close()
