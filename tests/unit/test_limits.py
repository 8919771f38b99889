from __future__ import annotations

import os
from pathlib import Path

from fake_machine import FakeMachine

from oomproof.machine import limits

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


def read(machine: FakeMachine, pid: int | str = "self") -> limits.Limits:
    return limits.read(pid, machine.proc, machine.sys)


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
    assert read(machine) == limits.Limits()
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
    assert read(machine, 4711) == limits.Limits()


def test_on_this_machine() -> None:
    found = limits.read(os.getpid())
    assert all(level.limit > 0 and level.used >= 0 for level in found.levels)
