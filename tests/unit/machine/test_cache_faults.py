"""Counters of what was read back from disk, as each kind of machine tells them."""

from __future__ import annotations

from pathlib import Path

from oomproof.machine.cache_faults import CacheFaults, of_cgroup, of_processes

PRESSURE = (
    "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
)
STAT = (
    "anon 5\nworkingset_refault_anon 4\nworkingset_refault_file 3\nworkingset_activate_file 2\npgmajfault 9\n"
)


def test_of_a_cgroup_of_either_version(tmp_path: Path) -> None:
    v2, v1, unified, proc = (tmp_path / name for name in ("v2", "v1", "unified", "proc"))
    for folder in (v2, v1, unified, proc / "pressure"):
        folder.mkdir(parents=True)
    (v2 / "memory.stat").write_text(STAT)
    assert of_cgroup(str(v2), 2, proc=str(proc)) == CacheFaults(3 * 4096, 9, None), "no PSI"
    (v2 / "memory.pressure").write_text(PRESSURE)
    assert of_cgroup(str(v2), 2, proc=str(proc)) == CacheFaults(3 * 4096, 9, 2.5)
    (v1 / "memory.stat").write_text(
        STAT + "".join(f"total_{line.rstrip('0123456789')}70\n" for line in STAT.splitlines())
    )
    assert of_cgroup(str(v1), 1, proc=str(proc)) == CacheFaults(70 * 4096, 70, None)
    (proc / "pressure" / "memory").write_text(PRESSURE.replace("2500000", "1000000"))
    assert of_cgroup(str(v1), 1, proc=str(proc)) == CacheFaults(70 * 4096, 70, 1.0), "of the machine"
    (unified / "memory.pressure").write_text(PRESSURE)
    assert of_cgroup(str(v1), 1, str(unified), str(proc)) == CacheFaults(70 * 4096, 70, 2.5)
    (v2 / "memory.stat").write_text("anon 5\npgmajfault 9\n")
    assert of_cgroup(str(v2), 2, proc=str(proc)) is None, "an old kernel"
    assert of_cgroup(str(tmp_path / "gone"), 2, proc=str(proc)) is None


def test_of_processes_without_a_cgroup(tmp_path: Path) -> None:
    for pid, major in ((7, 40), (8, 2)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(
            f"{pid} (a )b) S 1 1 1 0 -1 4194304 900 0 {major} 0 " + "0 " * 40
        )
    assert of_processes([7, 8, 9], str(tmp_path)) is None, "the kernel tells nothing"
    (tmp_path / "vmstat").write_text("nr_free 1\nworkingset_refault 6\n")
    assert of_processes([7, 8, 9], str(tmp_path)) == CacheFaults(6 * 4096, 42, None)
    (tmp_path / "vmstat").write_text("nr_free 1\nworkingset_refault_file 5\n")
    assert of_processes([], str(tmp_path)) == CacheFaults(5 * 4096, 0, None)
