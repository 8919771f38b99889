"""Leak, plateau or noise, on series whose truth is known. bench/trend.py has the rates, from other seeds."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.recording.series import teardown_begin
from oomproof.trend.leaks import FLAT, GROWING, SLOWING, UNKNOWN, Trend, trend_of
from oomproof.units import GIB, MIB

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from memory_series import LEAKS, NO_LEAK, series

SEEDS = range(900, 903)  # of those for tuning: a change for the worse shows here first


@pytest.mark.parametrize("kind", NO_LEAK)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_does_not_leak_is_not_called_a_leak(kind: str, seed: int) -> None:
    known = series(kind, seed)
    said = trend_of(known.samples, known.limit).kind
    assert said != GROWING
    assert said == FLAT or kind in ("copy on read", "eval bumps"), (
        "what is high at the end may be the first of more"
    )


@pytest.mark.parametrize(
    "kind", [kind for kind in LEAKS if kind != "in wander"]
)  # one in seven of those is missed
@pytest.mark.parametrize("seed", SEEDS)
def test_leaks_are_found_and_dated(kind: str, seed: int) -> None:
    known = series(kind, seed)
    found = trend_of(known.samples, known.limit)
    assert found.kind == GROWING and found.full_in is not None and known.full_at is not None
    left = known.full_at - known.samples[-1][0]
    assert abs(found.full_in.expected - left) < 0.12 * left
    assert found.full_in.low <= found.full_in.expected <= found.full_in.high


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "series").glob("*.json")), ids=lambda path: path.stem
)
def test_recordings_of_real_programs(path: Path) -> None:
    """Minutes each, after loading and up to their end."""
    told = json.loads(path.read_text())
    held = [(t, kib * 1024) for t, kib in told["held_kib"]]
    begin = next(t for t, phase, _ in told["phases"] if phase != "load") + 5
    samples = [(t, float(use)) for t, use in held if begin <= t < teardown_begin(held)]
    assert trend_of(samples, 4 * GIB).kind == (GROWING if path.stem.startswith("leak") else FLAT)


def test_an_hour_that_slows_down_has_both_readings() -> None:
    samples = [(float(t), 4 * GIB + 6 * GIB * (1 - math.exp(-t / 1500))) for t in range(3600)]
    found = trend_of(samples, 12 * GIB)
    assert found.kind == SLOWING and found.plateau is not None and found.rate is not None
    assert abs(found.plateau - 10 * GIB) < 0.2 * GIB
    assert found.full_in is not None and found.full_in.high == math.inf, (
        "a straight line would reach it, this one does not"
    )
    assert trend_of(samples, 9.9 * GIB).full_in is not None


def test_a_known_period_is_taken() -> None:
    """An evaluation every 300 s that keeps 40 MiB; between them it rises and falls by 2 GiB."""
    samples = [
        (float(t), 8 * GIB + 40 * MIB * (t // 300) + 2 * GIB * (t % 300) / 300) for t in range(0, 3600, 2)
    ]
    for period in (300.0, None):
        found = trend_of(samples, 16 * GIB, period)
        assert found.kind == GROWING and found.rate is not None
        assert found.rate.expected * 300 == pytest.approx(40 * MIB, rel=0.1)
        assert found.period == pytest.approx(300, rel=0.05)
    assert found.top - found.held > 1.5 * GIB, "it dies at the top of an evaluation"


def test_without_a_limit_there_is_no_date() -> None:
    found = trend_of([(float(t), GIB + t * MIB) for t in range(600)])
    assert found.kind == GROWING and found.full_in is None
    assert found.rate is not None and found.rate.expected == pytest.approx(MIB, rel=0.03)


def test_what_is_full_is_full_now() -> None:
    found = trend_of([(float(t), GIB + t * MIB) for t in range(600)], GIB)
    assert found.full_in is not None and found.full_in.low == found.full_in.expected == 0.0


@pytest.mark.parametrize(
    "samples",
    [[], [(1.0, 5.0)], [(1.0, 5.0)] * 50, [(1.0, 5.0), (2.0, 6.0)], [(0.0, 0.0), (1e9, 1e15)]],
    ids=["none", "one", "one moment", "two", "far apart"],
)
def test_too_little(samples: list[tuple[float, float]]) -> None:
    assert trend_of(samples, GIB).kind == UNKNOWN


def test_a_constant_is_flat() -> None:
    assert trend_of([(float(t), float(GIB)) for t in range(1000)], 2 * GIB).kind == FLAT
    assert trend_of([(float(t), 0.0) for t in range(1000)], 2 * GIB).kind == FLAT


def hour(of: Callable[[int], float]) -> list[tuple[float, float]]:
    dice = random.Random(5)
    return [(float(t), of(t) * GIB + dice.gauss(0, 5 * MIB)) for t in range(3600)]


@pytest.mark.parametrize(
    ("kinds", "of"),
    [
        ((GROWING, UNKNOWN), lambda t: 8 + 8 * math.exp((t - 3600) / 600)),
        ((GROWING, UNKNOWN), lambda t: 8 + max(0, t - 3170) / 430 * 8),
        ((GROWING,), lambda t: 30.0 if 360 < t < 720 else 8 + t / 600),
        ((GROWING,), lambda t: 8 + t / 600 - (t > 2520)),
        ((UNKNOWN, FLAT), lambda t: 8 + (t > 1200) + (t > 2400)),
        ((FLAT,), lambda t: 8 + (t > 1200)),
        ((FLAT,), lambda t: 8 + 2 * (t % 1400) / 1400),
    ],
    ids=[
        "ever faster",
        "the last minutes",
        "an earlier peak",
        "something was freed",
        "two steps",
        "one step",
        "two teeth",
    ],
)
def test_shapes(kinds: tuple[str, ...], of: Callable[[int], float]) -> None:
    found = trend_of(hour(of), 20 * GIB)
    assert found.kind in kinds
    assert found.kind == FLAT or found.grown > 0.5 * GIB


def test_a_known_period_does_not_hide_a_plain_leak() -> None:
    for period in (1000.0, 1e6):
        assert trend_of(hour(lambda t: 8 + t / 3600), 20 * GIB, period).kind == GROWING


def test_a_sleep_is_no_time() -> None:
    asleep = [(t + 36_000 * (t > 1800), value) for t, value in hour(lambda t: 8 + 2 * (t > 1800))]
    assert trend_of(asleep, 20 * GIB).kind == FLAT, "a step"
    leaks = [(t + 36_000 * (t > 1800), value) for t, value in hour(lambda t: 8 + t / 900)]
    found = trend_of(leaks, 20 * GIB)
    assert found.kind == GROWING and found.rate is not None and found.since == pytest.approx(0, abs=200)
    assert found.rate.expected == pytest.approx(GIB / 900, rel=0.05)


def test_seconds_between_samples_are_no_sleep() -> None:
    """A short run at one sample a second, in slices of which each has two points close together."""
    seconds = [(float(t), GIB + 24.0 * MIB * t) for t in range(15)]
    found = trend_of([point for t, value in seconds for point in ((t, value), (t + 0.006, value))], 4 * GIB)
    assert found.kind == GROWING and found.rate is not None
    assert found.rate.expected == pytest.approx(24 * MIB, rel=0.05)


def test_numbers_that_no_machine_holds() -> None:
    assert trend_of([(float(t), 1e300 * (1 + t / 3600)) for t in range(3600)], 1e301).kind in (
        GROWING,
        FLAT,
        UNKNOWN,
        SLOWING,
    )


def test_a_gap_of_hours_in_the_samples() -> None:
    """The machine slept, and what grew before grows after."""
    samples = [
        (t, GIB + t * MIB / 10)
        for t in [*map(float, range(0, 1800, 5)), *map(float, range(20_000, 21_800, 5))]
    ]
    assert trend_of(samples, 64 * GIB).kind == GROWING


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e14)), max_size=120),
    st.one_of(st.none(), st.floats(0, 1e14)),
    st.one_of(st.none(), st.floats(1e-6, 1e8)),
)
def test_nothing_raises_and_figures_are_in_order(
    samples: list[tuple[float, float]], limit: float | None, period: float | None
) -> None:
    found: Trend = trend_of(sorted(samples), limit, period)
    assert found.kind in (FLAT, GROWING, SLOWING, UNKNOWN)
    for range_ in (found.rate, found.full_in):
        if range_ is not None:
            assert 0 <= range_.low <= range_.expected <= range_.high
