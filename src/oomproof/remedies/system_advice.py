"""What a person changes by hand (files of other programs, settings for one boot), what is fine, and who acts first: oomproof or an OOM daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from oomproof.ledger.budget import default_floor
from oomproof.machine.daemons import Threshold
from oomproof.machine.swap import disk
from oomproof.printable import one_line
from oomproof.remedies.system_facts import Change, Fine, SystemFacts
from oomproof.units import GIB, MIB, format_size


def memory_threshold(threshold: Threshold, ram: int) -> int | None:
    """Below how many bytes of available RAM it acts; None where it does not go by that."""
    by_percent = None if threshold.memory_percent is None else int(ram * threshold.memory_percent / 100)
    known = [size for size in (by_percent, threshold.memory_bytes) if size is not None]
    return min(known, default=None)  # earlyoom takes the lower of -m and -M


def acts_below(threshold: Threshold, ram: int, swap: int) -> int | None:
    """The same of RAM and disk swap together, which is what oomproof's floor counts. None: it goes by something else."""
    memory = memory_threshold(threshold, ram)
    if memory is None and threshold.swap_percent is not None and swap:
        memory = int(ram * threshold.swap_percent / 100)  # systemd-oomd: the same part of RAM as of swap
    return None if memory is None else memory + int(swap * (threshold.swap_percent or 0) / 100)


def is_first(threshold: Threshold, floor: int, ram: int, swap: int) -> bool:
    """Whether it acts before an oomproof with this floor."""
    below = acts_below(threshold, ram, swap)
    return below is not None and below > floor


def where(threshold: Threshold, ram: int) -> str:
    name, memory = threshold.daemon.name, memory_threshold(threshold, ram)
    if memory is not None:
        swap = f" and {threshold.swap_percent:g} % of swap" if threshold.swap_percent is not None else ""
        return f"{name} acts below {format_size(memory)} available{swap}"
    parts = [f"pressure of {watched}" for watched in threshold.pressure]
    if threshold.swap_percent is not None:
        parts.append(f"RAM and swap {100 - threshold.swap_percent:g} % used")
    return f"{name} acts at {', or '.join(parts)}" if parts else f"{name}: thresholds unknown"


def lower(threshold: Threshold, floor: int, ram: int, swap: int) -> str:
    """What to write where, so that oomproof with this floor is before it."""
    name, file = threshold.daemon.name, threshold.settings_file
    percent = max(1, -(-floor * 100 // max(1, ram + swap)) - 1)
    if name == "earlyoom":
        wanted = f'EARLYOOM_ARGS="-m {percent} -s {percent}"'
    elif name == "systemd-oomd":
        wanted = f"SwapUsedLimit={100 - percent}%"
    else:
        wanted = f"soft_threshold_min_mem = {percent} %, soft_threshold_min_swap = {percent} %"
    return f"in {file}: {wanted}; then: sudo systemctl restart {name}"


def lines(
    thresholds: Sequence[Threshold], floor: int, ram: int, swap: int, limited: bool = False
) -> list[str]:
    """For each daemon who is first; where that is the daemon, a second line says how to be before it. ``limited``: the floor is
    one of a limit over us, which the daemons know nothing of."""
    told = []
    for threshold in thresholds:
        name = f"{threshold.daemon.name} (pid {threshold.daemon.pid})"
        acts, below = where(threshold, ram).partition(" acts ")[2], acts_below(threshold, ram, swap)
        if not acts:
            told.append(f"{name} runs too; where it acts is not known, so it may be first")
        elif limited:
            told.append(f"{name} kills a job {acts} of the whole machine; it does not know of the limit here")
        elif below is None:
            told.append(f"oomproof acts before {name} as a rule: that one goes by {acts.removeprefix('at ')}")
        elif below <= floor:
            told.append(f"oomproof acts before {name}, which kills a job {acts}")
        else:
            ours = f"oomproof pauses at {format_size(floor)} of RAM and disk swap"
            told.append(f"{name} acts first: {acts} it kills a job; {ours}")
            wanted = f"oomproof guard --floor {-(-below * 10 // GIB) / 10 + 0.1:.1f}G"
            theirs = f"; or {lower(threshold, floor, ram, swap)}" if floor * 100 > ram + swap else ""
            told.append(f"  hint: to pause before it kills: {wanted}{theirs}")
    return told


_SHM_SMALL = 1 * GIB  # eight workers with two batches of 64 MiB each
_CHECKPOINT_DRIVER = 570  # the first that gives a paused job's GPU memory back
_SAVES_LITTLE, _SAVES_MUCH = 0.9, 0.5


def advice(facts: SystemFacts) -> Iterator[Change | Fine]:
    for rule in (_shm, _ulimits, _cgroups, _linger, _kernel_log, _daemons, _mglru, _gpu):
        yield from rule(facts)


def _shm(facts: SystemFacts) -> Iterator[Change | Fine]:
    shm, ram = facts.host.shm, facts.host.memory.total
    if shm is None:
        return
    if shm.total >= min(_SHM_SMALL, ram // 4):
        yield Fine("shm", f"/dev/shm {format_size(shm.total)}")
        return
    size = max(2, min(16, ram // GIB // 2))
    command = (
        f"docker run --shm-size={size}g …"
        if facts.host.place.container
        else f"sudo mount -o remount,size={size}G /dev/shm"
    )
    yield Change(
        "shm",
        f"make /dev/shm larger than {format_size(shm.total)}",
        "loader workers hand their batches over there, and a full one kills them with a bus error",
        "workers start",
        "take RAM before it is used; the command lasts until the next boot",
        (command,),
    )


def _ulimits(facts: SystemFacts) -> Iterator[Change | Fine]:
    limits = facts.limits
    set_limits = [
        f"ulimit {flag} {format_size(size)}"
        for flag, size in (("-v", limits.address_space), ("-d", limits.data))
        if size is not None
    ]
    if not set_limits:
        yield Fine("ulimit", "no ulimit on memory")
        return
    yield Change(
        "ulimit",
        f"take {' and '.join(set_limits)} away",
        "it counts addresses, not memory: CUDA reserves more addresses than there is RAM and cannot start under it",
        "CUDA and large mapped files work again",
        "leave you without a limit: oomproof run --limit counts memory",
        ("ulimit -v unlimited; ulimit -d unlimited   # set in: grep -rs 'as\\|data' /etc/security/limits.*",),
    )


def _cgroups(facts: SystemFacts) -> Iterator[Change | Fine]:
    if facts.delegation.version != 1 or facts.host.place.container or not facts.systemd:
        return
    yield Change(
        "cgroup",
        "boot with cgroup v2",
        "the memory controller is in cgroup v1, which no user's manager is given",
        "limits of your runs are enforced by the kernel",
        "suit software that still wants v1",
        ("add systemd.unified_cgroup_hierarchy=1 to the kernel's command line, then reboot",),
    )


def _linger(facts: SystemFacts) -> Iterator[Change | Fine]:
    if facts.user.is_root or not facts.systemd:
        return
    if facts.lingers:
        yield Fine("linger", f"linger is on for {facts.user.name}")
        return
    yield Change(
        "linger",
        f"let {facts.user.name}'s jobs outlive the last logout",
        "without linger, systemd ends the user's manager and every run in it",
        "detached runs keep their limit and their guard",
        "keep a job over a reboot",
        (f"loginctl enable-linger {facts.user.name}",),
    )


def _kernel_log(facts: SystemFacts) -> Iterator[Change | Fine]:
    if facts.kernel_log:
        yield Fine("kernel-log", "kernel log readable")
        return
    yield Change(
        "kernel-log",
        f"let {facts.user.name} read the kernel log",
        "only it says which process the kernel killed and what each process held",
        "oomproof why proves a kill of another process too",
        "prevent one; those groups read every log of the system. Takes effect at the next login",
        (f"sudo usermod -aG adm,systemd-journal {facts.user.name}",),
    )


# --- OOM daemons --------------------------------------------------------------------------------------------


def _daemons(facts: SystemFacts) -> Iterator[Change | Fine]:
    if not facts.thresholds:
        seen = " seen from this container" if facts.host.place.container else ": oomproof acts first"
        yield Fine("daemon", f"no OOM daemon{seen}")
    ram = facts.host.memory.total
    floor, swap = default_floor(ram), disk(facts.host.swaps)[0]
    for threshold in facts.thresholds:
        name = threshold.daemon.name
        if not is_first(threshold, floor, ram, swap):
            yield Fine("daemon", f"oomproof acts before {name} ({where(threshold, ram)})")
            continue
        yield Change(
            "daemon",
            f"let oomproof act before {name}",
            f"{where(threshold, ram)}; oomproof acts below {format_size(floor)}: {name} is first, "
            "and ends the largest job instead of pausing the newest",
            f"{name} stays as the last resort",
            "change what it does then",
            (lower(threshold, floor, ram, swap),),
        )


# --- the rest -----------------------------------------------------------------------------------------------


def _mglru(facts: SystemFacts) -> Iterator[Change | Fine]:
    if facts.mglru and facts.mglru.enabled:
        yield Fine("mglru", f"MGLRU on, min_ttl_ms {facts.mglru.min_ttl_ms or 0}")


def _gpu(facts: SystemFacts) -> Iterator[Change | Fine]:
    cards = facts.host.gpus.gpus
    if any(card.persistence is False for card in cards):
        yield Change(
            "gpu-persistence",
            "keep the GPU driver loaded",
            "persistence mode is off: each first use of a card waits for the driver, seconds on large ones",
            "jobs start sooner",
            "change what they need",
            ("sudo nvidia-smi -pm 1   # until the next boot; nvidia-persistenced.service keeps it",),
        )
    major = int((facts.driver or "0").split(".")[0] or 0)
    if not major:
        return
    if major >= _CHECKPOINT_DRIVER:
        yield Fine("gpu-driver", f"driver {facts.driver} gives a paused job's GPU memory back")
    else:
        yield Change(
            "gpu-driver",
            f"take NVIDIA's driver {_CHECKPOINT_DRIVER} or newer",
            f"{facts.driver} cannot give a paused job's GPU memory back",
            "oomproof pause --gpu and run --gpu-share work",
            "free anything by itself",
            ("see your distribution's driver packages, then reboot",),
        )


def notes(facts: SystemFacts) -> tuple[str, ...]:
    lines = []
    if not facts.systemd and not facts.host.place.container:
        lines.append(
            "systemd does not run this machine: swap is not kept over a reboot; add its swapon to your init"
        )
    if facts.sampled is not None:
        lines.append(_zram_note(facts))
    return tuple(lines)


def _zram_note(facts: SystemFacts) -> str:
    assert facts.sampled is not None
    job, pages = facts.sampled.job, facts.sampled.pages
    name = f"{one_line(os.path.basename(job.command[0]))} (pid {job.pid})"
    if pages is None:
        why = facts.sampled.problem
        more = " (as root it may)" if facts.kernel.ptrace_scope and why == "Permission denied" else ""
        return f"whether zram would help: the pages of {name} could not be sampled: {why}{more}"
    size, share = pages.pages * 4096, pages.share
    percent = f"{max(0.01, share):.0%}"
    told = f"zram: {format_size(size)} of the pages of {name} compress to {percent} of their size: "
    if share > _SAVES_LITTLE:
        return told + "it is no extra memory for this job"
    gain = format_size(int(job.use * (1 - share)) // MIB * MIB)
    if share > _SAVES_MUCH:
        return told + f"it would give at most {gain} for its {format_size(job.use)}, and cost CPU time"
    return (
        told
        + f"it would give about {gain} for its {format_size(job.use)} (your distribution's zram-generator)"
    )
