"""What is risky on this machine, why, and the exact command that fixes it. Facts in, risks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oomproof.ledger.budget import Budget
from oomproof.ledger.machine_facts import Facts
from oomproof.machine import swap
from oomproof.machine.swap import Swap
from oomproof.records import dataclass
from oomproof.units import GIB, MIB, format_size

_FIRST = 4 * GIB  # half of RAM where that is less
_STEP = 64 * MIB


def free_path(areas: Sequence[Swap]) -> str:
    """A usual name for a swap file that no active one has."""
    taken = {area.path for area in areas}
    return next(name for name in ("/swapfile", *(f"/swapfile{n}" for n in range(2, 99))) if name not in taken)


def first_size(ram: int) -> int:
    """Of the first swap on a disk, where no job on record asks for more; in whole GiB where it has one."""
    size = min(_FIRST, ram // 2)
    return size // GIB * GIB or size // _STEP * _STEP


def add_swap_file(path: str, size: int, filesystem: str, priority: int | None = None) -> str:
    """One line to type. btrfs wants a file without copy-on-write, in a subvolume that is never in a snapshot."""
    on = f"swapon -p {priority} {path}" if priority is not None else f"swapon {path}"
    typed = f"{size // GIB}G" if size % GIB == 0 else f"{size // MIB}M"
    if filesystem == "btrfs":
        return f"sudo sh -c 'btrfs filesystem mkswapfile --size {typed} {path} && {on}'"
    return f"sudo sh -c 'fallocate -l {typed} {path} && chmod 600 {path} && mkswap {path} && {on}'"


_LARGE = 512 * MIB
_SWAP_FULL = 0.05  # free part below which the next burst finds no memory
_SWAP_NOTEWORTHY = 256 * MIB
_ZRAM_HELPS = 0.10  # below this saving the CPU time is spent for nothing
_SHM_SMALL = 1 * GIB  # Docker gives 64 MiB; eight workers with two 64 MiB batches each hold 1 GiB


@dataclass(frozen=True, slots=True)
class Risk:
    slug: str
    title: str
    why: str
    remedy: str
    command: str


def risks(facts: Facts, budget: Budget) -> tuple[Risk, ...]:
    """The most urgent first."""
    checks = (
        _below_margin,
        _swap_full,
        _twins,
        _throttled,
        _zram,
        _shm,
        _overcommit,
        _no_swap,
        _no_daemon,
        _gpu,
    )
    return tuple(risk for rule in checks for risk in rule(facts, budget))


def _below_margin(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if budget.headroom >= 0:
        return
    why = f"{format_size(budget.available)} available, {format_size(-budget.headroom)} below the margin."
    large = [job for job in facts.jobs if job.use >= _LARGE]
    if not large:
        yield Risk("below-margin", "memory is short now", why, "Start nothing; watch it:", "oomproof check")
        return
    newest = max(large, key=lambda job: job.start)  # the oldest large job is the one with days of work in it
    yield Risk(
        "below-margin",
        "memory is short now",
        why,
        f"Start nothing. If it gets worse, end the newest large job ({format_size(newest.use)}):",
        f"kill -TERM {newest.pid}",
    )


def _swap_full(facts: Facts, budget: Budget) -> Iterator[Risk]:
    total, free = swap.disk(facts.swaps)
    if total < _SWAP_NOTEWORTHY or free > total * _SWAP_FULL:
        return
    holder = max(facts.jobs, key=lambda job: job.swap, default=None)
    why = f"{format_size(total - free)} of {format_size(total)} used: the next burst must come out of RAM."
    if holder and holder.swap:
        why += f" {format_size(holder.swap)} of it belong to pid {holder.pid}."
    yield Risk("swap-full", "swap is full", why, *add_swap(facts))


def _twins(facts: Facts, budget: Budget) -> Iterator[Risk]:
    for twins in facts.twins:
        newest = max(twins.jobs, key=lambda job: (job.start, job.pid))
        pids = " and ".join(str(pid) for pid in sorted(job.pid for job in twins.jobs))
        total = format_size(sum(job.use for job in twins.jobs))
        yield Risk(
            "twins",
            "the same job runs twice"
            if len(twins.jobs) == 2
            else f"the same job runs {len(twins.jobs)} times",
            f"pids {pids}: same script, {_same(twins.output)}, {total} together.",
            "If that is not on purpose, end the newest:",
            f"kill -TERM {newest.pid}",
        )


def _same(output: str | None) -> str:
    return f"both write to {output}" if output else "same arguments"


def _throttled(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if budget.swap_total:
        return
    for level in facts.limits.levels:
        if level.file == "memory.high" and level.limit < facts.memory.total:
            yield Risk(
                "memory-high",
                "memory.high without swap",
                f"At {format_size(level.limit)} a job slows down until it seems dead, and nothing ends it.",
                "Let memory.max alone be the limit:",
                f"echo max | sudo tee {level.path}/memory.high",
            )


def _zram(facts: Facts, budget: Budget) -> Iterator[Risk]:
    for area in facts.swaps:
        zram = area.zram
        if not zram or zram.stored < _SWAP_NOTEWORTHY or zram.saved >= zram.stored * _ZRAM_HELPS:
            continue
        why = (
            f"{area.path} keeps {format_size(zram.stored)} in {format_size(zram.in_ram)} of RAM: "
            "tensors do not compress, so it costs time and gives nothing."
        )
        if budget.available - budget.margin > zram.saved:
            yield Risk("zram", "zram that hardly helps", why, "Switch it off:", f"sudo swapoff {area.path}")
        else:
            yield Risk("zram", "zram that hardly helps", why, *add_swap(facts, before_zram=True))


def _shm(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if facts.shm is None or facts.shm.free >= min(_SHM_SMALL, budget.total // 4):
        return
    title = "/dev/shm is too small for loader workers"
    why = (
        f"{format_size(facts.shm.free)} free of {format_size(facts.shm.total)}: "
        "a full one kills workers with a bus error."
    )
    size = max(2, min(16, budget.total // GIB // 2))
    if facts.shm.total >= _SHM_SMALL:
        yield Risk(
            "shm", "/dev/shm is nearly full", why, "See what was left behind:", "ls -lhS /dev/shm | head"
        )
    elif facts.place.container:
        remedy = "Start the container with more (or --ipc=host):"
        yield Risk("shm", title, why, remedy, f"docker run --shm-size={size}g …")
    else:
        yield Risk("shm", title, why, "Enlarge it:", f"sudo mount -o remount,size={size}G /dev/shm")


def _overcommit(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if facts.overcommit is None:
        return
    if facts.overcommit.mode == 1:
        yield Risk(
            "overcommit",
            "vm.overcommit_memory=1",
            "The kernel grants every request: a job is killed later where an error could have come at once.",
            "Go back to the default:",
            "sudo sysctl vm.overcommit_memory=0",
        )
    left = facts.overcommit.limit - facts.overcommit.committed
    if facts.overcommit.mode == 2 and left < budget.now:
        yield Risk(
            "overcommit",
            "vm.overcommit_memory=2",
            f"Only {format_size(max(0, left))} more can be committed: CUDA and fork fail while RAM is free.",
            "Go back to the default:",
            "sudo sysctl vm.overcommit_memory=0",
        )


def _no_swap(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if facts.swaps or not facts.overcommit:  # macOS makes its swap itself
        return
    why = "Idle pages cannot leave RAM, and it is seconds from fine to killed."
    yield Risk("no-swap", "no swap at all", why, *add_swap(facts))


def _no_daemon(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if facts.daemons or facts.place.container or not facts.overcommit:  # a container does not see the host's
        return
    yield Risk(
        "no-oom-daemon",
        "no OOM daemon",
        "When memory ends, the desktop freezes long before the kernel kills anything.",
        "Start jobs under a guard:",
        "oomproof run -- python train.py",
    )


def _gpu(facts: Facts, budget: Budget) -> Iterator[Risk]:
    if facts.gpus.problem:
        yield Risk(
            "gpu-silent",
            "the GPU driver is there but gives no figures",
            facts.gpus.problem,
            "Look at it:",
            "nvidia-smi",
        )


def add_swap(facts: Facts, before_zram: bool = False, size: int | None = None) -> tuple[str, str]:
    """(remedy, command), made as this place and file system want it. ``size`` in bytes: by default that of `oomproof system`
    where no job on record asks for more."""
    told = "" if size else "; oomproof system tells how much your jobs need"
    size = size or first_size(facts.memory.total)
    if facts.place.wsl:
        return (
            f"Write swap={-(-size // GIB)}GB under [wsl2] in Windows' .wslconfig, then restart WSL:",
            "wsl.exe --shutdown",
        )
    remedy = "Add a swap file" + (" that is used before zram" if before_zram else "")
    remedy += (", on the host" if facts.place.container else "") + told + ":"
    priority = 200 if before_zram else None
    path = free_path(facts.swaps)
    return remedy, add_swap_file(path, size, facts.place.root_filesystem, priority)
