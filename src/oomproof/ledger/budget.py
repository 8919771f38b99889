"""What the machine can safely give: plain arithmetic on plain bytes, and the sentence that shows it."""

from __future__ import annotations

import sys as system
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from oomproof.errors import NEVER, NOT_NOW, USAGE, OomproofError
from oomproof.machine import cgroup_limits, memory, swap
from oomproof.records import dataclass
from oomproof.units import GIB, MIB, format_size

if TYPE_CHECKING:  # the guard uses this file, and the GPU facts bring subprocess along
    from oomproof.machine.gpu import Gpus


Status = Literal["fits", "not-now", "never"]
EXIT_STATUS: dict[Status, int] = {"fits": 0, "not-now": NOT_NOW, "never": NEVER}

# Swap is never used to the last page; with less than this part free it is full for every practical purpose.
_FULL = 0.02


def default_margin(ram_total: int) -> int:
    """Where admission and warnings stop: 5 GiB keep a desktop usable; at most a quarter of RAM."""
    return min(5 * GIB, ram_total // 4)


def default_floor(ram_total: int) -> int:
    """Where the guard acts: 4 % of RAM, at least 512 MiB, and never above the margin, where it warns."""
    return min(max(512 * MIB, ram_total * 4 // 100), default_margin(ram_total))


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes. RAM is the smaller of the host and the memory limit over this shell; zram counts as nothing."""

    total: int
    available: int
    swap_total: int  # on disk
    swap_free: int  # on disk
    margin: int
    reserved: int = 0  # what admitted runs have yet to grow
    limited_by: str | None = None  # the cgroup, when it binds tighter than the host
    zram_total: int = 0  # told, not counted

    @property
    def in_use(self) -> int:
        return self.total - self.available

    @property
    def headroom(self) -> int:
        """What is left above the margin; below zero when the machine is already past it."""
        return self.available + self.swap_free - self.margin - self.reserved

    @property
    def now(self) -> int:
        """Safe to start now."""
        return max(0, self.headroom)

    @property
    def ever(self) -> int:
        """Safe to start on this machine with nothing else running."""
        return max(0, self.total + self.swap_total - self.margin)


def budget(
    *,
    ram_total: int,
    ram_available: int,
    swap_total: int = 0,
    swap_free: int = 0,
    zram_total: int = 0,
    limit: int | None = None,
    limit_left: int | None = None,
    swap_limit: int | None = None,
    swap_limit_left: int | None = None,
    limited_by: str | None = None,
    margin: int | None = None,
    reserved: int = 0,
) -> Budget:
    """The budget of this moment. ``limit*`` are the tightest memory limit and what it leaves; None: none."""
    total = ram_total if limit is None else min(ram_total, limit)
    available = ram_available if limit_left is None else min(ram_available, limit_left)
    binds = total < ram_total or available < ram_available
    return Budget(
        total=total,
        available=max(0, min(available, total)),
        swap_total=swap_total if swap_limit is None else min(swap_total, swap_limit),
        swap_free=max(0, swap_free if swap_limit_left is None else min(swap_free, swap_limit_left)),
        margin=default_margin(total) if margin is None else margin,
        reserved=reserved,
        limited_by=limited_by if binds else None,
        zram_total=zram_total,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """Does it fit? ``short_by`` is zero when it does; ``sentence`` is the arithmetic for people."""

    status: Status
    need: int
    short_by: int
    sentence: str

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.status]


def answer(budget: Budget, need: int) -> Answer:
    """Does ``need`` fit now, later or never?"""
    margin = f"margin {format_size(budget.margin)}"
    if need > budget.ever:
        short = need - (budget.total + budget.swap_total - budget.margin)
        where = "the limit here is" if budget.limited_by else "this machine has"
        has = f"{where} {format_size(budget.total)} RAM"
        swap = f" + {format_size(budget.swap_total)} disk swap" if budget.swap_total else ""
        sentence = (
            f"needs {format_size(need)}; {has}{swap}, {margin}: never fits, short by {format_size(short)}"
        )
        return Answer("never", need, short, sentence)
    terms = [f"{format_size(budget.available)} available", _swap_text(budget), margin]
    if budget.limited_by:
        terms[0] += " under the memory limit"
    if budget.reserved:
        terms.append(f"{format_size(budget.reserved)} reserved for running jobs")
    short = max(0, need - budget.headroom)
    end = (
        f"short by {format_size(short)}" if short else f"fits, {format_size(budget.headroom - need)} to spare"
    )
    sentence = f"needs {format_size(need)}; {', '.join(terms)}: {end}"
    return Answer("not-now" if short else "fits", need, short, sentence)


def _swap_text(budget: Budget) -> str:
    if budget.swap_total and budget.swap_free <= budget.swap_total * _FULL:
        return "swap full"
    if budget.swap_total:
        return f"{format_size(budget.swap_free)} disk swap free"
    return "zram not counted" if budget.zram_total else "no swap"


def answer_gpu(gpus: Gpus, need: int, index: int | None = None) -> Answer:
    """Does ``need`` fit on GPU ``index``, or without one on the GPU with the most free memory?

    GPUs on unified memory are not asked here: their need is a need of RAM.
    """
    cards = [card for card in gpus.gpus if not card.unified]
    if index is not None and cards and index not in [card.index for card in cards]:
        known = ", ".join(str(card.index) for card in cards)
        raise OomproofError(f"there is no GPU {index} here", f"choose one of: {known}", USAGE)
    cards = [card for card in cards if index in (None, card.index)]
    asks = f"needs {format_size(need)} on "
    if not cards and gpus.problem:
        return Answer("not-now", need, need, f"{asks}a GPU; {gpus.problem}: cannot tell")
    if not cards:
        return Answer("never", need, need, f"{asks}a GPU; there is none here: never fits")
    best = max(cards, key=lambda card: card.free or 0)
    largest = max(cards, key=lambda card: card.total or 0)
    total, free = largest.total or 0, best.free or 0
    if need > total:
        sentence = f"{asks}GPU {largest.index}; it has {format_size(total)} in all: never fits, "
        return Answer("never", need, need - total, sentence + f"short by {format_size(need - total)}")
    sentence = f"{asks}GPU {best.index}; {format_size(free)} free of {format_size(best.total)}: "
    if need > free:
        return Answer("not-now", need, need - free, sentence + f"short by {format_size(need - free)}")
    return Answer("fits", need, 0, sentence + f"fits, {format_size(free - need)} to spare")


def current_budget(margin: int | None = None, proc: str = "/proc", sys: str = "/sys") -> Budget:
    """Nothing reserved yet: who decides adds that."""
    if system.platform == "darwin":
        from oomproof.machine import macos

        now, areas, _ = macos.read()
        return budget_from(now, areas, cgroup_limits.Limits(), margin)
    return budget_from(memory.read(proc), swap.read(proc, sys), cgroup_limits.read("self", proc, sys), margin)


def budget_from(
    now: memory.Memory,
    swaps: Sequence[swap.Swap],
    over_us: cgroup_limits.Limits,
    margin: int | None = None,
    reserved: int = 0,
) -> Budget:
    """The budget these facts leave."""
    swap_total, swap_free = swap.disk(swaps)
    tightest, fullest = over_us.tightest, over_us.fullest
    return budget(
        ram_total=now.total,
        ram_available=now.available,
        swap_total=swap_total,
        swap_free=swap_free,
        zram_total=sum(area.total for area in swaps if area.zram),
        limit=tightest.limit if tightest else None,
        limit_left=fullest.left if fullest else None,
        swap_limit=over_us.swap_limit,
        swap_limit_left=over_us.swap_left,
        limited_by=fullest.path if fullest else None,
        margin=margin,
        reserved=reserved,
    )
