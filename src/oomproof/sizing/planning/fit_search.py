"""The largest plans that fit, found by few virtual runs: settings given up in their order, the batch searched between them. Pure but for
``measure``, which runs a plan on a virtual GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isqrt

from oomproof.errors import USAGE, OomproofError
from oomproof.plans.knobs import Knob, Template, sacrifice_order
from oomproof.plans.plan import Plan, batches_at_most, number
from oomproof.records import dataclass, field
from oomproof.sizing.batch_search import largest_batch
from oomproof.sizing.planning.fit_points import NATIVE, Point, neighbours, predict
from oomproof.sizing.planning.fit_tiers import (
    FEW_WORKERS,
    MAXIMUM,
    Allowed,
    Capacity,
    Tier,
    fewest_workers,
    tiers,
    usable_at_most,
)  # fmt: skip
from oomproof.sizing.planning.step_times import Pace
from oomproof.sizing.watched_child import HELD_BACK

Measure = Callable[[Plan], Point]
Between = Callable[[Point, Point, int], Point | None]  # two runs and a batch, to what they tell of it
# ... to the bytes of the card that are just enough, which is quicker
Least = Callable[[Point, Point, int], int | None]
_START = 8  # where the batch begins that nobody knows: below it kernels and blocks are others (GPT-2 from 1 and 2: 10 % off)
MOST = 1 << 14
_FURTHER = 1.3  # times the largest batch that was run, a line is still trusted, until a run confirms it
_UNSIZED = 2  # batches that cannot be sized, until only those between sized ones are taken: each may last as long as its time limit
_CLOSE = 0.015  # of the batch: nearer to the largest one is not worth a run
_ROUNDS = 6
_SAME_ON_CARD = 1 << 20  # bytes: virtual runs of the same thing are the same to the byte
_FLAT = 8  # times a batch that still takes the same is no batch
_SAME = 0.02  # of what was measured on the host, where two runs differ by more
_WITH_BATCH = ("batch", "accum", "workers", "prefetch")


class NotSized(OomproofError):
    """Of one plan; others may be sized. ``failed``: the script's own status, where it failed by itself, else 0."""

    def __init__(self, plan: Plan, why: str, failed: int = 0) -> None:
        super().__init__(
            f"not sized with {plan}: {why}", "oomproof help size says what can be followed", USAGE
        )
        self.why, self.failed = why, failed


@dataclass(frozen=True, slots=True)
class FitRequest:
    """``effective``: to be kept, None where the template or the user does not say. ``workers``: at most, where nobody says.
    ``usual``: samples of a step where nothing is said, by the script's own default.
    ``paces``: of recorded runs of the command, the newest first."""

    template: Template
    capacity: Capacity
    effective: int | None = None
    order: tuple[str, ...] = ()
    workers: int = 4
    most: int | None = None
    usual: int | None = None
    paces: tuple[Pace, ...] = ()


@dataclass
class Scenario:
    """One setting of the knobs beside batch and workers. ``tiers`` have no plan where nothing fits. ``unsized``: batches, and why."""

    plan: Plan
    points: list[Point] = field(default_factory=list)
    tiers: list[Tier] = field(default_factory=list)
    unsized: dict[int, str] = field(default_factory=dict)

    @property
    def maximum(self) -> Tier:
        return next(tier for tier in self.tiers if tier.name == MAXIMUM)


@dataclass
class FitAnswer:
    """The last scenario is the one to take; those before it did not fit. ``short_by``: of the smallest plan, where nothing fits."""

    request: FitRequest
    start: Plan
    scenarios: list[Scenario]
    short_by: int = 0
    short_of: str = ""  # "the card", "RAM"
    notes: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> Scenario:
        return self.scenarios[-1]

    @property
    def fits(self) -> bool:
        return self.chosen.maximum.plan is not None

    @property
    def on_card(self) -> bool:
        return self.chosen.points[0].on_card


def start_plan(request: FitRequest) -> Plan:
    """Each knob at the value it is preferred to have."""
    template, values = request.template, {}
    for knob in template.knobs:
        values[knob.name] = knob.values[0] if knob.values else str(_first(knob, request))
    plan = Plan.of(values)
    return next(
        batches_at_most(template, plan, number(template, plan, "batch") or 1, request.effective), plan
    )


def _first(knob: Knob, request: FitRequest) -> int:
    if knob.first is not None:
        return knob.first
    return {"workers": request.workers, "prefetch": 2, "accum": 1, "batch": _START, "eval_batch": _START}.get(
        knob.kind, knob.least
    )


def fit(
    request: FitRequest, measure: Measure, between: Between = lambda *_: None, least: Least = lambda *_: None
) -> FitAnswer:
    """Raises what ``measure`` raises, NotSized only where nothing of a setting was sized, and OomproofError where the question has no
    answer."""
    start = start_plan(request)
    order = sacrifice_order(request.template.knobs, request.order)
    answer = FitAnswer(request, start, [])
    for plan in _given_up(order, start):
        scenario = Scenario(plan)
        answer.scenarios.append(scenario)
        _search(request, scenario, measure, least)
        _check_device(scenario.points[0], request.capacity)
        _make_tiers(request, scenario, between)
        if scenario.maximum.plan is not None:
            break
    _check_effect(answer)
    if not answer.fits:
        answer.short_by, answer.short_of = _shortage(answer)
    answer.notes += _notes_of_runs(answer.chosen.points)
    return answer


def _notes_of_runs(points: Sequence[Point]) -> Iterator[str]:
    """Each once; what was held back differs from run to run by a time in a file's name."""
    held_back = False
    for note in dict.fromkeys(note for point in points for note in point.notes):
        if not note.startswith(HELD_BACK) or not held_back:
            yield note
        held_back = held_back or note.startswith(HELD_BACK)


def _make_tiers(request: FitRequest, scenario: Scenario, between: Between) -> None:
    """A batch that no run had is looked at once more, tensor by tensor: on a line through two sums it may be some per cent off."""
    runs = list(scenario.points)
    for _ in range(_ROUNDS):
        scenario.tiers = tiers(scenario.points, _allowed(request, scenario), request.capacity)
        chosen = {tier.predicted.batch for tier in scenario.tiers if tier.predicted is not None}
        wanted = chosen - {point.batch for point in scenario.points}
        near = {batch: neighbours(runs, batch) for batch in sorted(wanted)} if len(runs) > 1 else {}
        found = [between(pair[0], pair[1], batch) for batch, pair in near.items() if len(pair) == 2]
        added = [point for point in found if point is not None]
        scenario.points += added
        if not added:
            return


def _given_up(order: Sequence[Knob], start: Plan) -> Iterator[Plan]:
    """The preferred setting, then one thing after the other given up for good. Batch and workers are searched within each."""
    yield start
    plan = start
    for knob in order:
        if knob.kind in _WITH_BATCH:
            continue
        for value in knob.smaller(plan.get(knob.name) or ""):
            plan = plan.with_values(**{knob.name: value})
            yield plan


def _search(request: FitRequest, scenario: Scenario, measure: Measure, least: Least) -> None:
    """Fills in ``points``: the largest batch that fits among them, where there is one, and some around it."""
    template = request.template
    seen: dict[int, Point] = {}

    def run(batch: int) -> Point:
        if batch not in seen:
            try:
                seen[batch] = measure(_measured_plan(request, scenario.plan, batch))
            except NotSized as unsized:
                if not seen:
                    raise
                scenario.unsized[batch] = unsized.why
                raise
            scenario.points.append(seen[batch])
        return seen[batch]

    def need(batch: int) -> int:
        """By each tensor of two runs; where that cannot be, on the chord between them, and beyond them a little further."""
        if batch not in seen and len(seen) > 1:
            two = neighbours(list(seen.values()), batch)
            if (told := least(two[0], two[1], batch)) is not None:
                return told
        if batch in seen or not _is_near(sorted(seen), batch):
            return _need(run(batch), template)
        near = predict(list(seen.values()), batch, _fewest(template))
        return near.least if near.least is not None else near.host.expected

    if template.knob("batch") is None:
        run(0)
        return
    candidates = _candidates(request, scenario.plan, None)
    start = _nearest(candidates, number(template, scenario.plan, "batch") or _START)
    first = run(start)
    candidates = _candidates(request, scenario.plan, first.samples)
    capacity = usable_at_most(request.capacity.gpu or 0) if first.on_card else request.capacity.ram
    best = 0
    for _ in range(_ROUNDS):
        left = _left(candidates, sorted(seen), scenario.unsized)
        try:
            batch = largest_batch(need, capacity, start=start, candidates=left).batch
            if batch in seen or not batch:
                return
            if _need(run(batch), template) <= capacity:
                if batch - best <= max(1, _CLOSE * batch) and best:
                    return
                best = max(best, batch)
        except NotSized:
            continue  # run() wrote down why


def _left(candidates: Sequence[int], seen: Sequence[int], unsized: Mapping[int, str]) -> Sequence[int]:
    """Without what could not be sized, and what lies beyond it: there the next try is well on this side, or there is none."""
    if not unsized:
        return candidates
    again = len(unsized) < _UNSIZED
    above = min((batch for batch in unsized if batch > seen[-1]), default=None)
    below = max((batch for batch in unsized if batch < seen[0]), default=None)
    most = candidates[-1] if above is None else isqrt(seen[-1] * above) if again else seen[-1]
    least = candidates[0] if below is None else isqrt(seen[0] * below) + 1 if again else seen[0]
    return [size for size in candidates if least <= size <= most and size not in unsized]


def _is_near(seen: Sequence[int], batch: int) -> bool:
    return len(seen) > 1 and seen[0] <= batch <= _FURTHER * seen[-1]


def _need(point: Point, template: Template) -> int:
    if point.on_card:
        return point.card[NATIVE].least
    return predict([point], point.batch, _fewest(template)).host.expected


def _fewest(template: Template) -> int | None:
    knob = template.knob("workers")
    return None if knob is None else max(knob.least, min(FEW_WORKERS, knob.first or FEW_WORKERS))


def _candidates(request: FitRequest, plan: Plan, samples: int | None) -> Sequence[int]:
    """Batches that may be taken, ascending; those of an effective batch to keep are its divisors. ``samples``: of the data set."""
    template = request.template
    micro = template.knob("batch")
    assert micro is not None
    most = min(request.most or MOST, micro.most or MOST, max(1, samples or MOST))
    if request.effective is not None:
        most = min(most, request.effective)
    if micro.values or (request.effective is not None and template.knob("accum") is not None):
        plans = batches_at_most(template, plan, most, request.effective)
        sizes = sorted(int(candidate.get(micro.name) or 0) for candidate in plans)
    else:
        return range(min(micro.least, most), most + 1)
    if not sizes:
        raise OomproofError(
            f"no batch up to {most} is allowed", "give other values, or a larger --most", USAGE
        )
    return sizes


def _nearest(candidates: Sequence[int], wanted: int) -> int:
    below = [size for size in candidates if size <= wanted] if not isinstance(candidates, range) else None
    if below is None:
        return max(candidates[0], min(wanted, candidates[-1]))
    return below[-1] if below else candidates[0]


def _measured_plan(request: FitRequest, plan: Plan, batch: int) -> Plan:
    """With few workers: sixteen may not fit, which is what is asked. Gradients that wait for the next pass are seen with two of them."""
    template = request.template
    changed = {}
    if (micro := template.knob("batch")) is not None:
        changed[micro.name] = str(batch)
    if (accum := template.knob("accum")) is not None:
        passes = request.effective // batch if request.effective and batch else int(plan.get(accum.name) or 1)
        changed[accum.name] = str(_allowed_number(accum, max(1, min(2, passes))))
    if (workers := template.knob("workers")) is not None:
        wanted = int(plan.get(workers.name) or 0)
        changed[workers.name] = str(_allowed_number(workers, min(wanted, FEW_WORKERS)))
    return plan.with_values(**changed)


def _allowed_number(knob: Knob, wanted: int) -> int:
    """That, or the nearest of its values that is not less."""
    values = sorted(int(value) for value in knob.values)
    return (
        next((value for value in values if value >= wanted), values[-1])
        if values
        else max(knob.least, wanted)
    )


def _allowed(request: FitRequest, scenario: Scenario) -> Allowed:
    sized = [point.batch for point in scenario.points]
    most, least = max(sized, default=1), min(sized, default=1)
    if all(batch > least for batch in scenario.unsized):
        least = 1  # the line goes on below
    return Allowed(
        request.template, scenario.plan, request.effective, most, least, frozenset(scenario.unsized)
    )


def _check_device(point: Point, capacity: Capacity) -> None:
    if point.on_card and capacity.gpu is None:
        raise OomproofError(
            "the script trains on a GPU, and there is none here",
            "describe one: --gpu 24G; or let it train on the CPU: --gpu none",
            USAGE,
        )


def _check_effect(answer: FitAnswer) -> None:
    """A placeholder that the script does not obey makes every plan the same. Raises OomproofError."""
    template = answer.request.template
    points = sorted(answer.chosen.points, key=lambda point: point.batch)
    micro = template.knob("batch")
    if micro is not None and len(points) > 1 and _is_same(points[0], points[-1]):
        told = f"{micro.name} never changes the memory: {points[0].batch} takes what {points[-1].batch} takes"
        # a card too small for CUDA itself is no fault of the placeholder
        if points[0].on_card and answer.fits:
            raise OomproofError(told, f"is {{{micro.name}}} the argument that sets the batch?", USAGE)
        answer.notes.append(told)
    elif micro is not None and (flat := _flat(points)) is not None:
        answer.notes.append(
            f"{flat[1].batch} takes what {flat[0].batch} takes: either the data has no more samples, or {{{micro.name}}} is not the "
            "argument that sets the batch"
        )
    for before, after in pairwise(answer.scenarios):
        changed = [name for name, value in after.plan.values if before.plan.get(name) != value]
        shared = {point.batch for point in before.points} & {point.batch for point in after.points}
        pairs = [(_of(before.points, batch), _of(after.points, batch)) for batch in sorted(shared)]
        if pairs and all(_is_same(left, right) for left, right in pairs):
            answer.notes.append(f"{', '.join(changed)} changed nothing: does the script use it?")


def _flat(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """Two runs of far different batches that took the same, the largest among them; ``points`` by their batch."""
    runs = [point for point in points if not point.scaled and point.on_card]
    small = next(
        (point for point in runs if point.batch * _FLAT <= runs[-1].batch and _is_same(point, runs[-1])), None
    )
    return (small, runs[-1]) if small is not None else None


def _of(points: Sequence[Point], batch: int) -> Point:
    return next(point for point in points if point.batch == batch)


def _is_same(left: Point, right: Point) -> bool:
    if left.on_card != right.on_card:
        return False
    if left.on_card:  # an evaluation may be larger than any batch of the training
        pairs = [(left.card[NATIVE].least, right.card[NATIVE].least)]
        pairs += [(size, right.phases[name]) for name, size in left.phases.items() if name in right.phases]
        return all(abs(first - second) <= _SAME_ON_CARD for first, second in pairs)
    first, second = left.host.estimate().expected, right.host.estimate().expected
    return abs(first - second) <= _SAME * max(first, second)


def _shortage(answer: FitAnswer) -> tuple[int, str]:
    """By how much the smallest plan is too large, and of what."""
    request, point = answer.request, min(answer.chosen.points, key=lambda point: point.batch)
    knob = request.template.knob("workers")
    points = answer.chosen.points
    ahead = request.template.knob("prefetch")
    smallest = predict(
        points,
        point.batch,
        fewest_workers(points, knob) if knob is not None else None,
        prefetch=ahead.least if ahead is not None else None,
    )
    card = request.capacity.gpu
    if smallest.least is not None and card is not None and smallest.least > usable_at_most(card):
        return smallest.least - usable_at_most(card), "the card"
    if request.capacity.shm is not None and smallest.shared > request.capacity.shm:
        return smallest.shared - request.capacity.shm, "/dev/shm"
    return max(0, smallest.host.expected - request.capacity.ram), "RAM"
