"""Parts of the runner that need no real job: the ladder of limits, the output's cap, settings, live runs, macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.machine import cgroups, macos_processes, processes
from oomproof.machine.macos import MemoryReader as MacMemoryReader
from oomproof.runner import keeper, limit_backends
from oomproof.runner.attempt_files import read_counters
from oomproof.runner.output_log import Output
from oomproof.settings import resolve


def v2_machine(tmp_path: Path, own: str = "/user/shell") -> Path:
    """A cgroup v2 tree and a /proc that points into it."""
    mount = tmp_path / "cg"
    directory = mount / own.strip("/")
    directory.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"0::{own}\n")
    (tmp_path / "proc" / "self" / "mountinfo").write_text(
        f"30 25 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    return mount


def test_v2_needs_a_parent_that_hands_memory_down(tmp_path: Path) -> None:
    v2_machine(tmp_path)
    backend, reason = limit_backends.make_v2("run", 1 << 30, proc=str(tmp_path / "proc"))
    assert backend is None and "with the memory controller" in reason


def test_v2_is_made_beside_the_shell(tmp_path: Path) -> None:
    mount = v2_machine(tmp_path)
    (mount / "user" / "cgroup.subtree_control").write_text("memory pids\n")
    (mount / "user" / "cgroup.procs").touch()
    backend, _ = limit_backends.make_v2("run", 1 << 30, proc=str(tmp_path / "proc"))
    assert backend is not None
    made = mount / "user" / "oomproof-run"
    assert (made / "memory.max").read_text() == str(1 << 30)
    assert (made / "memory.oom.group").read_text() == "1"
    assert backend.join == [str(made / "cgroup.procs")] and backend.remove == [str(made)]
    assert {name for name, _, _ in backend.counters()} >= {"memcg_oom_kill", "vmstat_oom_kill"}


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert limit_backends.make_v2("x", 1, proc=str(tmp_path / "proc"))[0] is None
    assert limit_backends.make_v1("x", 1, proc=str(tmp_path / "proc"))[0] is None


def test_v2_memory_without_page_cache(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text(
        "anon 1000\nfile 900\nkernel 50\nshmem 100\ninactive_file 500\nactive_file 300\nslab_reclaimable 20\n"
    )
    (tmp_path / "memory.current").write_text("1950\n")
    (tmp_path / "memory.swap.current").write_text("70\n")
    memory = cgroups.CgroupV2(str(tmp_path)).memory()
    assert memory is not None
    assert (memory.use, memory.file, memory.charged) == (1170, 800, 1130)


def test_what_is_charged_is_never_taken_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One descriptor was left, for memory.stat: a limit that looks far away would blind the guard."""
    (tmp_path / "memory.stat").write_text("anon 1000\nkernel 50\nshmem 100\ninactive_file 500\n")
    (tmp_path / "memory.current").write_text("1700\n")
    real, few = cgroups._open, True
    monkeypatch.setattr(
        cgroups, "_open", lambda path: None if few and not path.endswith("memory.stat") else real(path)
    )
    reader = cgroups.CgroupV2(str(tmp_path))
    memory = reader.memory()
    assert memory is not None and memory.charged == 1150
    few = False
    memory = reader.memory()
    assert memory is not None and memory.charged == 1200, "opened as soon as there is a descriptor"


def test_vanished_cgroup_is_a_value(tmp_path: Path) -> None:
    gone = cgroups.CgroupV2(str(tmp_path / "gone"))
    assert gone.memory() is None and gone.pids() == []


def test_a_run_without_a_limit_is_not_told_of_one() -> None:
    backend = limit_backends.LimitBackend("cgroup v2", limit=23 << 30)
    told = backend.sentence(by_user=False)
    assert told == "no limit set; capped at 23.0 GiB by the kernel (cgroup v2)"
    assert "floor" in backend.sentence(by_user=False, verbosity=1)
    assert "no limit" not in backend.sentence(by_user=True)


def test_the_start_is_one_short_line_and_the_reason_is_for_whoever_asks() -> None:
    backend = limit_backends.LimitBackend(limit_backends.WATCH, why_not_better=["no cgroup v2 is mounted"])
    assert backend.sentence(False) == "limit enforced by oomproof, not the kernel"
    assert "no cgroup v2 is mounted" in backend.sentence(False, 1) and backend.sentence(False, -1) == ""
    backend.note = "your last logout may end it"
    assert backend.sentence(False, -1) == "your last logout may end it", "told even when quiet"
    assert "limit 1.0 GiB" in limit_backends.LimitBackend(limit_backends.CGROUP_V2, limit=1 << 30).sentence(
        True
    )


def test_output_keeps_first_and_last_parts(tmp_path: Path) -> None:
    output = Output(str(tmp_path), cap=3 * 4096)
    for number in range(2000):
        output.write(b"line %05d\n" % number)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept["output.first.log"].startswith(b"line 00000\n")
    assert kept["output.log"].endswith(b"line 01999\n")
    assert sum(map(len, kept.values())) <= 3 * 4096 + 100


def test_counters_of_every_shape(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "peak").write_text("77\n")
    wanted = [
        ["a", str(tmp_path / "events"), "oom_kill"],
        ["b", str(tmp_path / "peak"), ""],
        ["c", str(tmp_path / "gone"), "x"],
        ["d", str(tmp_path), "xattr:user.none"],
    ]
    assert read_counters(wanted) == {"a": 2, "b": 77, "c": None, "d": None}


def test_children_by_ps_agrees_with_proc() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in keeper.children_by_ps(os.getpid())
        assert child.pid in keeper.children_of(os.getpid())
    finally:
        child.communicate(b"\n")


def test_macos_path_answers_like_proc() -> None:
    """psutil on Linux stands in for a Mac."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        me = os.getpid()
        assert child.pid in macos_processes.children(me)
        assert child.pid in macos_processes.descendants(me)
        start = macos_processes.start_time(child.pid)
        assert macos_processes.is_alive(child.pid, start)
        assert not macos_processes.is_alive(child.pid, (start or 0) + 5000)
        here, there = macos_processes.memory(me), processes.memory(me)
        assert here is not None and there is not None
        assert abs(here.anon - (there.anon + there.file + there.shmem)) < 20 << 20
    finally:
        child.communicate(b"\n")
    assert macos_processes.memory(child.pid) is None or not macos_processes.is_alive(child.pid, None)
    assert macos_processes.boot_id() == macos_processes.boot_id()
    reader = MacMemoryReader()
    assert reader.read().total > reader.available_and_swap_free()[0] > 0


def test_settings_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "oomproof").mkdir(parents=True)
    (tmp_path / "config" / "oomproof" / "config.toml").write_text('limit = "1G"\ngrace = 5\nmargin = "9G"\n')
    project = tmp_path / "project" / "deep"
    project.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text(
        '[tool.oomproof]\nlimit = "2G"\nstop-signal = "USR1"\n'
    )
    monkeypatch.setenv("OOMPROOF_GRACE", "7")
    found = resolve({"margin": "3G"}, {"limit", "grace", "margin", "stop_signal", "name"}, project)
    assert found == {"limit": "2G", "grace": "7", "margin": "3G", "stop_signal": "USR1", "name": None}


def test_broken_settings_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "oomproof.toml").write_text("limit = \n")
    with pytest.raises(OomproofError, match=r"oomproof\.toml"):
        resolve({}, {"limit"}, tmp_path)


_RAISED_TWICE = """
import resource
from oomproof.runner.supervise import more_descriptors
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
assert more_descriptors() == (100, hard) and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100
assert more_descriptors() == (100, hard)
"""


def test_the_job_of_each_attempt_has_the_users_own_limit_of_files() -> None:
    subprocess.run([sys.executable, "-c", _RAISED_TWICE], check=True)
