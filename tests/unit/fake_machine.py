"""Plain folders that look like /proc and /sys of some machine, for tests that must not need that machine."""

from __future__ import annotations

import os
from pathlib import Path

KIB_PER_GIB = 1 << 20


class FakeMachine:
    """Writes what a test names; everything else is simply not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = str(folder / "proc")
        self.sys = str(folder / "sys")
        self.dev = str(folder / "dev")
        for path in (self.proc, self.sys, self.dev):
            os.makedirs(path, exist_ok=True)

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def meminfo(self, **kib: int) -> None:
        """Sizes in KiB, as the kernel writes them: ``meminfo(MemTotal=1024)``."""
        self.write("proc/meminfo", "".join(f"{name + ':':<16}{size:>9} kB\n" for name, size in kib.items()))

    def swaps(self, *lines: str) -> None:
        self.write(
            "proc/swaps",
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n" + "".join(f"{line}\n" for line in lines),
        )

    def process(
        self,
        pid: int,
        name: str,
        parent: int = 1,
        *,
        argv: tuple[str, ...] = (),
        anon: int = 0,
        shmem: int = 0,
        swap: int = 0,
        session: int | None = None,
        pss: tuple[int, int] | None = None,
        cgroup: str = "",
        environ: str = "",
        start: int = 0,
    ) -> None:
        """Sizes in MiB. ``pss`` is (anon, shmem); without it smaps_rollup cannot be read."""
        kib = 1024
        self.write(
            f"proc/{pid}/status",
            f"Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\n"
            f"Uid:\t1000\t1000\t1000\t1000\nNSpgid:\t{pid}\nNSsid:\t{session or pid}\n"
            f"VmRSS:\t{(anon + shmem) * kib:>8} kB\nRssAnon:\t{anon * kib:>8} kB\nRssFile:\t       0 kB\n"
            f"RssShmem:\t{shmem * kib:>8} kB\nVmSwap:\t{swap * kib:>8} kB\nThreads:\t1\n",
        )
        self.write(f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in argv))
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) S {parent} " + "0 " * 17 + f"{start or pid} 0 0\n")
        if cgroup:
            self.write(f"proc/{pid}/cgroup", cgroup)
        if environ:
            self.write(f"proc/{pid}/environ", environ.replace(" ", "\0"))
        if pss:
            self.write(
                f"proc/{pid}/smaps_rollup",
                f"00400000-7fff ---p 00000000 00:00 0  [rollup]\nRss: 0 kB\nPss: {sum(pss) * kib} kB\n"
                f"Pss_Anon: {pss[0] * kib} kB\nPss_File: 0 kB\nPss_Shmem: {pss[1] * kib} kB\n",
            )


def freeze_machine(folder: Path) -> FakeMachine:
    """The machine of incident I0: 31 GiB, a training job, 4 of 4 GiB swap full, 11.2 GiB available."""
    machine = FakeMachine(folder)
    gib = KIB_PER_GIB
    machine.meminfo(
        MemTotal=31 * gib,
        MemFree=1 * gib,
        MemAvailable=round(11.2 * gib),
        Buffers=gib // 4,
        Cached=round(10.6 * gib),
        SwapCached=0,
        SwapTotal=4 * gib,
        SwapFree=0,
        AnonPages=round(17.9 * gib),
        Shmem=gib // 2,
        SReclaimable=gib // 4,
        SUnreclaim=gib // 4,
        KernelStack=20 * 1024,
        PageTables=90 * 1024,
        CommitLimit=20 * gib,
        Committed_AS=40 * gib,
        Percpu=12 * 1024,
    )
    machine.swaps(f"/swap.img                               file\t\t{4 * gib}\t\t{4 * gib}\t\t-2")
    machine.write(
        "proc/pressure/memory",
        "some avg10=1.20 avg60=0.80 avg300=0.10 total=1200\n"
        "full avg10=0.40 avg60=0.30 avg300=0.00 total=400\n",
    )
    machine.write("proc/sys/vm/overcommit_memory", "0\n")
    machine.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    machine.write("proc/self/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n")
    machine.write(
        "proc/self/mountinfo",
        "28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw\n",
    )
    machine.process(1, "systemd", 0, argv=("/sbin/init",), anon=12)
    machine.process(612, "systemd-oomd", 1, argv=("/usr/lib/systemd/systemd-oomd",), anon=2)
    machine.process(
        2100, "gnome-shell", 1500, argv=("/usr/bin/gnome-shell",), anon=480, shmem=120, pss=(480, 60)
    )
    machine.process(2500, "firefox", 1500, argv=("/usr/lib/firefox/firefox",), anon=900, swap=300)
    machine.process(3000, "bash", 2900, anon=4)
    train = ("/home/ana/venv/bin/python", "train.py", "--epochs", "40", "--batch-size", "64")
    machine.process(4242, "python", 3000, argv=train, anon=15400, swap=3300)
    for worker in range(4243, 4247):
        machine.process(worker, "pt_data_worker", 4242, argv=train, anon=14800)
    return machine
