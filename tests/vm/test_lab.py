"""Proves that the lab itself is what the scenarios take it for: systemd, cgroup v2, PSI, sessions, swap."""

from __future__ import annotations

import pytest
from lab import LabError, Machine, Result

pytestmark = pytest.mark.vm

SESSION_SCOPE = "/user.slice/user-1000.slice/session-"
USER_MANAGER = "/user.slice/user-1000.slice/user@1000.service/"


def test_kernel_offers_what_the_guard_needs(machine: Machine) -> None:
    assert "memory" in machine.run("cat /sys/fs/cgroup/cgroup.controllers").out.split()
    assert "full avg10=" in machine.run("cat /proc/pressure/memory").out
    assert (
        machine.run("cat /proc/self/oom_score_adj").out == "0\n"
    )  # commands are not protected as the agent is
    assert (
        machine.run("systemctl is-active systemd-oomd earlyoom nohang", check=False).out.split()
        == ["inactive"] * 3
    )


def test_exit_status_and_output_come_back(machine: Machine) -> None:
    assert machine.run("echo out; echo err >&2; exit 7", check=False) == Result(7, "out\nerr\n")
    assert machine.run("kill -9 $$", check=False).rc == 137
    with pytest.raises(LabError, match="nothing within 2 s"):
        machine.run("sleep 1000", timeout=2)
    assert machine.run("pgrep -x sleep", check=False).out == ""


def test_ordinary_user_has_a_session_and_a_manager(machine: Machine) -> None:
    assert machine.run("cat /proc/self/cgroup", user="ada").out.startswith("0::" + SESSION_SCOPE)
    state = machine.run("systemctl --user is-system-running --wait", user="ada", check=False).out.strip()
    assert state in ("running", "degraded")
    scope = "systemd-run --user --scope -p MemoryMax=50M -p Delegate=yes --quiet "
    inside = machine.run(scope + "sh -c 'cat /proc/self/cgroup'", user="ada").out.strip()
    assert inside.startswith("0::" + USER_MANAGER) and inside.endswith(".scope")
    killed = machine.run(scope + "python3 -c 'bytearray(200 << 20)'", user="ada", check=False)
    assert killed.rc == 137, killed.out
    assert "Memory cgroup out of memory" in machine.dmesg()


def test_user_scopes_die_after_the_last_logout(machine: Machine) -> None:
    session = machine.login("ada")
    assert session.run("cat /proc/self/cgroup").out.strip() == f"0::{SESSION_SCOPE}{session.id}.scope"
    # -f: whatever stays behind in the session's own scope would keep the session, and so the manager, alive
    session.run("setsid -f systemd-run --user --scope --quiet sleep 4321")
    machine.wait_until("pgrep -f 'sleep 432[1]'")
    machine.logout(session)
    assert machine.run("pgrep -f 'sleep 432[1]'").rc == 0  # logind waits 10 s before it stops the manager
    machine.wait_until("! pgrep -f 'sleep 432[1]'", timeout=60)


def test_swap_disk_and_zram_come_and_go(machine: Machine) -> None:
    machine.swapon()
    machine.zram(64)
    used = machine.run("swapon --show=NAME,PRIO --noheadings").out
    machine.swapoff()
    assert "/dev/vd" in used and "/dev/zram0" in used
    assert machine.run("swapon --show").out == ""


def test_project_runs_in_the_guest(machine: Machine) -> None:
    version = machine.run(
        "PYTHONPATH=/opt/oomproof/src python3 -c 'import oomproof; print(oomproof.__file__)'", user="ada"
    )
    assert version.out.strip() == "/opt/oomproof/src/oomproof/__init__.py"
    assert "usage" in machine.run("oomproof --help", user="ada").out.lower()
