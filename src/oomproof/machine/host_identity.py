"""Which machine this is: homes on the network serve several."""

from __future__ import annotations

import os

from oomproof.leaf.proc_files import read_text
from oomproof.leaf.small_files import sha256_hex
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    container: bool
    wsl: bool
    root_filesystem: str  # "ext4", "btrfs", "overlay", ...; "" where unknown


def read(proc: str = "/proc", root: str = "/") -> HostEnvironment:
    mounts = read_text(f"{proc}/self/mountinfo")
    root_filesystem = ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and fields[4] == "/" and after:
            root_filesystem = after.split()[0]  # the last one mounted wins
    marked = any(os.path.exists(os.path.join(root, mark)) for mark in (".dockerenv", "run/.containerenv"))
    cgroup = read_text(f"{proc}/self/cgroup")
    named = any(word in cgroup for word in ("/docker", "/kubepods", "/libpod", "/lxc"))
    return HostEnvironment(
        container=marked or named,
        wsl="microsoft" in read_text(f"{proc}/sys/kernel/osrelease").lower(),
        root_filesystem=root_filesystem,
    )


def host_name() -> str:
    return os.uname().nodename


def machine_id(path: str = "/etc/machine-id") -> str:
    """A fingerprint of the installation's id, which itself is not to be told around; empty where there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(64).strip()
    except OSError:
        return ""
    return sha256_hex(b"oomproof:" + text)[:16] if text else ""
