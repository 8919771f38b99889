"""Reads what the virtual GPU wrote down and makes an estimate of it."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from oomproof.leaf.allocator_memory import NEW_NAME, OLD_NAME, asks_expandable
from oomproof.records import dataclass, field, replace
from oomproof.sizing import card_constants, log_variants
from oomproof.sizing.caching_allocator import CachingAllocator
from oomproof.sizing.card_constants import ANY_CARD, Card, Constant
from oomproof.sizing.estimate import Estimate, Phase
from oomproof.sizing.log_variants import continued, reserved_in_other_orders
from oomproof.sizing.virtual_gpu import child_results
from oomproof.sizing.virtual_gpu.child_results import VirtualResult
from oomproof.sizing.virtual_gpu.step_limits import DRAWN, FIXED
from oomproof.sizing.watched_child import regular_only
from oomproof.units import format_size

# of a storage without a name: born in forward, backward, optimizer
_BIRTHS = ("activations", "temporary", "temporary")
PARTS = (
    "weights",
    "gradients",
    "optimizer state",
    "activations",
    "temporary",
    "gradient buckets",
    "workspaces",
)
__all__ = ["ANY_CARD", "VirtualRun", "gpu_estimate", "read", "replay"]
PHASES = ("train", "eval", "generate")
_OTHER_BACKEND = "backend:cudaMallocAsync"
_NO_CARD_HAS = 1 << 40  # bytes
_NAMED = 4  # operations in a note


@dataclass
class VirtualRun:
    """``events``: number of a storage (negative: given back) and bytes, in order; ``births``: the
    part of a step in which each was made."""

    result: VirtualResult
    events: list[tuple[int, int]]
    births: bytes
    host_events: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Replay:
    """Bytes: the allocator's two peaks, the parts at the peak of live tensors, and the peak of each phase. ``more``: what may be reserved beyond
    that, by reason."""

    allocated: int
    reserved: int
    parts: Mapping[str, int]
    phases: Mapping[str, int]
    more: Mapping[str, int] = field(default_factory=dict)


def by_values(run: VirtualRun) -> str:
    """A sentence where the log cannot be right: sizes that are values of the card, multiplied with one another."""
    live = peak = 0
    for number, size in run.events:
        live += size if number > 0 else -size
        peak = max(peak, live)
    if peak <= _NO_CARD_HAS or not run.result.widened:
        return ""
    what = ", ".join(run.result.widened)
    return f"how large its tensors are depends on values of the GPU ({what}), which are not known without one; run it there with: oomproof run"


def read(folder: str) -> VirtualRun | None:
    """Of the process that had most on its card: launchers and helpers import torch as well."""
    results = child_results.read(folder, regular_only)
    return max(
        (load(path, VirtualResult.from_json(result)) for path, result in results.items()),
        key=lambda run: (bool(run.result.refused), run.result.steps, len(run.events)),
        default=None,
    )


def load(path: str, result: VirtualResult) -> VirtualRun:
    run = VirtualRun(result, _events(path + ".gpu"), _bytes(path + ".births"), _events(path + ".host"))
    return completed(run)


def completed(run: VirtualRun) -> VirtualRun:
    """The log as a card's allocator would have seen it: what the virtual run does otherwise, and what it left out."""
    return with_generations(with_sums_in_place(run))


def with_sums_in_place(run: VirtualRun) -> VirtualRun:
    """A sum of two gradients whose operands end with it: autograd adds the second to the first, but for a parameter's own gradient
    (a weight tied to the embedding; traces of an H200). As many events as before."""
    kinds = run.result.kinds
    sums = {
        number: operands for number, operands in run.result.sums.items() if kinds.get(number) != "gradients"
    }
    memory: dict[int, int] = {}  # number of a sum → whose memory it has
    events = run.events
    index = 0
    while index < len(events):
        number, size = events[index]
        operands = sums.get(number)
        ended = [-freed for freed, _ in events[index + 1 : index + 3]]
        if number < 0:
            events[index] = (-memory.pop(-number, -number), size)
        elif operands is not None and sorted(ended) == sorted(operands):
            kept, second = (memory.pop(operand, operand) for operand in operands)
            memory[number] = kept
            events[index : index + 3] = [(number, 0), (-number, 0), (-second, size)]
            index += 2
        index += 1
    return run


def with_generations(run: VirtualRun) -> VirtualRun:
    """Generations that were cut short, as long as they would have been; later ones first, so that indexes stay right."""
    for generation in reversed(run.result.generations):
        cuts, left = generation.cuts, generation.left
        longer = continued(run.events, cuts, left, len(run.births) + 1)
        if longer is None:
            run.result.notes.append(
                f"generate was seen for its first tokens only; {left} more are not counted"
            )
            continue
        made = len(longer) - len(run.events)
        told = f"generate: the last {left} tokens were calculated from the first"
        if told not in run.result.notes:
            run.result.notes.append(told)
        run.result.step_ends = [at + made if at >= cuts[-1] else at for at in run.result.step_ends]
        run.result.marks = [
            (at + 2 * made if at // 2 >= cuts[-1] else at, name) for at, name in run.result.marks
        ]
        highest = max((number for number, _ in longer), default=0)
        run.births += bytes(max(0, highest - len(run.births)))
        run.events = longer
    return run


def _events(path: str) -> list[tuple[int, int]]:
    flat = array("q", _bytes(path))
    return list(zip(flat[::2], flat[1::2], strict=True))


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb", opener=regular_only) as file:
            return file.read()
    except OSError:
        return b""


def tight(run: VirtualRun, total: int, card: Card = ANY_CARD) -> str:
    """On a card of that size: a sentence where it only fits since cached segments are given back, else nothing."""
    allocator = CachingAllocator(capacity=total - context_of(run, card).usual)
    allocator.replay(run.events)
    if not allocator.retries or allocator.failures:
        return ""
    return (
        f"fits only since the allocator gives cached segments back {allocator.retries} times, which is slow"
    )


def replay(run: VirtualRun, expandable: bool = False) -> Replay:
    allocator = CachingAllocator(expandable)
    marks = phase_starts(run)
    phases: dict[str, int] = {}
    phase, following = "load", 0
    peak, peak_at = 0, 0
    ends, reserved = set(run.result.step_ends), []
    for index, (name, size) in enumerate(run.events):
        if index in ends:
            reserved.append(allocator.reserved)
        while following < len(marks) and marks[following][0] <= index:
            phase = marks[following][1]
            following += 1
        if name <= 0:
            allocator.free(-name) if name else allocator.release_cached()
            continue
        before = allocator.reserved
        allocator.malloc(name, size)
        # a phase is told by what it makes the allocator reserve; where that is there already, by what lives
        most = allocator.reserved if allocator.reserved > before else allocator.allocated
        phases[phase] = max(phases.get(phase, 0), most)
        if allocator.allocated > peak:
            peak, peak_at = allocator.allocated, index
    kept = run.result.kept
    if kept and "eval" in phases:  # outputs of the batches that were left out
        phases["eval"] += kept
    grown = max(0, phases.get("eval", 0) - allocator.peak_reserved)
    parts = parts_at(run, run.events[: peak_at + 1])
    parts["outputs kept by eval"] = grown
    beside = log_variants.reserved_beside_others(run.events, expandable)
    usual = log_variants.usual(allocator.peak_reserved, beside)
    more = {
        UNFAMILIAR: max(0, _unfamiliar(run, expandable) - usual),
        UNSTEADY: max([allocator.peak_reserved, *beside]) - usual,
    }
    if many := run.result.many_shapes:
        seen, batches, order = many.seen, many.batches, many.order
        most = usual + log_variants.beyond(reserved, seen, batches)
        if order != FIXED:
            start = _training_starts(marks)
            others = reserved_in_other_orders(
                run.events, run.result.step_ends, seen, batches, expandable, start
            )
            most = max([most, *others])
            # the card draws another than we did; ours has the largest batch last
            if order == DRAWN and others:
                usual = max(usual, int(median(others)))
        more[EPOCH] = max(0, most - usual)
    return Replay(peak, usual + grown, parts, phases, more)


def phase_starts(run: VirtualRun) -> list[tuple[int, str]]:
    """Events before each phase, and its name."""
    return sorted((at // 2, name) for at, name in run.result.marks)


def _training_starts(marks: list[tuple[int, str]]) -> int:
    return next((at for at, phase in marks if phase == "train"), 0)


UNFAMILIAR = "operations whose own memory on a card is not known"
EPOCH = "batches of further shapes"
UNSTEADY = "large blocks that may not find their cached one"


def _unfamiliar(run: VirtualRun, expandable: bool) -> int:
    """What is reserved where each operation that nobody knows takes as much again as it reads and makes."""
    possible = run.result.possible
    if not possible:
        return 0
    allocator = CachingAllocator(expandable)
    allocator.replay([(number, possible.get(number, size)) for number, size in run.events])
    return allocator.peak_reserved


def host_parts(run: VirtualRun) -> dict[str, int]:
    """Of a model that stays on the host: its parts when they took most."""
    live = peak = peak_at = 0
    for index, (name, size) in enumerate(run.host_events):
        live += size if name > 0 else -size
        if live > peak:
            peak, peak_at = live, index
    return {name: size for name, size in parts_at(run, run.host_events[: peak_at + 1]).items() if size}


def host_peak_of_small(run: VirtualRun, below: int) -> int:
    """Of activations and temporaries on the host that are smaller than that: the most bytes that lived at once."""
    kinds = run.result.kinds
    live = peak = 0
    for name, size in run.host_events:
        if size < below and abs(name) not in kinds:
            live += size if name > 0 else -size
            peak = max(peak, live)
    return peak


def host_left_in_heap(run: VirtualRun, below: int) -> int:
    """What blocks smaller than that add to the most that lives at once, as malloc keeps the room of those that were freed while
    it maps larger ones: activations that the optimizer's step finds gone."""
    live = peak = small = most_small = together = 0
    for name, size in run.host_events:
        change = size if name > 0 else -size
        live += change
        if size < below:
            small += change
            most_small = max(most_small, small)
        peak = max(peak, live)
        together = max(together, live - small + most_small)
    return together - peak


def host_phases(run: VirtualRun, expected: int) -> tuple[Phase, ...]:
    """Of a model that stays on the host: what each phase takes, ``expected`` being the largest."""
    marks = sorted((at // 2, name) for at, name in run.result.host_marks)
    peaks: dict[str, int] = {}
    live = following = 0
    phase = "load"
    for index, (name, size) in enumerate(run.host_events):
        while following < len(marks) and marks[following][0] <= index:
            phase = marks[following][1]
            following += 1
            peaks[phase] = max(peaks.get(phase, 0), live)  # what it finds there
        live += size if name > 0 else -size
        peaks[phase] = max(peaks.get(phase, 0), live)
    highest = max(peaks.values(), default=0)
    return _phases(run, lambda name: (None, expected - highest + peaks[name] if name in peaks else None))


def parts_at(run: VirtualRun, events: list[tuple[int, int]]) -> dict[str, int]:
    """What was live after those events, by kind."""
    live: dict[int, int] = {}
    for name, size in events:
        if name > 0:
            live[name] = size
        else:
            live.pop(-name, None)
    kinds = run.result.kinds
    parts = dict.fromkeys(PARTS, 0)
    for name, size in live.items():
        kind = kinds.get(name) or _BIRTHS[run.births[name - 1]]
        parts[kind] += size
    return parts


def asked_expandable(run: VirtualRun | None = None) -> bool:
    """Of the allocator, by what the script had at its end, else by this process's environment, which the script gets too."""
    return any(map(asks_expandable, _allocator_settings(run)))


def _allocator_settings(run: VirtualRun | None) -> list[str]:
    told = run.result.allocator if run is not None else None
    return told if told is not None else [os.environ.get(name, "") for name in (NEW_NAME, OLD_NAME)]


def by_allocator(run: VirtualRun) -> str:
    """A sentence where another allocator than the one that is simulated is asked for."""
    if not any(_OTHER_BACKEND in settings.replace(" ", "") for settings in _allocator_settings(run)):
        return ""
    return f"what cudaMallocAsync keeps of freed memory is the driver's affair and not known here; take {_OTHER_BACKEND} out of {OLD_NAME} to size it with PyTorch's own allocator"


def gpu_estimate(
    run: VirtualRun, expandable: bool = False, card: Card = ANY_CARD
) -> tuple[Estimate, tuple[Phase, ...]]:
    context = context_of(run, card)
    found = replay(run, expandable)
    searched = run.result.benchmark and _guessed_convolutions(run.result)
    searching = int(found.reserved * card_constants.BENCHMARK_SHARE) if searched else 0
    shown = {name: size for name, size in found.parts.items() if size}
    shown["allocator waste"] = max(0, found.reserved - sum(shown.values()))
    shown["workspaces"] = shown.get("workspaces", 0) + searching
    shown["context and libraries"] = context.usual
    expected = context.usual + found.reserved + searching
    spread = card_constants.ALLOCATOR_SPREAD
    low = context.low + min(found.allocated, int(found.reserved * (1 - spread)))
    wide = int(found.reserved * (spread + sum(widths(run.result).values())))
    if searched:
        wide = max(wide, card_constants.BENCHMARK_LEAST)
    high = context.high + searching + found.reserved + wide + sum(found.more.values())

    def sizes(name: str) -> tuple[int | None, None]:
        peak = found.phases.get(name)
        return None if peak is None else context.usual + min(peak, found.reserved), None

    return Estimate(low, expected, high, shown), _phases(run, sizes)


_WORTH_IT = 0.9  # of the upper end


def growing_note(run: VirtualRun, gpu: Estimate, card: Card = ANY_CARD) -> str:
    """Of batches of many shapes: how much less they could take with segments that grow."""
    if not run.result.many_shapes:
        return ""
    growing = gpu_estimate(run, True, card)[0].high
    if growing > _WORTH_IT * gpu.high:
        return ""
    return (
        f"blocks of batches of many shapes fit badly into one another; with {OLD_NAME}=expandable_segments:True it takes at most "
        f"{format_size(growing)}"
    )


_MATRICES = ("mm.default", "attention", "linalg")


def context_of(run: VirtualRun, card: Card) -> Constant:
    """Less where no matrix is multiplied, more where one is taken apart: those libraries are loaded when they are first used."""
    solvers = run.result.solvers
    context = card.context
    if solvers:
        eigenvalues = any(part in name for name in solvers for part in ("eig", "svd"))
        most = card_constants.SOLVER_OF_EIGENVALUES
        usual = context.usual + (most if eigenvalues else card_constants.SOLVER)
        return replace(context, usual=usual, high=context.high + most)
    operations = {str(signature.get("op")) for signature in run.result.signatures}
    multiplies = run.result.matrices or any(part in name for name in operations for part in _MATRICES)
    if not operations or run.result.recurrent or multiplies:
        return context
    low, usual, high = (max(0, size - card.matrices) for size in (context.low, context.usual, context.high))
    return replace(context, low=low, usual=usual, high=high)


def widths(result: VirtualResult) -> dict[str, float]:
    """Reasons for a higher upper end, each with its share of what is reserved."""
    reasons = {}
    if _guessed_convolutions(result):
        if result.benchmark:
            reasons["cudnn.benchmark tries kernels whose workspaces are not known"] = (
                card_constants.BENCHMARK_SPREAD
            )
        else:
            reasons["workspaces of convolutions are an estimate"] = card_constants.CONVOLUTION_SPREAD
    if result.recurrent:
        reasons["what cuDNN's recurrent layers keep is an estimate"] = card_constants.RECURRENT_SPREAD
    if result.scalars:
        reasons["the script reads values of the GPU"] = card_constants.UNKNOWN_VALUES
    return reasons


# 36 GB for operands of 131 MiB, on an H200; PyTorch asks for half as much until it gets it, and gives it back after the search
SEARCH = "while cudnn.benchmark tries kernels it may take gigabytes more for a moment, where the GPU has them free; the job does not need them"


def widening_notes(result: VirtualResult, on_card: bool = True) -> Iterator[str]:
    """What makes the card's interval wider, or a figure larger than it may be."""
    for reason, share in widths(result).items() if on_card else ():
        yield f"high is {share:.0%} higher: {reason}"
    if on_card and result.benchmark and _guessed_convolutions(result):
        yield SEARCH
    if on_card and result.unfamiliar:
        names = sorted({str(name).removeprefix("aten.").split(".")[0] for name in result.unfamiliar})
        named = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        yield f"high allows for {UNFAMILIAR}: {named}"
    if many := result.many_shapes:
        of = f"{many.batches} of an epoch" if many.batches is not None else "a stream"
        yield f"batches differ in shape, and the allocator's cache grows with each new one: {many.seen} of {of} were followed"
    for what, count in result.widened.items():
        yield f"{what} ({count}×): counted as if every element were taken"


def _guessed_convolutions(result: VirtualResult) -> int:
    """Kinds of convolutions whose workspaces no card's file has; without such a file, all of them."""
    unmeasured = result.unmeasured_convolutions
    return result.convolutions if unmeasured is None else unmeasured


def _phases(run: VirtualRun, sizes: Callable[[str], tuple[int | None, int | None]]) -> tuple[Phase, ...]:
    """``sizes``: what a phase takes on the card and on the host."""
    reached = run.result.phases
    return tuple(
        Phase(name, *sizes(name), name in reached)
        for name in PHASES
        if name != "generate" or name in reached or run.result.generates
    )
