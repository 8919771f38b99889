"""`oomproof system --apply`, then `--undo`, on a real machine: every setting is as it was, compared by a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lab import Machine
from test_run import User, ada  # noqa: F401 - a fixture too

pytestmark = pytest.mark.vm

# Everything that could have been left behind. Counters of the kernel move by themselves: two looks tell which.
SNAPSHOT = r"""
import hashlib, json, os, subprocess
def text(*argv):
    return subprocess.run(argv, capture_output=True, text=True, errors="replace").stdout
def sysctl():
    return dict(line.split(" = ", 1) for line in text("sysctl", "-a").splitlines() if " = " in line)
first = sysctl()
tree = {}
for top in ("/etc", "/var/lib/oomproof"):
    for folder, names, files in os.walk(top):
        tree[folder] = oct(os.lstat(folder).st_mode)
        for name in files + [n for n in names if os.path.islink(f"{folder}/{n}")]:
            path = f"{folder}/{name}"
            status = os.lstat(path)
            what = os.readlink(path) if os.path.islink(path) else hashlib.sha256(open(path, "rb").read()).hexdigest()
            tree[path] = f"{oct(status.st_mode)} {status.st_uid} {what}"
units = [f"{folder}/{name}" for top in ("/run/systemd/system", "/run/systemd/generator", "/usr/lib/systemd/system")
         for folder, names, files in os.walk(top) for name in files]
second = sysctl()
print(json.dumps({
    "sysctl": second,
    "moving": [key for key in second if first.get(key) != second[key]],
    "swaps": open("/proc/swaps").read(),
    "top": sorted(os.listdir("/")),
    "units": sorted(units),
    "tree": tree,
}))
"""
WRONG = {"vm.swappiness": 0, "vm.overcommit_memory": 1, "vm.oom_kill_allocating_task": 1, "kernel.sysrq": 176}
RIGHT = {
    "vm.swappiness": 60,
    "vm.overcommit_memory": 0,
    "vm.oom_kill_allocating_task": 0,
    "kernel.sysrq": 240,
}
# as on systems that neither count memory by default nor delegate it
NO_MEMORY = "/etc/systemd/system/user@.service.d/10-test.conf"
NO_ACCOUNTING = "/etc/systemd/system.conf.d/10-test.conf"
MANAGER = "user@1000.service"
CONTROLLERS = f"cat /sys/fs/cgroup/user.slice/user-1000.slice/{MANAGER}/cgroup.controllers"
AS_ADA = "SUDO_UID=1000 oomproof system"
# Counts of files, processes and random numbers, which may not move between two looks and yet do in a minute.
COUNTERS = ("fs.dentry", "fs.file-nr", "fs.inode", "kernel.random.", "kernel.ns_last_pid", "kernel.pty")


def settings(guest: Machine) -> dict[str, Any]:
    guest.put(SNAPSHOT.encode(), "/var/lib/lab/snapshot.py")
    told = dict(json.loads(guest.run("python3 /var/lib/lab/snapshot.py").out))
    assert told["sysctl"] and told["tree"]
    return told


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    moved = {
        key: (value, after["sysctl"].get(key))
        for key, value in before["sysctl"].items()
        if after["sysctl"].get(key) != value
        and key not in before["moving"]
        and key not in after["moving"]
        and not key.startswith(COUNTERS)
    }
    assert not moved
    for name in ("swaps", "top", "units", "tree"):
        assert after[name] == before[name], name


def swaps(guest: Machine) -> str:
    return guest.run("cat /proc/swaps").out


@pytest.fixture
def wrong(guest: Machine) -> Iterator[None]:
    """Every setting that it mends, as it should not be; and ada's manager without the memory controller."""
    before = guest.run("sysctl " + " ".join(WRONG)).out.replace(" = ", "=").split()
    guest.run("sysctl -qw " + " ".join(f"{key}={value}" for key, value in WRONG.items()))
    guest.put(b"[Service]\nDelegate=\nDelegate=pids\n", NO_MEMORY)
    guest.put(b"[Manager]\nDefaultMemoryAccounting=no\n", NO_ACCOUNTING)
    guest.run(
        f"loginctl terminate-user ada; systemctl stop {MANAGER}; systemctl daemon-reexec; systemctl start {MANAGER}"
    )
    yield
    guest.run("oomproof system --undo", check=False)
    guest.run(f"systemctl stop {MANAGER}; rm -f {NO_MEMORY} {NO_ACCOUNTING}; systemctl daemon-reexec")
    guest.run("sysctl -qw " + " ".join(before))


def test_applied_and_undone_leaves_every_setting_as_it_was(guest: Machine, wrong: None) -> None:
    assert "memory" not in guest.run(CONTROLLERS).out
    before = settings(guest)
    done = guest.run(f"{AS_ADA} --need 400M+500M --apply --yes").out
    now = guest.run("sysctl " + " ".join(RIGHT)).out.splitlines()
    assert now == [f"{key} = {value}" for key, value in RIGHT.items()], done
    assert "memory" in guest.run(CONTROLLERS).out
    assert "/swapfile_oomproof" in swaps(guest)
    assert guest.run("stat -c '%a %U' /var/lib/oomproof/system.json").out == "600 root\n"
    undone = guest.run("oomproof system --undo").out
    assert "everything that was applied has been undone" in undone
    assert guest.run("systemctl show -p LoadState swapfile_oomproof.swap").out == "LoadState=not-found\n"
    same(before, settings(guest))


@pytest.mark.long
def test_what_a_user_sees_and_gets(guest: Machine, wrong: None, ada: User) -> None:  # noqa: F811
    """An ordinary user changes nothing; after root's --apply her limit is the kernel's, from the next login on."""
    backend = "oomproof run -v --limit 100M -- true 2>&1 | grep 'enforced by'"
    assert ada.session is not None
    assert "oomproof, not the kernel" in ada.session.run(backend).out, "no controller, no limit"
    before = settings(guest)
    shown = ada.session.run("oomproof system --apply", check=False)
    assert shown.rc == 125 and "this needs root" in shown.out and "add 512 MiB of swap" in shown.out
    same(before, settings(guest))

    assert "could not be read" not in guest.run(AS_ADA).out, "behind sudo they are ada's runs"
    guest.run(f"{AS_ADA} --need 400M+500M --apply --yes")
    assert guest.run("systemctl is-active swapfile_oomproof.swap").out == "active\n"
    guest.run("sysctl -qw vm.swappiness=1 && sysctl -q --system")  # as at a boot
    assert guest.run("sysctl -n vm.swappiness").out == "60\n"
    again = guest.run("oomproof system --apply --yes --need 5G", check=False)
    assert again.rc == 125 and "in place already" in again.out

    ada.logged_out()
    guest.run(f"systemctl stop {MANAGER}")
    back = guest.login("ada")
    assert "enforced by the kernel (systemd user scope)" in back.run(backend).out
    guest.logout(back)
    guest.run("oomproof system --undo")


@pytest.mark.long
def test_swap_in_use_is_not_taken_away_while_ram_is_short(guest: Machine, ada: User) -> None:  # noqa: F811
    guest.run("oomproof system --only swap --need 400M+600M --apply --yes")
    assert ada.session is not None
    job = ada.session.start("python3 /opt/oomproof/jobs/grow.py 200 1000")
    guest.wait_until(f"grep -qs ready {job.output}", timeout=240)
    refused = guest.run("oomproof system --undo", check=False)
    assert refused.rc == 125 and "RAM can take back only" in refused.out
    assert "/swapfile_oomproof" in swaps(guest)
    guest.run("pkill -u ada -f grow.py")
    guest.wait_until("! pgrep -u ada -f grow.py")
    guest.run("oomproof system --undo")
    assert "/swapfile_oomproof" not in swaps(guest)


@pytest.mark.long
def test_killed_in_the_middle_it_is_undone(guest: Machine) -> None:
    """Also one killed between the file and the unit: with the machine's real systemd and swap."""
    before = settings(guest)
    for program in ("mkswap", "systemctl"):
        guest.put(b"#!/bin/sh\nkill -9 $PPID\n", f"/tmp/killer/{program}", mode=0o755)
        killed = guest.run(
            "PATH=/tmp/killer:$PATH oomproof system --need 400M+500M --apply --yes", check=False
        )
        assert killed.rc == 137, killed.out
        guest.run("rm -r /tmp/killer")
        assert "everything that was applied has been undone" in guest.run("oomproof system --undo").out
        same(before, settings(guest))
