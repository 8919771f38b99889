"""The one answer to "make it smaller", for `--retry`, `fix` and `sweep`. Pure.

``next_plan``: after a death by memory; what was full decides which knob gives way. ``plans_down``: all smaller plans, where no death
is known. ``decide``: whether there is another attempt at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from oomproof.diagnosis.smaller_command import workers_that_fit
from oomproof.errors import USAGE, OomproofError
from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.knobs import Kind, Knob, Template, sacrifice_order
from oomproof.plans.plan import (
    Plan,
    batches_at_most,
    effective_batch,
    learning_rate_note,
    number,
)
from oomproof.records import dataclass
from oomproof.units import format_size

# Half at first, then a quarter of that, then an eighth: three retries go from 64 to 1. Each death costs a start, and a loader or a card that
# runs with less than it could costs little beside that.
_PARTS = 2
_WORTH = 0.2  # of what the job held: workers with less are not what to change first
# What was asked for at the moment of death is a lower bound of the peak. Once steps have been made, batches differ by their lengths only, and
# it is near; before that, nobody knows how much more would have come.
_PEAK_SEEN = 3  # steps
_SAFE = 0.9
_OF_EVALUATION = re.compile(r"new_tokens|max_length|gen|beam|eval|val|sequences")
_EVALUATIONS = ("eval", "generate")


@dataclass(frozen=True, slots=True)
class SmallerPlan:
    """``why``: in a few words, with the figures it rests on. ``note``: what else the user has to know."""

    plan: Plan
    why: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class NoPlan:
    reason: str
    hint: str = ""


def first_plan(template: Template, command: Sequence[str]) -> Plan:
    """What the command runs with before anything is changed. Raises OomproofError where a placeholder has no first value."""
    values: dict[str, str] = {}
    for knob in template.knobs:
        if not template.typed and any(knob.name == name for name, _ in template.overrides):
            values[knob.name] = str(knob.first)
        elif not template.typed:
            values[knob.name] = _typed_value(template, command, knob.name)
        elif knob.values:
            values[knob.name] = knob.values[0]
        elif knob.first is not None:
            values[knob.name] = str(knob.first)
        elif knob.kind == "accum":
            values[knob.name] = "1"
        else:
            raise OomproofError(
                f"nothing says with which {knob.name} to begin", f"add --knob {knob.name}=64..{knob.least}", USAGE
            )  # fmt: skip
    return Plan.of(values)


def argument_name(template: Template, name: str) -> str:
    """What a knob is called on the command line: ``--batch-size``; its own name where it stands alone."""
    for known, begin in template.overrides:
        if known == name:
            return begin.lstrip("+").removesuffix("=")
    for at, word in enumerate(template.words):
        if f"{{{name}}}" in word:
            before = word.partition(f"{{{name}}}")[0].removesuffix("=")
            if before:
                return before
            earlier = template.words[at - 1] if at else ""
            return earlier if earlier.startswith("-") else name
    return name


def next_plan(
    template: Template,
    plan: Plan,
    tried: Sequence[Plan],
    facts: DeathFacts,
    order: Sequence[str] = (),
    effective: int | None = None,
) -> SmallerPlan | NoPlan:
    """The first knob that can give way does, by the figures where they tell how far. ``effective``: the batch to keep; ``tried``:
    plans that are not to come again, in their order."""
    gone = {*tried, plan}
    for knob in _relevant(template, plan, facts, order):
        part = _PARTS ** (1 + _times_changed(knob, tried))
        for smaller in _steps(template, plan, knob, facts, effective, part):
            if smaller.plan not in gone:
                return smaller
    return _nothing_left(template, plan, facts)


def plans_down(template: Template, plan: Plan, effective: int | None) -> Iterator[Plan]:
    """``plan``, then smaller and smaller ones, where no death says what was full: each knob goes down to its least value before
    the next one gives way, so a cheaper sacrifice is used up first."""
    seen = [plan]
    yield plan
    for knob in sacrifice_order([knob for knob in template.knobs if knob.kind != "accum"]):
        if knob.kind != "batch":
            smaller = _values_below(seen[-1], knob)
        elif _may_split(template, knob):
            smaller = batches_down(template, seen[-1], effective)
        else:
            continue
        for candidate in smaller:
            if candidate not in seen:
                seen.append(candidate)
                yield candidate


def batches_down(template: Template, plan: Plan, effective: int | None) -> Iterator[Plan]:
    """The plan split further and further where something accumulates; else its batch by halves."""
    knob, most = template.knob("batch"), number(template, plan, "batch")
    if knob is None or most is None:
        return iter(())
    if template.knob("accum") is None:
        return _values_below(plan, knob)
    return batches_at_most(template, plan, most, effective)


def _values_below(plan: Plan, knob: Knob) -> Iterator[Plan]:
    value = plan.get(knob.name) or ""
    for smaller in knob.smaller(value) if knob.values or value.isdecimal() else ():
        yield plan.with_values(**{knob.name: smaller})


def _may_split(template: Template, batch: Knob) -> bool:
    """A batch that nobody described changes only with the accumulation that keeps the effective batch."""
    return batch.described or template.knob("accum") is not None


def describe_change(template: Template, before: Plan, after: Plan) -> str:
    """``--batch-size 64 → 32, --accum 1 → 2``."""
    return ", ".join(
        f"{argument_name(template, name)} {before.get(name) or 'none'} → {value or 'none'}"
        for name, value in after.values
        if before.get(name) != value
    )


def _times_changed(knob: Knob, tried: Sequence[Plan]) -> int:
    values = [plan.get(knob.name) for plan in tried]
    return sum(before != after for before, after in pairwise(values))


def _part_text(part: int) -> str:
    return "half" if part == 2 else "a quarter this time" if part == 4 else f"1/{part} this time"


def _typed_value(template: Template, command: Sequence[str], name: str) -> str:
    at = next(at for at, word in enumerate(template.words) if f"{{{name}}}" in word)
    before, _, after = template.words[at].partition(f"{{{name}}}")
    return command[at].removeprefix(before).removesuffix(after)


def _relevant(template: Template, plan: Plan, facts: DeathFacts, order: Sequence[str]) -> tuple[Knob, ...]:
    """Those that may help, in the order in which they give way. Workers take no GPU memory; accumulation moves with the batch."""
    knobs = [knob for knob in template.knobs if knob.kind != "accum"]
    if facts.memory == "gpu" or (facts.memory == "host" and facts.alone):
        knobs = [knob for knob in knobs if knob.kind not in ("workers", "prefetch")]
    if facts.loading:
        knobs = [knob for knob in knobs if knob.name in order or _takes_part_in_loading(knob, facts)]
    if facts.phase == "train":
        knobs = [knob for knob in knobs if knob.kind != "eval_batch"]
    asked = [name for name in order if any(knob.name == name for knob in knobs)]
    ordered = sacrifice_order(knobs, asked)
    if asked:
        return ordered
    return tuple(sorted(ordered, key=lambda knob: _turn(template, plan, knob, facts)))


def _takes_part_in_loading(knob: Knob, facts: DeathFacts) -> bool:
    """What the user named may be a precision or a part of the data."""
    if knob.kind in ("workers", "prefetch"):
        return knob.kind not in not_loaded(facts)
    return knob.kind not in not_loaded(facts) and not _OF_EVALUATION.search(knob.name.lower())


def not_loaded(facts: DeathFacts) -> tuple[Kind, ...]:
    """Kinds of settings that take nothing off a death while loading; none where it was not loading. Workers that were seen then are those
    of a data set's map()."""
    if not facts.loading:
        return ()
    return ("batch", "eval_batch") if facts.workers else ("batch", "eval_batch", "workers", "prefetch")


def _turn(template: Template, plan: Plan, knob: Knob, facts: DeathFacts) -> int:
    """0: before the usual order, 2: after it."""
    if facts.phase in _EVALUATIONS and facts.memory != "shm":
        if knob.kind == "eval_batch" or _OF_EVALUATION.search(knob.name.lower()):
            return 0
        return 2 if knob.kind == "batch" and template.knob("eval_batch") is not None else 1
    share = facts.worker_share
    if facts.memory == "host" and knob.kind in ("workers", "prefetch") and share is not None:
        return 2 if share < _WORTH else 0
    return 1


def _steps(
    template: Template, plan: Plan, knob: Knob, facts: DeathFacts, effective: int | None, part: int
) -> Iterator[SmallerPlan]:
    """What the knob may be set to, the most promising first. ``part``: of its value, where no figures tell."""
    value = plan.get(knob.name) or ""
    if knob.kind == "batch":
        yield from _smaller_batches(template, plan, knob, facts, effective, part)
        return
    if knob.kind == "workers" and value.isdecimal():
        yield from _fewer_workers(plan, knob, int(value), facts, part)
    elif (figure := _by_figures(knob, value, facts)) is not None:
        yield SmallerPlan(plan.with_values(**{knob.name: figure}), f"{figure} fit, as its figures tell")
    # a list may hold what does not order by size: the user's order is the order
    if not knob.values and value.isdecimal() and (least := max(knob.least, int(value) // part)) < int(value):
        yield SmallerPlan(plan.with_values(**{knob.name: str(least)}), _part_text(part))
    for smaller in _values_below(plan, knob):
        yield SmallerPlan(smaller, "the next of its values" if knob.values else "half")


def _by_figures(knob: Knob, value: str, facts: DeathFacts) -> str | None:
    """What the call of generate() in which it happened could have had."""
    fits = None
    if facts.phase == "generate" and knob.kind == "eval_batch":
        fits = facts.fitting_batch
    elif facts.phase == "generate" and "new_tokens" in knob.name.lower():
        fits = facts.fitting_new_tokens
    if fits is None or not value.isdecimal() or fits >= int(value) or not knob.allows(fits):
        return None
    return str(fits)


def _fewer_workers(
    plan: Plan, knob: Knob, workers: int, facts: DeathFacts, part: int
) -> Iterator[SmallerPlan]:
    """As many as fit, where their sizes are known. Of workers that still grew only half, where that is less."""
    if not facts.worker_bytes or facts.allowed is None or facts.held is None or facts.memory != "host":
        return
    alive = facts.workers or workers
    rest = max(0, facts.held - alive * facts.worker_bytes)
    fits = workers_that_fit(workers, facts.worker_bytes, rest, facts.allowed)
    if fits is None:
        return
    grew = facts.growing and fits > workers // part
    fits = workers // part if grew else fits
    for count in range(fits, knob.least - 1, -1):
        if knob.allows(count):
            figures = f"each held {format_size(facts.worker_bytes)} of its own" + (
                " and grew" if grew else ""
            )
            yield SmallerPlan(plan.with_values(**{knob.name: str(count)}), figures)
            return


def _smaller_batches(
    template: Template, plan: Plan, knob: Knob, facts: DeathFacts, effective: int | None, part: int
) -> Iterator[SmallerPlan]:
    """With the accumulation that keeps the effective batch. Without any, only where the user let the batch change."""
    batch = number(template, plan, "batch")
    if batch is None or batch <= 1 or not _may_split(template, knob):
        return
    most, why = _most_batch(batch, facts, part)
    before = effective_batch(template, plan)
    for smaller in batches_at_most(template, plan, most, effective):
        after = effective_batch(template, smaller)
        yield SmallerPlan(smaller, why, learning_rate_note(before, after))
        why = "the next smaller one"


def _most_batch(batch: int, facts: DeathFacts, part: int) -> tuple[int, str]:
    """(the largest micro-batch worth trying, why): half, or what the figures of the death say where they are near the peak."""
    half = max(1, batch // part)
    if facts.memory != "gpu" or not facts.gpu_capacity or facts.gpu_wanted <= facts.gpu_capacity:
        return half, _part_text(part)
    fixed = facts.gpu_fixed if facts.gpu_fixed is not None else 0
    needed, have = facts.gpu_wanted - fixed, int(facts.gpu_capacity * _SAFE) - fixed
    if needed <= 0 or have <= 0:
        return half, _part_text(part)
    short = f"it wanted {format_size(facts.gpu_wanted)} and could have {format_size(facts.gpu_capacity)}"
    bound = max(1, min(batch - 1, batch * have // needed))
    seen = facts.gpu_fixed is not None and (facts.steps or 0) >= _PEAK_SEEN and facts.phase == "train"
    if bound < half or seen:
        return bound, short
    return half, _part_text(part)


def _nothing_left(template: Template, plan: Plan, facts: DeathFacts) -> NoPlan:
    if facts.loading:
        return NoPlan(
            "it was still loading, before its first batch: neither a smaller batch nor fewer workers make that smaller",
            "name what makes loading smaller: --knob NAME=VALUE,VALUE; if it does make batches before, --order batch tries",
        )
    held_back = template.knob("batch")
    if held_back is not None and not _may_split(template, held_back):
        batch = number(template, plan, "batch")
        if batch is not None and batch > 1 and facts.memory != "shm":
            name = argument_name(template, held_back.name)
            return NoPlan(
                f"{name} could be smaller, but nothing accumulates: the effective batch would change",
                f"allow that with --knob {held_back.name}={batch}..1, or add an argument for gradient accumulation",
            )
    if facts.memory == "gpu" and not any(knob.kind not in ("workers", "prefetch") for knob in template.knobs):
        return NoPlan("nothing that can be changed takes GPU memory", "name what does: --knob batch=64..1")
    return NoPlan(f"nothing smaller is left: {plan}", "name more that may change: --knob NAME=VALUE,VALUE")


# The first pause lets the dead job's memory come back; later ones are for whatever else takes it.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Retry:
    """``change``: what differs from the plan before, empty where nothing does. ``need``: bytes to wait for, None: no wait."""

    plan: Plan
    change: str
    why: str
    pause: float
    note: str = ""
    need: int | None = None
    gpu_need: int | None = None


@dataclass(frozen=True, slots=True)
class NoRetry:
    reason: str
    hint: str = ""


def decide(
    template: Template,
    plans: Sequence[Plan],
    facts: DeathFacts,
    retries: int,
    order: Sequence[str] = (),
) -> Retry | NoRetry:
    """``plans``: those of the attempts so far, in their order; ``retries``: how many there may be in all."""
    made = len(plans) - 1
    if facts.stopped:
        return NoRetry("it was stopped by a person")
    if facts.memory is None:
        return NoRetry("it did not run out of memory")
    if made >= retries:
        times = "once" if retries == 1 else f"{retries} times"
        return NoRetry(f"it was tried again {times} (--retry {retries})")
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 4**made)
    if facts.others:
        need = facts.held if facts.memory == "host" else None
        gpu_need = facts.gpu_wanted if facts.memory == "gpu" else None
        return Retry(plans[-1], "", facts.others, pause, need=need, gpu_need=gpu_need or None)
    smaller = next_plan(template, plans[-1], plans, facts, order, effective_batch(template, plans[0]))
    if isinstance(smaller, NoPlan):
        return NoRetry(smaller.reason, smaller.hint)
    note = smaller.note
    if facts.leak:
        note = "; ".join(filter(None, (note, "memory grew to the end: smaller settings may only delay it")))
    return Retry(smaller.plan, describe_change(template, plans[-1], smaller.plan), smaller.why, pause, note)
