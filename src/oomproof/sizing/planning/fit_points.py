"""What a training takes as a function of its batch: points from virtual runs, lines between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from oomproof.records import dataclass
from oomproof.sizing.card_constants import Card
from oomproof.sizing.estimate import Estimate
from oomproof.sizing.host_figures import HostFigures
from oomproof.sizing.quantized_weights import KINDS
from oomproof.sizing.virtual_gpu.child_results import BatchFacts
from oomproof.sizing.virtual_run import VirtualRun

NATIVE, EXPANDABLE, RELEASED = "native", "expandable", "released"  # how the allocator keeps what is freed
QUANTIZED = tuple(KINDS)  # and how frozen weights are kept: "nf4", "int8"


@dataclass(frozen=True, slots=True)
class CardNeed:
    """Bytes on a card. ``least``: with which the allocations just succeed, cached segments being given back on the way."""

    estimate: Estimate
    least: int


@dataclass(frozen=True, slots=True)
class Source:
    """The log behind a point."""

    run: VirtualRun
    card: Card


@dataclass(frozen=True, slots=True)
class Point:
    """One virtual run. ``card``: by how the allocator keeps what is freed; empty where the script uses no card."""

    batch: int
    card: Mapping[str, CardNeed]
    host: HostFigures
    phases: Mapping[str, int]  # those reached, bytes of the card, or of RAM where the script uses none
    facts: BatchFacts
    notes: tuple[str, ...] = ()
    peak: str = ""
    samples: int | None = None  # of the data set, where its length is known
    source: Source | None = None
    scaled: bool = False  # no run of its own, but what two others tell of each tensor
    varies: bool = False  # samples of its loaders differ in size
    persistent: bool = False  # workers outlive an epoch: PyTorch refuses that where there are none

    @property
    def on_card(self) -> bool:
        return bool(self.card)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bytes that a plan takes. ``phase``: which sets the peak. ``shared``: in /dev/shm."""

    batch: int
    workers: int | None
    gpu: Estimate | None
    least: int | None
    host: Estimate
    shared: int
    phase: str
    measured: bool  # by a virtual run of this very batch, not by a line
    varies: bool = False  # not measured, and samples differ in size


def predict(
    points: Sequence[Point], batch: int, workers: int | None, way: str = NATIVE, prefetch: int | None = None
) -> Predicted:
    """On the line through the two runs next to that batch. ``workers``, ``prefetch``: None for as many as the script has by itself."""
    near = neighbours(points, batch)

    def line(value: Callable[[Point], float]) -> int:
        return _at(near, batch, value)

    hosts = {point.batch: _host(point, workers, prefetch) for point in near}
    gpu = least = None
    if all(point.on_card for point in near):
        gpu = _estimate(lambda name: line(lambda point: getattr(point.card[way].estimate, name)))
        least = line(lambda point: point.card[way].least)
    host = _estimate(lambda name: line(lambda point: getattr(hosts[point.batch].estimate(), name)))
    known = [name for name in near[0].phases if all(name in point.phases for point in near)]
    phases = {name: line(lambda point, name=name: point.phases[name]) for name in known}  # type: ignore[misc]
    measured = any(point.batch == batch and not point.scaled for point in points)
    return Predicted(
        batch,
        workers,
        gpu,
        least,
        host,
        line(lambda point: hosts[point.batch].shared),
        max(phases, key=lambda name: phases[name], default=""),
        measured,
        not measured and any(point.varies for point in near),
    )


def _estimate(of: Callable[[str], int]) -> Estimate:
    low, expected, high = of("low"), of("expected"), of("high")
    return Estimate(min(low, expected), expected, max(high, expected), {})


def _host(point: Point, workers: int | None, prefetch: int | None) -> HostFigures:
    if not point.host.loaders or (workers is None and prefetch is None):
        return point.host
    own = max(loader.workers for loader in point.host.loaders)
    return point.host.with_workers(own if workers is None else workers, prefetch)


def neighbours(points: Sequence[Point], batch: int) -> Sequence[Point]:
    """The two next to it: what lies beyond the outermost continues their line."""
    ordered = sorted(points, key=lambda point: point.batch)
    exact = [point for point in ordered if point.batch == batch]
    if exact or len(ordered) == 1:
        return exact or ordered
    above = next((at for at, point in enumerate(ordered) if point.batch > batch), len(ordered))
    begin = min(max(0, above - 1), len(ordered) - 2)
    return ordered[begin : begin + 2]


def _at(near: Sequence[Point], batch: int, value: Callable[[Point], float]) -> int:
    first = near[0]
    if len(near) == 1:
        return int(value(first))
    second = near[1]
    slope = (value(second) - value(first)) / (second.batch - first.batch)
    return max(0, int(value(first) + slope * (batch - first.batch)))


def split_notes(points: Sequence[Point], batch: int, effective: int) -> Iterator[str]:
    """Of a plan that takes ``effective`` samples in pieces of ``batch``."""
    if batch >= effective:
        return
    # the others have the facts of a run with another batch
    points = [point for point in points if not point.scaled]
    if norms := max((point.facts.norms for point in points), default=0):
        yield norms_note(norms, batch, effective)
    if _is_contrastive(points):
        yield comparing_note(batch, effective)
    if _is_token_mean(points):
        yield (
            "the loss is a mean over tokens: with sequences of unequal length the mean of the pieces is another than that of the whole "
            "(transformers' Trainer weighs them since 4.46; in a loop of your own divide by the tokens of all pieces)"
        )


def norms_note(norms: int, batch: int, effective: int) -> str:
    layers = f"{norms} BatchNorm layers take" if norms > 1 else "a BatchNorm layer takes"
    return f"{layers} mean and variance of {batch} samples instead of {effective}: accumulation does not make up for that"


def comparing_note(batch: int, effective: int) -> str:
    return (
        f"the loss compares the samples of a batch with each other ({batch} instead of {effective}): "
        "accumulation does not make up for that"
    )


def _is_contrastive(points: Sequence[Point]) -> bool:
    """A product as large as the batch in both directions, at two sizes of it: not a layer that happens to have that size."""
    sizes = {point.batch for point in points if point.batch > 1}
    return len(sizes) > 1 and all(point.batch in point.facts.squares for point in points if point.batch > 1)


def _is_token_mean(points: Sequence[Point]) -> bool:
    """Rows of the loss are several times the batch."""
    sizes = [point for point in points if point.batch]
    return bool(sizes) and all(
        any(rows > point.batch and rows % point.batch == 0 for rows in point.facts.rows) for point in sizes
    )
