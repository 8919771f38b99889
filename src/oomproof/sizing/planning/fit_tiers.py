"""The table people make by hand: which batch is conservative, balanced, aggressive, the maximum. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomproof.plans.knobs import Knob, Template
from oomproof.plans.plan import Plan, batches_at_most, effective_batch, number
from oomproof.records import dataclass
from oomproof.sizing.planning.fit_points import NATIVE, Point, Predicted, predict
from oomproof.sizing.planning.step_times import step_text
from oomproof.sizing.rehearsing import Rehearsal
from oomproof.units import format_size

CONSERVATIVE, BALANCED, AGGRESSIVE, MAXIMUM = "conservative", "balanced", "aggressive", "maximum"
# Shares of the memory that the highest figure may take. The maximum goes by the expected one.
SHARES = {CONSERVATIVE: 0.8, BALANCED: 0.9, AGGRESSIVE: 1.0}
NAMES = (*SHARES, MAXIMUM)
# Of the card, kept free at the maximum: 95 of 100 predictions for a calibrated card were within 1.5 % (docs/size-accuracy.md).
RESERVE = 0.01
# Of rows between virtual runs where samples differ in size, two of four of `run_glue.py` were 4 % low: which lengths came before decides what
# the allocator keeps.
UNEVEN = 0.04
FEW_WORKERS = 2  # kept where they fit: without any the training waits for each of its batches
_MOST_BATCHES = 1 << 20


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that may be used. ``gpu``: None where there is no card; ``shm``: of /dev/shm, None where it is not known."""

    gpu: int | None
    ram: int
    shm: int | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """``plan`` is None where nothing fits so."""

    name: str
    plan: Plan | None
    predicted: Predicted | None
    effective: int | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which plans may be taken: the template's, from this one down. ``unsized``: batches that could not be followed."""

    template: Template
    start: Plan
    effective: int | None  # the one to keep
    most: int  # batch
    least: int = 1  # batch: more than that where smaller ones could not be followed
    unsized: frozenset[int] = frozenset()

    def plans(self) -> list[Plan]:
        """The largest batch first."""
        if self.template.knob("batch") is None:
            return [self.start]
        plans = batches_at_most(self.template, self.start, min(self.most, _MOST_BATCHES), self.effective)
        sizes = ((plan, number(self.template, plan, "batch") or 1) for plan in plans)
        return [plan for plan, batch in sizes if batch >= self.least and batch not in self.unsized]


def tiers(points: Sequence[Point], allowed: Allowed, capacity: Capacity, way: str = NATIVE) -> list[Tier]:
    plans = allowed.plans()
    found = []
    for name in NAMES:
        chosen = _largest(points, allowed, plans, capacity, name, way, FEW_WORKERS)
        chosen = chosen or _largest(points, allowed, plans, capacity, name, way, 0)
        plan, predicted = chosen if chosen is not None else (None, None)
        found.append(
            Tier(name, plan, predicted, effective_batch(allowed.template, plan) if plan is not None else None)
        )
    return found


def _largest(
    points: Sequence[Point],
    allowed: Allowed,
    plans: Sequence[Plan],
    capacity: Capacity,
    tier: str,
    way: str,
    fewest: int,
) -> tuple[Plan, Predicted] | None:
    """By halving the list: memory grows with the batch."""
    low, high = 0, len(plans)
    best = None
    while low < high:
        middle = (low + high) // 2
        fitting = with_workers_that_fit(points, allowed.template, plans[middle], capacity, tier, way, fewest)
        if fitting is None:
            low = middle + 1
        else:
            best, high = fitting, middle
    return best


def with_workers_that_fit(
    points: Sequence[Point],
    template: Template,
    plan: Plan,
    capacity: Capacity,
    tier: str,
    way: str = NATIVE,
    fewest: int = 0,
) -> tuple[Plan, Predicted] | None:
    """The plan with as many workers as fit into RAM and /dev/shm, then with fewer batches ahead; None where not even the fewest do, or the
    card is too small."""
    batch = number(template, plan, "batch") or points[0].batch
    knob = template.knob("workers")
    wanted = number(template, plan, "workers")
    counts: list[int | None] = [None]
    if knob is not None and wanted is not None:
        least = max(fewest_workers(points, knob), min(wanted, fewest))
        counts = [count for count in range(wanted, least - 1, -1) if knob.allows(count)]
    if not _card_fits(predict(points, batch, counts[0], way), capacity, tier):
        return None
    ahead = template.knob("prefetch")
    first = number(template, plan, "prefetch")
    fewer = [int(value) for value in ahead.smaller(str(first))] if ahead is not None and first else []
    for count, prefetch in [*((count, first) for count in counts), *((counts[-1], value) for value in fewer)]:
        predicted = predict(points, batch, count, way, prefetch)
        if _host_fits(predicted, capacity, tier):
            changed = {knob.name: str(count)} if knob is not None and count is not None else {}
            if ahead is not None and prefetch is not None:
                changed[ahead.name] = str(prefetch)
            return plan.with_values(**changed), predicted
    return None


def fewest_workers(points: Sequence[Point], knob: Knob) -> int:
    """What the knob allows; where a run had persistent workers, one of them."""
    if knob.values:
        return knob.least
    return max(knob.least, 1 if any(point.persistent for point in points) else 0)


def _card_fits(predicted: Predicted, capacity: Capacity, tier: str) -> bool:
    if predicted.gpu is None or predicted.least is None:
        return True
    if capacity.gpu is None:
        return False
    if tier == MAXIMUM:
        return predicted.least * (1 + UNEVEN * predicted.varies) <= usable_at_most(capacity.gpu)
    return predicted.gpu.high <= SHARES[tier] * capacity.gpu


def usable_at_most(card: int) -> int:
    """Of a card, for the maximum."""
    return int(card * (1 - RESERVE))


def _host_fits(predicted: Predicted, capacity: Capacity, tier: str) -> bool:
    """A job on a card leaves its RAM's share to the guard; one on the CPU has its tiers by RAM."""
    if capacity.shm is not None and predicted.shared > capacity.shm:
        return False
    if tier == MAXIMUM:
        return predicted.host.expected <= capacity.ram
    share = SHARES[tier] if predicted.gpu is None else 1.0
    return predicted.host.high <= share * capacity.ram


@dataclass(frozen=True, slots=True)
class Confirmation:
    """``fits``: None where the run said nothing about memory. Bytes."""

    tier: str
    fits: bool | None
    gpu: int | None = None
    host: int | None = None
    sentence: str = ""
    step_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "fits": self.fits,
            "gpu_bytes": self.gpu,
            "host_bytes": self.host,
            "sentence": self.sentence,
            "step_seconds": self.step_seconds,
        }


def confirmation(tier: Tier, rehearsal: Rehearsal) -> Confirmation:
    """Of a plan that was rehearsed: its largest batch, an evaluation, a generation, a checkpoint."""
    assert tier.predicted is not None
    if rehearsal.refused:
        return Confirmation(tier.name, None, sentence=f"not confirmed by a real run: {rehearsal.refused}")
    gpu, host = rehearsal.peak("gpu"), rehearsal.peak("host")
    if (oom := rehearsal.out_of_memory) is not None:
        where = "the card" if oom.where == "gpu" else "RAM"
        return Confirmation(
            tier.name,
            False,
            gpu,
            host,
            f"a real run of the {tier.name} plan ran out of memory on {where} in {oom.phase}",
        )
    predicted = tier.predicted
    figures = []
    if gpu is not None and predicted.gpu is not None:
        figures.append(f"{format_size(gpu)} of the card ({format_size(predicted.gpu.expected)} predicted)")
    if host is not None:
        figures.append(f"{format_size(host)} of RAM ({format_size(predicted.host.expected)} predicted)")
    reached = ", ".join(phase.name for phase in rehearsal.phases if phase.reached)
    step = rehearsal.step_seconds
    pace = f"; its quickest step took {step_text(step)}" if step is not None else ""
    return Confirmation(
        tier.name,
        True,
        gpu,
        host,
        f"a real run of the {tier.name} plan took {' and '.join(figures)}; reached: {reached}{pace}",
        step,
    )
