"""The fitting itself: batches measured one after the other, on all ranks alike, until the largest that fits is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from oomproof.errors import OomproofError
from oomproof.records import dataclass, replace
from oomproof.sizing.fitting import fitted_batch
from oomproof.sizing.fitting.fitted_batch import Asked, Batch, remembered
from oomproof.sizing.fitting.memory_meter import Meter
from oomproof.sizing.fitting.probe_plan import START, Next, Probe, next_batch
from oomproof.sizing.fitting.rank_agreement import Ranks
from oomproof.sizing.fitting.released_memory import quick_collections
from oomproof.sizing.fitting.split_notes import Seen, split_notes
from oomproof.sizing.fitting.training_probe import StateLoaded, probed
from oomproof.sizing.virtual_run import asked_expandable
from oomproof.units import parse_size

Around = Callable[[], AbstractContextManager[Callable[[], None]]]
_NO_PROBE = 1 << 40
# optimizer steps: from then on a lack of memory is passed on, for starting over would throw work away
SETTLED = 50


@dataclass(frozen=True, slots=True)
class FitSettings:
    """What a user asks for; sizes in bytes."""

    effective: int | None = None
    most: int | None = None
    start: int = START
    capacity: int | None = None
    settled: int = SETTLED
    tell: fitted_batch.Tell = fitted_batch.to_stderr


def settings_of(
    effective: int | None = None,
    most: int | None = None,
    start: int = START,
    capacity: str | int | None = None,
    settled: int = SETTLED,
    *,
    quiet: bool,
) -> FitSettings:
    """As the arguments of the three ways to ask for a batch have them."""
    tell = fitted_batch.silent if quiet else fitted_batch.to_stderr
    return FitSettings(effective, most, start, bytes_of(capacity), settled, tell)


def bytes_of(size: str | int | None) -> int | None:
    return parse_size(size) if isinstance(size, str) else size


class MeasuredFit:
    """``run(batch)``: the training, or steps without end. ``around``: entered before the first is measured; yields what puts back what a
    run changes beyond itself. ``confirm``: the answer is measured as well, for whoever cannot start over."""

    def __init__(
        self,
        run: Callable[[Batch], Any],
        settings: FitSettings,
        asked: Asked,
        ranks: Ranks,
        around: Around,
        *,
        confirm: bool = False,
    ) -> None:
        self.run, self.settings, self.asked, self.ranks = run, settings, asked, ranks
        self.around, self.confirm = around, confirm
        self.meter = Meter()
        self.probes: list[Probe] = []
        self.seen = Seen()
        self.has_state = False  # a checkpoint's batch was considered: it is not asked again

    def tell(self, text: str) -> None:
        if self.ranks.rank == 0:
            self.settings.tell(text)

    def fitted(self, state: Mapping[str, Any] | None = None) -> Batch:
        """``state``: of a checkpoint."""
        self.has_state = state is not None
        known = self._remembered(state) if state is not None else None
        return known if known is not None else self._measured()

    def _remembered(self, state: Mapping[str, Any]) -> Batch | None:
        capacity = self.settings.capacity or self.meter.capacity() or None
        size, note = remembered(state, self.asked, capacity)
        size = self.ranks.agree(size or 0)
        if note:
            self.tell(note)
        if not size:
            return None
        need = state.get("need")
        self.tell(f"batch {size}, as in the checkpoint")
        return self.batch(size, need=need if isinstance(need, int) else None, capacity=capacity)

    def _measured(self) -> Batch:
        with quick_collections(), self.around() as back:
            return self._chosen(self._answer(back))

    def _answer(self, back: Callable[[], None]) -> Next:
        while not (step := self._next()).is_answer:
            try:
                probe, seen = probed(self.run, self.asked.probe(step.batch, self._loaded), self.meter)
            finally:
                back()
            self.probes.append(probe)
            if seen.evaluates_first and not self.seen.evaluates_first:
                self.tell(fitted_batch.EVALUATES_FIRST)
            self.seen = self.seen.joined(seen)
            if probe.cause is not None:
                self.tell(f"out of memory while a batch of {step.batch} was measured: a smaller one is next")
        return step

    def _chosen(self, step: Next) -> Batch:
        self.seen = replace(self.seen, squares=step.squares)
        readings = {probe.batch: probe.reading for probe in self.probes if probe.reading is not None}
        if not readings:
            return self.batch(step.batch)
        measured = list(readings)
        capacity = self.settings.capacity or readings[measured[-1]].capacity
        notes = (fitted_batch.TIGHT,) if step.tight else ()
        batch = self.batch(step.batch, most=step.most, need=step.need, capacity=capacity, notes=notes)
        self.tell(fitted_batch.chosen(batch, measured))
        for note in batch.notes:
            self.tell(f"note: {note}")
        return batch

    def _next(self) -> Next:
        """The same on all ranks: a rank that has yet to measure goes first, the smallest batch counts."""
        own = next_batch(
            self.probes, capacity=self.settings.capacity, candidates=self.asked.sizes(), most=self.asked.most,
            start=self.settings.start, confirm=self.confirm, expandable=asked_expandable(),
        )  # fmt: skip
        probe = self.ranks.agree(_NO_PROBE if own.is_answer else own.batch)
        if probe != _NO_PROBE:
            return Next(probe, False)
        size = self.ranks.agree(own.batch)
        if size == 0:  # by our figures nothing fits; what is true the first steps will tell
            size = self.smallest
            if self.confirm and any(probe.cause is not None and probe.batch <= size for probe in self.probes):
                raise OomproofError(f"not even a batch of {size} fits", fitted_batch.SMALLER_MODEL)
            self.tell(f"not even a batch of {size} seems to fit: starting with it all the same")
        return replace(own, batch=size)

    def smaller(self, failed: int, cause: str) -> int | None:
        """What the figures say where the training itself ran out of memory; None: they do not. The same on all ranks."""
        if not any(probe.reading is not None for probe in self.probes):
            return None
        self.probes.append(Probe(failed, None, cause))
        step = self._next()
        return step.batch if step.is_answer and 0 < step.batch < failed else None

    @property
    def smallest(self) -> int:
        return (self.asked.sizes() or [1])[0]

    def _loaded(self, state: Mapping[str, Any]) -> None:
        if not self.has_state:
            raise StateLoaded(state)

    def batch(self, size: int, most: int | None = None, **facts: Any) -> Batch:
        made = self.asked.batch(size, most=most, resumed=self._loaded, **facts)
        return replace(made, notes=(*made.notes, *split_notes(self.seen, size, size * made.accum)))
