"""Proves that the lab itself is what the scenarios take it for: systemd, cgroup v2, PSI, sessions, swap."""

from __future__ import annotations

import pytest
from lab import LabError, Machine, Result

pytestmark = pytest.mark.vm

SESSION_SCOPE = "/user.slice/user-1000.slice/session-"
USER_MANAGER = "/user.slice/user-1000.slice/user@1000.service/"


def test_kernel_offers_what_the_guard_needs(guest: Machine) -> None:
    assert "memory" in guest.run("cat /sys/fs/cgroup/cgroup.controllers").out.split()
    assert "full avg10=" in guest.run("cat /proc/pressure/memory").out
    assert (
        guest.run("cat /proc/self/oom_score_adj").out == "0\n"
    )  # commands are not protected as the agent is
    assert (
        guest.run("systemctl is-active systemd-oomd earlyoom nohang", check=False).out.split()
        == ["inactive"] * 3
    )


def test_exit_status_and_output_come_back(guest: Machine) -> None:
    assert guest.run("echo out; echo err >&2; exit 7", check=False) == Result(7, "out\nerr\n")
    assert guest.run("kill -9 $$", check=False).rc == 137
    with pytest.raises(LabError, match="nothing within 2 s"):
        guest.run("sleep 1000", timeout=2)
    assert guest.run("pgrep -x sleep", check=False).out == ""


@pytest.mark.long
def test_ordinary_user_has_a_session_and_a_manager(guest: Machine) -> None:
    assert guest.run("cat /proc/self/cgroup", user="ada").out.startswith("0::" + SESSION_SCOPE)
    state = guest.run("systemctl --user is-system-running --wait", user="ada", check=False).out.strip()
    assert state in ("running", "degraded")
    scope = "systemd-run --user --scope -p MemoryMax=50M -p Delegate=yes --quiet "
    inside = guest.run(scope + "sh -c 'cat /proc/self/cgroup'", user="ada").out.strip()
    assert inside.startswith("0::" + USER_MANAGER) and inside.endswith(".scope")
    killed = guest.run(scope + "python3 -c 'bytearray(200 << 20)'", user="ada", check=False)
    assert killed.rc == 137, killed.out
    assert "Memory cgroup out of memory" in guest.dmesg()


@pytest.mark.long
def test_user_scopes_die_after_the_last_logout(guest: Machine) -> None:
    session = guest.login("ada")
    assert session.run("cat /proc/self/cgroup").out.strip() == f"0::{SESSION_SCOPE}{session.id}.scope"
    # -f: whatever stays behind in the session's own scope would keep the session, and so the manager, alive
    session.run("setsid -f systemd-run --user --scope --quiet sleep 4321")
    guest.wait_until("pgrep -f 'sleep 432[1]'")
    guest.logout(session)
    assert guest.run("pgrep -f 'sleep 432[1]'").rc == 0  # logind waits 10 s before it stops the manager
    guest.wait_until("! pgrep -f 'sleep 432[1]'", timeout=60)


def test_swap_disk_and_zram_come_and_go(guest: Machine) -> None:
    guest.swapon()
    guest.zram(64)
    used = guest.run("swapon --show=NAME,PRIO --noheadings").out
    guest.swapoff()
    assert "/dev/vd" in used and "/dev/zram0" in used
    assert guest.run("swapon --show").out == ""


@pytest.mark.long
def test_project_runs_in_the_guest(guest: Machine) -> None:
    version = guest.run(
        "PYTHONPATH=/opt/oomproof/src python3 -c 'import oomproof; print(oomproof.__file__)'", user="ada"
    )
    assert version.out.strip() == "/opt/oomproof/src/oomproof/__init__.py"
    assert "usage" in guest.run("oomproof --help", user="ada").out.lower()
