"""What `oomproof fit` prints: the table from conservative to maximum, what a smaller batch changes, and the command to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from oomproof.plans.plan import (
    Plan,
    effective_batch,
    learning_rate_note,
    number,
    other_batch_note,
    split_note,
)
from oomproof.reports.table_text import folded, table
from oomproof.sizing.fit_verdict import Place
from oomproof.sizing.planning.fit_points import (
    EXPANDABLE,
    NATIVE,
    QUANTIZED,
    RELEASED,
    Predicted,
    predict,
    split_notes,
)
from oomproof.sizing.planning.fit_search import MOST, FitAnswer, Scenario
from oomproof.sizing.planning.fit_tiers import BALANCED, MAXIMUM, UNEVEN, Allowed, Confirmation, Tier, tiers
from oomproof.sizing.planning.step_times import StepTime, pace_note, step_text, step_time
from oomproof.sizing.quantized_weights import KINDS
from oomproof.sizing.screens.size_report import typed
from oomproof.units import format_size

SCHEMA = 1
_WORTH = 1.05  # times the batch: less is no reason for another setting
_WAYS = {
    EXPANDABLE: "with PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.11)",
    RELEASED: "with cached memory given back after evaluations (oomproof run --release always)",
    **{
        kind: f"with the frozen weights in {words}, as bitsandbytes keeps them (by arithmetic, not measured)"
        for kind, words in KINDS.items()
    },
}


def lines(
    answer: FitAnswer, places: Sequence[Place], width: int, real: Sequence[Confirmation] = ()
) -> list[str]:
    """``real``: what short real runs said, of the plan to start with and of more careful ones."""
    shown = [_places(places), ""]
    for scenario in answer.scenarios[:-1]:
        shown += folded("", f"{_setting(answer, scenario)} does not fit with any batch", width)
    if not answer.fits:
        shown += _nothing(answer, width)
        return shown
    scenario = answer.chosen
    if len(answer.scenarios) > 1:
        shown += [*folded("", f"With {_setting(answer, scenario)}:", width), ""]
    shown += [*_table(answer, scenario, scenario.tiers, width), ""]
    for way, words in _WAYS.items():
        other = _other_way(answer, scenario, way)
        if other:
            shown += [
                *folded("", f"{words[0].upper()}{words[1:]}:", width),
                *_table(answer, scenario, other, width),
                "",
            ]
    for run in real:
        shown += folded("confirmed  " if run.fits else "     real  ", run.sentence, width)
    tier = tier_to_start(real)
    for note in (*unsized_notes(answer), *notes(answer, tier)):
        shown += folded("     note  ", note, width)
    return [*shown, "", *_next(answer, tier)]


def tier_to_start(real: Sequence[Confirmation]) -> str:
    """The balanced one, or the one that a real run did not rule out."""
    return next((run.tier for run in reversed(real) if run.fits is not False), BALANCED)


def more_careful(answer: FitAnswer) -> list[Tier]:
    """The plan to start with, then those with a smaller batch."""
    first = _tier(answer, BALANCED)
    careful = [tier for tier in answer.chosen.tiers if tier.plan is not None]
    names = [tier.name for tier in careful]
    if first is None:
        return []
    smaller = reversed(careful[: names.index(first.name)])
    return [first, *(tier for tier in smaller if tier.plan != first.plan)]


def notes(answer: FitAnswer, tier: str) -> Iterator[str]:
    chosen = _tier(answer, tier)
    request, points = answer.request, answer.chosen.points
    yield from _as_typed(answer)
    if chosen is not None and chosen.plan is not None:
        batch = number(request.template, chosen.plan, "batch")
        before = request.effective or effective_batch(request.template, answer.start)
        if request.effective is not None and chosen.effective == request.effective:
            if batch is not None and (
                text := split_note(request.effective, _largest(answer, chosen.name), batch)
            ):
                yield text
        elif not request.template.typed and (text := learning_rate_note(before, chosen.effective)):
            yield text
        elif request.template.typed and request.effective is None and chosen.effective is not None:
            if request.usual is None:
                yield other_batch_note(chosen.effective)
            elif text := learning_rate_note(request.usual, chosen.effective):
                yield text
        if text := pace_note(request.template, request.paces, chosen.plan):
            yield text
        if batch is not None and chosen.effective is not None:
            whole = max(chosen.effective, 0 if request.template.typed else before or 0)
            yield from split_notes(points, batch, whole)
            yield from _bounds(answer, batch)
        if chosen.name != tier:
            yield f"nothing is {tier} here; {chosen.name} is the nearest that fits"
    uneven = {
        str(tier.predicted.batch)
        for tier in answer.chosen.tiers
        if tier.predicted is not None and tier.predicted.gpu is not None and tier.predicted.varies
    }
    if uneven:
        rows = ", ".join(sorted(uneven, key=int))
        yield f"samples differ in size, and batch {rows} had no run of its own: up to {UNEVEN:.0%} more is possible there (the maximum counts with it)"
    peak = max(points, key=lambda point: point.batch).peak
    if peak:
        yield f"the peak: {peak}"
    yield from answer.notes


def unsized_notes(answer: FitAnswer) -> Iterator[str]:
    """Which batches could not be sized, and what that means for the maximum."""
    scenario = answer.chosen
    largest = max(point.batch for point in scenario.points)
    for why in dict.fromkeys(scenario.unsized.values()):
        batches = [str(batch) for batch, known in sorted(scenario.unsized.items()) if known == why]
        yield f"batch {' and '.join(batches)} {'was' if len(batches) == 1 else 'were'} not sized: {why}"
    if any(batch > largest for batch in scenario.unsized):
        yield f"no batch above {largest} is proposed; the maximum may be higher: see with a longer --time-limit, or a smaller --most"


def _bounds(answer: FitAnswer, batch: int) -> Iterator[str]:
    """What, other than memory, lets no batch be larger."""
    request = answer.request
    accumulates = request.template.knob("accum") is not None
    if not request.template.typed and not accumulates and batch == request.effective:
        yield f"the batch stays {batch}: nothing accumulates, and another batch is another training; for the largest that fits write {{batch}} in its place"
    elif request.effective is None and request.most is None and _largest(answer) == MOST:
        yield f"no batch above {MOST} was looked at; --most N does"


def _largest(answer: FitAnswer, name: str = MAXIMUM) -> int:
    """The largest batch of that tier, whether it divides anything or not."""
    request, points = answer.request, answer.chosen.points
    whole = Allowed(request.template, answer.chosen.plan, None, max(point.batch for point in points))
    plan = next(tier.plan for tier in tiers(points, whole, request.capacity) if tier.name == name)
    return (number(request.template, plan, "batch") or 1) if plan is not None else 1


def _as_typed(answer: FitAnswer) -> Iterator[str]:
    """Whether the command as it stands would fit, where it has values of its own."""
    template, request = answer.request.template, answer.request
    if template.typed or any(knob.first is None and not knob.values for knob in template.knobs):
        return
    first = answer.scenarios[0]
    predicted = _predicted(answer, first, answer.start)
    short = []
    if predicted.gpu is not None and request.capacity.gpu is not None:
        short.append((predicted.gpu.expected - request.capacity.gpu, "on the card"))
    short.append((predicted.host.expected - request.capacity.ram, "of RAM"))
    if request.capacity.shm is not None:
        short.append((predicted.shared - request.capacity.shm, "of /dev/shm"))
    missing = [f"{format_size(size)} {what}" for size, what in short if size > 0]
    if missing:
        yield f"as it stands ({answer.start}) the command does not fit: short by {' and '.join(missing)}"


def _predicted(answer: FitAnswer, scenario: Scenario, plan: Plan, way: str = NATIVE) -> Predicted:
    template = answer.request.template
    batch = number(template, plan, "batch") or scenario.points[0].batch
    return predict(
        scenario.points, batch, number(template, plan, "workers"), way, number(template, plan, "prefetch")
    )


def _other_way(answer: FitAnswer, scenario: Scenario, way: str) -> list[Tier]:
    """The tiers where the allocator keeps memory otherwise; empty where that makes none of them notably larger."""
    if not all(way in point.card for point in scenario.points):
        return []
    request = answer.request
    most = max(point.batch for point in scenario.points)
    if way in QUANTIZED and not scenario.unsized:  # far beyond the runs, on their line
        most = min(
            request.most or MOST, min((point.samples or MOST for point in scenario.points), default=MOST)
        )
    other = tiers(
        scenario.points,
        Allowed(request.template, scenario.plan, request.effective, most),
        request.capacity,
        way,
    )
    pairs = list(zip(other, scenario.tiers, strict=True))
    batches = [
        [number(request.template, tier.plan, "batch") or 0 if tier.plan else 0 for tier in pair]
        for pair in pairs
    ]
    better = any(new > _WORTH * old for new, old in batches) and all(new >= old for new, old in batches)
    return other if better else []


def _table(answer: FitAnswer, scenario: Scenario, shown: Sequence[Tier], width: int) -> list[str]:
    template, capacity = answer.request.template, answer.request.capacity
    changing = [
        knob.name for knob in template.knobs if knob.kind in ("batch", "accum", "workers", "prefetch")
    ]
    on_card = scenario.points[0].on_card
    times = {tier.name: _step_time(answer, tier) for tier in shown}
    timed = any(times.values())
    head = [
        "  PLAN",
        *changing,
        *(["GPU", "headroom"] if on_card else []),
        "RAM",
        *([] if on_card else ["headroom"]),
        *(["step"] if timed else []),
    ]
    rows = [[*head, "peak in"]]
    for name, tier in _joined(shown):
        if tier.plan is None or tier.predicted is None:
            rows.append([f"  {name}", *("–" for _ in head[1:]), "does not fit"])
            continue
        predicted = tier.predicted
        card = []
        if predicted.gpu is not None and predicted.least is not None and capacity.gpu is not None:
            # what is cached above the capacity is given back: what must be there counts then
            used = predicted.gpu.expected if predicted.gpu.expected <= capacity.gpu else predicted.least
            card = [format_size(used), _headroom(capacity.gpu, used)]
        host = [format_size(predicted.host.expected)]
        if not on_card:
            host.append(_headroom(capacity.ram, predicted.host.expected))
        values = [tier.plan.get(knob) or "" for knob in changing]
        step = [_step_text(times[tier.name])] if timed else []
        rows.append([f"  {name}", *values, *card, *host, *step, predicted.phase])
    return table(
        rows, width, right=range(1, len(head)), drop=(len(head), *([head.index("RAM")] if on_card else []))
    )


def _step_time(answer: FitAnswer, tier: Tier) -> StepTime | None:
    request = answer.request
    return step_time(request.template, request.paces, tier.plan) if tier.plan is not None else None


def _step_text(time: StepTime | None) -> str:
    """As earlier runs of the command took it, or on their line."""
    if time is None:
        return "–"
    return step_text(time.seconds) if time.measured else f"~{step_text(time.seconds)}"


def _joined(shown: Sequence[Tier]) -> Iterator[tuple[str, Tier]]:
    """Tiers with the same plan are one row: "conservative to maximum"."""
    first = 0
    for index, tier in enumerate(shown):
        if index + 1 < len(shown) and shown[index + 1].plan == tier.plan:
            continue
        name = tier.name if first == index else f"{shown[first].name} to {tier.name}"
        yield name, tier
        first = index + 1


def _headroom(capacity: int, used: int) -> str:
    return format_size(capacity - used) if used <= capacity else "none"


def _setting(answer: FitAnswer, scenario: Scenario) -> str:
    """What is set beside batch and workers: "ckpt=--gradient-checkpointing"."""
    template = answer.request.template
    names = [
        knob.name for knob in template.knobs if knob.kind not in ("batch", "accum", "workers", "prefetch")
    ]
    return " ".join(f"{name}={scenario.plan.get(name) or 'none'}" for name in names)


def _nothing(answer: FitAnswer, width: int) -> list[str]:
    smallest = min(answer.chosen.points, key=lambda point: point.batch)
    batch = f" with a batch of {smallest.batch}" if smallest.batch else ""
    sentence = (
        f"Nothing fits: even{batch} it is short by {format_size(answer.short_by)} of {answer.short_of}."
    )
    for way in QUANTIZED:
        need, capacity = smallest.card.get(way), answer.request.capacity.gpu
        if need is not None and capacity is not None and need.least <= capacity:
            sentence += f" With its frozen weights in {KINDS[way]} it would take {format_size(need.estimate.expected)} (by arithmetic: BitsAndBytesConfig)."
            break
    return [
        *folded("", sentence, width),
        *(line for note in unsized_notes(answer) for line in folded("     note  ", note, width)),
        "",
        "Next: give it more to give up, such as gradient checkpointing, precision or length:",
        "  oomproof fit --knob ckpt=,--gradient-checkpointing -- CMD {ckpt}",
    ]


def _places(places: Sequence[Place]) -> str:
    return "For " + " and ".join(f"{place.name} ({place.has})" for place in places)


def _tier(answer: FitAnswer, wanted: str) -> Tier | None:
    """That one; where nothing fits so, the next that is less careful."""
    known = {tier.name: tier for tier in answer.chosen.tiers}
    names = list(known)
    return next((known[name] for name in names[names.index(wanted) :] if known[name].plan is not None), None)


def _next(answer: FitAnswer, wanted: str) -> list[str]:
    tier = _tier(answer, wanted)
    if tier is None or tier.plan is None or tier.predicted is None:
        return []
    return [f"Next: start the {tier.name} plan:", f"  {command_line(answer, tier)}"]


def command_line(answer: FitAnswer, tier: Tier) -> str:
    assert tier.plan is not None and tier.predicted is not None
    predicted = tier.predicted
    need = f"--need {typed(predicted.host.expected)} "
    if predicted.gpu is not None:
        need += f"--gpu-need {typed(predicted.gpu.expected)} "
    return f"oomproof run {need}-- {shlex.join(answer.request.template.command(tier.plan.as_dict()))}"


def as_json(answer: FitAnswer, places: Sequence[Place], real: Sequence[Confirmation] = ()) -> dict[str, Any]:
    tier = tier_to_start(real)
    capacity = answer.request.capacity
    chosen = _tier(answer, tier) if answer.fits else None
    return {
        "schema": SCHEMA,
        "capacity": {"gpu_bytes": capacity.gpu, "ram_bytes": capacity.ram, "shm_bytes": capacity.shm},
        "places": [place.name for place in places],
        "effective": answer.request.effective,
        "as_typed": None if answer.request.template.typed else answer.start.as_dict(),
        "fits": answer.fits,
        "short_by_bytes": answer.short_by,
        "given_up": [scenario.plan.as_dict() for scenario in answer.scenarios[:-1]],
        "tiers": [_tier_json(answer, known) for known in answer.chosen.tiers],
        "chosen": chosen.name if chosen is not None else None,
        "confirmed": [run.as_json() for run in real],
        "virtual_runs": [
            {"batch": point.batch, "gpu_bytes": point.card[NATIVE].estimate.expected if point.on_card else None,
             "least_gpu_bytes": point.card[NATIVE].least if point.on_card else None,
             "host_bytes": point.host.estimate().expected}
            for scenario in answer.scenarios for point in scenario.points if not point.scaled
        ],
        "not_sized": [
            {"batch": batch, "why": why} for scenario in answer.scenarios for batch, why in scenario.unsized.items()
        ],
        "notes": list(notes(answer, tier)) if answer.fits else answer.notes,
    }  # fmt: skip


def _tier_json(answer: FitAnswer, tier: Tier) -> dict[str, Any]:
    if tier.plan is None or tier.predicted is None:
        return {"name": tier.name, "plan": None}
    predicted = tier.predicted
    return {
        "name": tier.name,
        "plan": tier.plan.as_dict(),
        "effective": tier.effective,
        "gpu": predicted.gpu.as_json() if predicted.gpu is not None else None,
        "least_gpu_bytes": predicted.least,
        "host": predicted.host.as_json(),
        "shm_bytes": predicted.shared,
        "phase": predicted.phase or None,
        "step_seconds": round(time.seconds, 6) if (time := _step_time(answer, tier)) is not None else None,
        "command": command_line(answer, tier),
    }
