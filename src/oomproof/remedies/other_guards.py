"""Who acts first when memory runs short, an OOM daemon or oomproof, and the setting that changes it."""

from __future__ import annotations

from collections.abc import Sequence

from oomproof.machine.daemons import Threshold
from oomproof.units import GIB, format_size


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
