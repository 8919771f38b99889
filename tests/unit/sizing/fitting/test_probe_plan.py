"""Which batch is measured next: no look that does not fit, few of them, and an answer near the true maximum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.sizing.batch_search import largest_batch
from oomproof.sizing.caching_allocator import fits, smallest_capacity
from oomproof.sizing.fitting.memory_meter import Reading
from oomproof.sizing.fitting.probe_plan import Next, Probe, next_batch

MIB, GIB = 1 << 20, 1 << 30
Log = Callable[[int], list[tuple[int, int]]]


class Card:
    """A training on a card of that capacity: its log is replayed, and memory runs out where it does not fit."""

    def __init__(self, log: Log, capacity: int, *, has_logs: bool = True) -> None:
        self.log, self.capacity, self.has_logs = log, capacity, has_logs
        self.probes: list[Probe] = []
        self._needs: dict[int, int] = {}

    def need(self, batch: int) -> int:
        if batch not in self._needs:
            self._needs[batch] = smallest_capacity(self.log(batch))
        return self._needs[batch]

    def measured(self, batch: int) -> Probe:
        if self.need(batch) > self.capacity:
            return Probe(batch, None, "cuda-oom")
        return Probe(
            batch, Reading(self.need(batch), self.capacity, events=self.log(batch) if self.has_logs else None)
        )

    def fit(self, **asked: object) -> Next:
        while not (step := next_batch(self.probes, **asked)).is_answer:  # type: ignore[arg-type]
            assert step.batch not in [probe.batch for probe in self.probes], "measured twice"
            assert len(self.probes) < 12
            self.probes.append(self.measured(step.batch))
        return step

    @property
    def failures(self) -> int:
        return sum(probe.cause is not None for probe in self.probes)

    def most(self) -> int:
        """Up to which all fit: what an allocator breaks into pieces may make one fit again that is larger."""
        most = largest_batch(self.need, self.capacity).batch
        near = range(max(1, most * 7 // 8), most)
        return next((batch - 1 for batch in near if self.need(batch) > self.capacity), most)

    def is_edge(self, batch: int) -> bool:
        """Whether the next, or with one sample to spare the one after it, does not fit. Seen: 13 did not, 14 to 17 did."""
        return any(self.need(larger) > self.capacity for larger in (batch + 1, batch + 2))


def network(layers: int, weight: int, activation: int, temporary: int = 0, square: int = 0) -> Log:
    """Three steps of AdamW on layers of equal size; bytes a layer, activations and temporaries by sample."""

    def log(batch: int) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = []
        name = 0

        def take(size: int) -> int:
            nonlocal name
            name += 1
            events.append((name, size))
            return name

        def give(*names: int) -> None:
            events.extend((-freed, 0) for freed in names)

        weights = [take(weight) for _ in range(layers)]
        assert weights
        states: list[int] = []
        for _ in range(3):
            kept = []
            for _ in range(layers):
                kept.append(take(activation * batch))
                if temporary:
                    give(take(temporary * batch))
            if square:
                give(take(square * batch * batch))
            gradients = []
            for held in reversed(kept):
                flow = take(activation * batch)
                gradients.append(take(weight))
                give(held, flow)
            if not states:
                states = [take(2 * weight) for _ in range(layers)]
            give(*[take(weight) for _ in range(layers)])
            give(*gradients)
        return events

    return log


GPT = network(12, 40 * MIB, 60 * MIB, 30 * MIB)


def test_no_look_fails_and_the_answer_is_the_maximum() -> None:
    card = Card(GPT, 24 * GIB)
    step = card.fit()
    assert card.failures == 0 and len(card.probes) == 2, [probe.batch for probe in card.probes]
    assert step.batch == card.most() > 20
    assert step.need == pytest.approx(card.need(step.batch), rel=0.002)


def test_confirmed_the_answer_was_measured() -> None:
    card = Card(GPT, 24 * GIB)
    step = card.fit(confirm=True)
    assert step.batch == card.most() and step.batch in [probe.batch for probe in card.probes]
    assert card.failures == 0 and len(card.probes) == 3


def test_between_logs_of_other_tensors_there_is_one_look_more() -> None:
    """DeBERTa on an H200, as measured: small batches run other kernels, so the line through the two sums was too flat and promised 93, which failed."""
    logs = {9: network(5, 100 * MIB, 28 * MIB)(9), 72: network(12, 40 * MIB, 20 * MIB)(72)}
    needs = {9: 4984930304, 72: 20313014272}
    step = next_batch([Probe(batch, Reading(needs[batch], 24 * GIB, events=logs[batch])) for batch in logs])
    assert not step.is_answer and 72 < step.batch < 88
    assert next_batch([Probe(batch, Reading(needs[batch], 24 * GIB)) for batch in logs]).batch == 93


def test_what_fits_into_less_may_not_fit_into_what_there_is() -> None:
    """With more memory the first block stays cached, the third request breaks a piece off it, and the last finds no space."""

    def log(batch: int) -> list[tuple[int, int]]:
        sizes = [(1, 30), (-1, 0), (2, 40), (3, 20), (-2, 0), (4, 45)]
        return [(name, size * batch * MIB) for name, size in sizes]

    card = Card(log, 7200 * MIB)
    assert smallest_capacity(log(100)) < card.capacity and not fits(log(100), card.capacity)
    assert fits(log(90), card.capacity)
    assert card.fit(candidates=[2, 10, 50, 90, 100]).batch == 90


def test_only_sizes_that_keep_the_effective_batch() -> None:
    card = Card(GPT, 24 * GIB)
    step = card.fit(candidates=[1, 2, 4, 8, 16, 32, 64, 128])
    assert step.batch == 16 and step.most == card.most()


def test_a_whole_effective_batch_that_fits_ends_the_search() -> None:
    card = Card(GPT, 24 * GIB)
    assert card.fit(candidates=[1, 2, 4, 8]).batch == 8
    assert [probe.batch for probe in card.probes] == [2, 8]


def test_without_logs_by_lines() -> None:
    card = Card(GPT, 24 * GIB, has_logs=False)
    step = card.fit(confirm=True)
    assert card.failures == 0 and step.batch >= 0.97 * card.most()
    assert len(card.probes) <= 5


def test_a_start_that_is_too_large_is_halved() -> None:
    card = Card(network(4, 10 * MIB, 3 * GIB), 20 * GIB)
    assert card.most() == 1
    assert card.fit(confirm=True).batch == 1
    assert [probe.batch for probe in card.probes] == [2, 1]


def test_nothing_fits() -> None:
    card = Card(network(4, 10 * GIB, MIB), 20 * GIB)
    assert card.fit().batch == 0
    assert [probe.batch for probe in card.probes] == [2, 1]


def test_a_figure_above_the_capacity_is_no_failure_but_no_answer_either() -> None:
    """The user allows less than there is."""
    card = Card(GPT, 24 * GIB)
    step = card.fit(capacity=12 * GIB, confirm=True)
    assert step.batch == largest_batch(card.need, 12 * GIB).batch
    assert all(probe.reading is not None and probe.reading.need <= 12 * GIB for probe in card.probes)


def test_samples_that_are_compared_with_each_other_are_told() -> None:
    card = Card(network(12, 40 * MIB, 10 * MIB, square=4 * 1024), 24 * GIB)
    step = card.fit(confirm=True)
    assert step.squares == 3, "one in each step"
    assert Card(GPT, 24 * GIB).fit().squares == 0
    assert step.batch >= 0.97 * card.most() and card.failures == 0


def test_memory_that_is_given_back_at_every_step_is_told() -> None:
    def log(batch: int) -> list[tuple[int, int]]:
        """Two large tensors one after the other, of sizes that do not fit into each other's segment."""
        events: list[tuple[int, int]] = [(1, 100 * MIB)]
        for name in (2, 4, 6):
            events += [(name, 100 * batch * MIB), (-name, 0), (name + 1, 170 * batch * MIB), (-name - 1, 0)]
        return events

    card = Card(log, 10 * GIB)
    step = card.fit()
    assert step.tight and step.batch == card.most()
    assert not Card(GPT, 24 * GIB).fit().tight


def test_memory_that_ends_where_no_figure_says_so_is_bisected() -> None:
    """Another process on the card, a limit of the container: figures stay small, and the batch fails."""
    probes: list[Probe] = []
    while not (step := next_batch(probes, most=64, confirm=True)).is_answer:
        fits = step.batch <= 37
        reading = Reading(400 * MIB + step.batch, 20 * GIB)
        probes.append(Probe(step.batch, reading if fits else None, None if fits else "cuda-oom"))
    assert 30 <= step.batch <= 37 and len(probes) <= 8
    assert sum(probe.cause is not None for probe in probes) <= 4


def test_a_failure_just_above_the_answer_costs_a_few_percent() -> None:
    """cuDNN took another workspace at the last look."""
    card = Card(GPT, 24 * GIB)
    honest, true = card.need, card.most()

    def need(batch: int) -> int:
        return int(honest(batch) * (1.02 if batch > 20 else 1))

    card.need = need  # type: ignore[method-assign]
    step = card.fit(confirm=True)
    assert card.failures <= 1 and true - 2 <= step.batch <= true and need(step.batch) <= card.capacity


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 100),
    st.integers(1, 400),
    st.integers(0, 200),
    st.integers(2, 60),
    st.booleans(),
)
def test_networks_of_every_shape(
    layers: int, weight: int, activation: int, temporary: int, capacity: int, confirm: bool
) -> None:
    """What they need is the larger of two lines: no look fails, and at least 97 % of the maximum (or one sample less) is found, or
    a batch just below one that does not fit: a larger one that fits again is luck, which the next step need not have."""
    card = Card(network(layers, weight * MIB, activation * MIB // 4, temporary * MIB // 4), capacity * GIB)
    most = card.most()
    step = card.fit(confirm=confirm)
    if most >= 2:
        assert card.failures == 0, [(probe.batch, probe.cause) for probe in card.probes]
        assert card.need(step.batch) <= card.capacity
        assert step.batch >= min(most - 1, 0.97 * most) or card.is_edge(step.batch), (step, most)
    assert len(card.probes) <= 6
