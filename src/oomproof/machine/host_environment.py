"""Where we are: a container, WSL2, which file system / is on. It decides which advice makes sense."""

from __future__ import annotations

import os

from oomproof.leaf.proc_files import read_text
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
