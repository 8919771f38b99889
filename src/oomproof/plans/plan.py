"""A plan: one value for each knob, and the arithmetic that keeps the effective batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import isqrt

from oomproof.errors import USAGE, OomproofError
from oomproof.plans.knobs import Knob, Template
from oomproof.records import dataclass

_NEAR = 20_000  # effective batches that are looked at for a hint


@dataclass(frozen=True, slots=True)
class Plan:
    """A full set of settings, in the template's order."""

    values: tuple[tuple[str, str], ...]

    @staticmethod
    def of(values: Mapping[str, str]) -> Plan:
        return Plan(tuple(values.items()))

    def with_values(self, **changed: str) -> Plan:
        return Plan(tuple((name, changed.get(name, value)) for name, value in self.values))

    def as_dict(self) -> dict[str, str]:
        return dict(self.values)

    def get(self, name: str) -> str | None:
        return next((value for known, value in self.values if known == name), None)

    def __str__(self) -> str:
        return " ".join(f"{name}={value or 'none'}" for name, value in self.values)


def number(template: Template, plan: Plan, kind: str) -> int | None:
    """What the plan says of the knob of that kind; None where it has none."""
    knob = template.knob(kind)
    value = plan.get(knob.name) if knob is not None else None
    return int(value) if value is not None and value.isdecimal() else None


def effective_batch(template: Template, plan: Plan) -> int | None:
    """Samples of one optimizer step on one device; None where the plan does not say."""
    batch = number(template, plan, "batch")
    return batch * (number(template, plan, "accum") or 1) if batch is not None else None


def divisors(effective: int) -> list[int]:
    """Every micro-batch into which it can be split evenly, the largest first."""
    low = [size for size in range(1, isqrt(effective) + 1) if effective % size == 0]
    return sorted({*low, *(effective // size for size in low)}, reverse=True)


def with_batch(template: Template, plan: Plan, batch: int, effective: int | None) -> Plan | None:
    """The plan with that micro-batch and the accumulation that keeps the effective batch; None where they do not go together."""
    micro, accum = template.knob("batch"), template.knob("accum")
    if micro is None or not micro.allows(batch):
        return None
    changed = {micro.name: str(batch)}
    if accum is not None:
        if effective is None:
            changed[accum.name] = plan.get(accum.name) or "1"
        elif effective % batch or not accum.allows(effective // batch):
            return None
        else:
            changed[accum.name] = str(effective // batch)
    return plan.with_values(**changed)


def batches_at_most(template: Template, plan: Plan, most: int, effective: int | None) -> Iterator[Plan]:
    """Plans with a smaller or equal micro-batch, the largest first. With accumulation and an effective batch to keep: its divisors."""
    accum = template.knob("accum")
    if accum is not None and effective is not None:
        sizes = [size for size in divisors(effective) if size <= most]
    else:
        sizes = list(range(most, 0, -1))
    for size in sizes:
        if (smaller := with_batch(template, plan, size, effective)) is not None:
            yield smaller


def check_effective(template: Template, effective: int | None) -> None:
    """Raises OomproofError where the effective batch cannot be kept by any plan."""
    micro, accum = template.knob("batch"), template.knob("accum")
    if effective is None:
        return
    if effective < 1:
        raise OomproofError("--effective 0 is no batch", "give the samples of one optimizer step", USAGE)
    if micro is None:
        raise OomproofError(
            "--effective needs a batch that can change",
            "put {batch} into the command: --batch-size {batch}",
            USAGE,
        )
    if accum is None:
        if micro.allows(effective):
            return
        raise OomproofError(
            f"--effective {effective} is not among the values of {micro.name}, and nothing accumulates",
            "put {accum} into the command: --accum {accum}", USAGE,
        )  # fmt: skip
    if not _splits(effective, micro, accum):
        nearest = _nearest(effective, micro, accum)
        given = f"give --effective {nearest}, or" if nearest else "give"
        raise OomproofError(
            f"no micro-batch of {micro.name} divides the effective batch {effective}",
            f"{given} other values for {micro.name}", USAGE,
        )  # fmt: skip


def split_note(effective: int, most: int, batch: int) -> str:
    """A sentence where the effective batch splits badly: far less fits evenly than would fit at all. Else nothing."""
    if batch * 1.25 > most or effective <= most:
        return ""
    return (
        f"{effective} splits evenly only into {batch} at a time although {most} fit; "
        f"an effective batch of {_multiple(effective, most)} would take {most}"
    )


def _multiple(effective: int, micro: int) -> int:
    return max(micro, round(effective / micro) * micro)


def _splits(effective: int, micro: Knob, accum: Knob) -> bool:
    return any(micro.allows(size) and accum.allows(effective // size) for size in divisors(effective))


def _nearest(effective: int, micro: Knob, accum: Knob) -> int | None:
    """The effective batch next to it that a plan can keep."""
    near = (
        number for distance in range(1, effective) for number in (effective - distance, effective + distance)
    )
    return next((number for number in islice(near, _NEAR) if _splits(number, micro, accum)), None)


def other_batch_note(after: int) -> str:
    """Of a plan whose effective batch nobody asked for."""
    return (
        f"no effective batch was given: {after} samples a step are another training than with the batch your learning rate was chosen "
        f"for; it usually changes by the same factor with SGD, by its square root with Adam. --effective N keeps a batch"
    )


def learning_rate_note(before: int | None, after: int | None) -> str:
    """What another effective batch means; nothing where it stays."""
    if not before or not after or before == after:
        return ""
    factor = after / before
    return (
        f"the effective batch changes from {before} to {after}: the learning rate too, usually × {_factor(factor)} with SGD "
        f"or × {_factor(factor**0.5)} with Adam; with accumulation it would stay"
    )


def _factor(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"
