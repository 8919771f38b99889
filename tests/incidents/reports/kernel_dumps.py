"""Full OOM reports as Linux 6.8 prints them, made from the figures of an incident, in the formats people paste."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

GIB, PAGE = 1 << 30, 4096
_DESKTOP = (
    (1, 0, "systemd", 12), (412, 0, "systemd-journal", 40), (460, 0, "systemd-udevd", 8), (901, 0, "NetworkManager", 14),
    (1105, 112, "gdm-session-wor", 6), (1502, 1000, "gnome-shell", 310), (1733, 1000, "gnome-terminal-", 52),
    (1790, 1000, "bash", 5),
)  # fmt: skip


class Row(NamedTuple):
    pid: int
    uid: int
    name: str
    rss: int  # bytes
    swap: int = 0


def desktop() -> list[Row]:
    return [Row(pid, uid, name, size << 20) for pid, uid, name, size in _DESKTOP]


def loader_job(
    main: int, first_worker: int, workers: int, main_bytes: int, each: int, swap_each: int = 0
) -> list[Row]:
    """A training and its DataLoader workers: forked in a row, long after the main process began."""
    job = [Row(main, 1000, "python", main_bytes, 2 * swap_each)]
    # workers have touched a little more or less each
    spread = [each + (at % 5 - 2) * (24 << 20) for at in range(workers)]
    return job + [Row(first_worker + at, 1000, "python", size, swap_each) for at, size in enumerate(spread)]


def report(
    rows: Sequence[Row], victim: int, *, ram: int, swap_total: int, swap_free: int, free: int = 212 << 20
) -> list[str]:
    """The report's messages, without stamps."""
    killed = next(row for row in rows if row.pid == victim)
    anon = sum(row.rss for row in rows) // PAGE
    pages, reserved = ram // PAGE + 158_934, 158_934
    lines = [
        f"{killed.name} invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=0",
        f"CPU: 5 PID: {victim} Comm: {killed.name} Not tainted 6.8.0-48-generic #48-Ubuntu",
        "Call Trace:",
        " <TASK>",
        " dump_stack_lvl+0x76/0xa0",
        " oom_kill_process+0x118/0x280",
        " out_of_memory+0x103/0x350",
        " </TASK>",
        "Mem-Info:",
        f"active_anon:{anon // 3} inactive_anon:{anon - anon // 3} isolated_anon:0",
        " active_file:1204 inactive_file:980 isolated_file:0",
        " unevictable:48 dirty:0 writeback:0",
        " slab_reclaimable:21033 slab_unreclaimable:60112",
        f" mapped:30211 shmem:11872 pagetables:{anon // 400}",
        " sec_pagetables:0 bounce:0",
        " kernel_misc_reclaimable:0",
        f" free:{free // PAGE} free_pcp:311 free_cma:0",
        f"Node 0 active_anon:{anon // 3 * 4}kB inactive_anon:{(anon - anon // 3) * 4}kB active_file:4816kB mapped:120844kB",
        f"Node 0 Normal free:{free // 1024}kB boost:0kB min:66104kB low:98136kB high:130168kB present:30408704kB",
        "12403 total pagecache pages",
        "411 pages in swap cache",
        f"Free swap  = {swap_free // 1024}kB",
        f"Total swap = {swap_total // 1024}kB",
        f"{pages} pages RAM",
        "0 pages HighMem/MovableOnly",
        f"{reserved} pages reserved",
        "0 pages hwpoisoned",
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
    ]
    for row in rows:
        lines.append(
            f"[{row.pid:7}] {row.uid:5} {row.pid:5} {row.rss // PAGE * 3:8} {row.rss // PAGE:8} {row.rss // 512:8}"
            f" {row.swap // PAGE:8}             0 {row.name}"
        )
    kb = killed.rss // 1024
    lines += [
        f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0,global_oom,"
        f"task_memcg=/user.slice/user-1000.slice/session-2.scope,task={killed.name},pid={victim},uid={killed.uid}",
        f"Out of memory: Killed process {victim} ({killed.name}) total-vm:{kb * 3}kB, anon-rss:{kb}kB, file-rss:0kB, "
        f"shmem-rss:0kB, UID:{killed.uid} pgtables:{kb // 512}kB oom_score_adj:0",
    ]  # fmt: skip
    return lines


def dmesg(lines: Sequence[str], uptime: float) -> str:
    return "".join(f"[{uptime + at / 1e4:12.6f}] {line}\n" for at, line in enumerate(lines))


def dmesg_ctime(lines: Sequence[str], when: float) -> str:
    """``dmesg -T``, on the clock of TZ."""
    return "".join(f"[{time.ctime(when)}] {line}\n" for line in lines)


def journal(lines: Sequence[str], when: float, host: str = "box") -> str:
    """``journalctl -k`` as it prints by default: local time, no year."""
    stamp = time.strftime("%b %d %H:%M:%S", time.localtime(when))
    return "".join(f"{stamp} {host} kernel: {line}\n" for line in lines)


def syslog(lines: Sequence[str], when: float, uptime: float, host: str = "box") -> str:
    """/var/log/kern.log of rsyslog: local time, no year, the kernel's own clock behind it."""
    stamp = time.strftime("%b %e %H:%M:%S", time.localtime(when))
    return "".join(f"{stamp} {host} kernel: [{uptime:12.6f}] {line}\n" for line in lines)
