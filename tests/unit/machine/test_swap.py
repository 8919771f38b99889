from __future__ import annotations

from pathlib import Path

from fake_machine import FakeMachine

from oomproof.machine import memory, swap

MIB = 1 << 20
# zram0 of a machine under a training job: tensors, stored nearly as they are
POOR = " 387973120 386412544 388587520        0 388587520        8        0    93812    93901\n"
GOOD = "4294967296 1073741824 1100000000        0 1200000000     1024        0      120      130\n"


def test_disk_and_zram_are_told_apart(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.swaps(
        "/dev/zram0                              partition\t8388604\t\t378880\t\t100",
        "/dev/nvme0n1p3                          partition\t4194300\t\t1048576\t\t-2",
        "/data/swap\\040file                      file\t\t1048572\t\t0\t\t-3",
    )
    machine.write("sys/block/zram0/mm_stat", POOR)
    zram, disk, file = swap.read(machine.proc, machine.sys)
    assert zram.zram and zram.zram.in_ram == 388587520 and zram.zram.saved < 0
    assert disk.zram is None and disk.free == (4194300 - 1048576) * 1024 and disk.priority == -2
    assert file.path == "/data/swap file"
    assert swap.disk((zram, disk, file)) == ((4194300 + 1048572) * 1024, disk.free + file.total)


def test_what_zram_saves(tmp_path: Path) -> None:
    found = swap.parse_mm_stat(GOOD)
    assert found and found.saved == 4294967296 - 1100000000


def test_zram_whose_statistics_are_hidden_saves_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.swaps("/dev/zram0                              partition\t8388604\t\t1024\t\t100")
    (area,) = swap.read(machine.proc, machine.sys)
    assert area.zram and area.zram.saved == 0


def test_no_swap_and_no_proc(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert swap.read(machine.proc, machine.sys) == ()
    machine.swaps()
    assert swap.read(machine.proc, machine.sys) == ()
    assert swap.zram_in_ram(machine.sys) == 0


def test_odd_lines_are_skipped(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.swaps("nonsense", "/a file x y z")
    assert swap.read(machine.proc, machine.sys) == ()
    assert swap.parse_mm_stat("1 2") is None


def test_the_pool_counts_devices_that_are_no_swap(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.meminfo(MemTotal=1024, Zswap=7, Percpu=3, Hugetlb=2048)
    machine.write("sys/block/zram0/mm_stat", POOR)
    machine.write("sys/block/zram1/mm_stat", GOOD)
    machine.write("sys/block/sda/size", "1\n")
    found = memory.read_unowned(machine.proc, machine.sys)
    assert found.zram == 388587520 + 1100000000
    assert (found.zswap, found.per_cpu, found.huge_pages) == (7 * 1024, 3 * 1024, 2 * MIB)
