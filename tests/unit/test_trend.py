"""Growth, floors and the forecast, on series whose truth is known."""

from __future__ import annotations

import random

from oomproof.trend import Growth, floors, slope, time_to_full
from oomproof.units import GIB, MIB


def series(
    rate: float, seconds: int, base: int = GIB, noise: int = 0, seed: int = 1
) -> list[tuple[float, int]]:
    chance = random.Random(seed)
    return [(float(t), int(base + rate * t + chance.uniform(-noise, noise))) for t in range(seconds)]


def test_rate_over_windows() -> None:
    growth = Growth()
    for t, value in series(10 * MIB, 20):
        growth.add(t, value)
    assert abs(growth.rate(2.0) - 10 * MIB) < 1
    assert abs(growth.sustained() - 10 * MIB) < 1


def test_a_burst_is_not_sustained() -> None:
    growth = Growth()
    for t in range(20):
        growth.add(float(t), GIB if t < 18 else GIB + (t - 17) * 500 * MIB)
    assert growth.rate(1.0) > 400 * MIB
    assert growth.sustained() < 100 * MIB


def test_nothing_is_sustained_before_five_seconds() -> None:
    growth = Growth()
    for t in range(4):
        growth.add(float(t), t * GIB)
    assert growth.sustained() == 0


def test_history_is_bounded() -> None:
    growth = Growth()
    for step in range(100_000):
        growth.add(step * 0.01, step)
    assert len(growth._points) < 1000


def test_floors_ignore_a_sawtooth() -> None:
    samples = [(float(t), GIB + (t % 10) * 100 * MIB) for t in range(100)]
    assert {value for _, value in floors(samples, 10.0)} == {GIB}


def test_slope_shrugs_off_one_outlier() -> None:
    points = [(float(t), t * 100) for t in range(20)]
    points[7] = (7.0, 10**9)
    assert abs(slope(points) - 100) < 1


def test_leak_is_forecast() -> None:
    left = time_to_full(series(MIB, 300, noise=2 * MIB), 600 * MIB)
    assert left is not None
    assert 500 < left < 720


def test_no_forecast_for_noise_flat_sawtooth_or_plateau() -> None:
    for seed in range(20):
        assert time_to_full(series(0, 300, noise=50 * MIB, seed=seed), GIB) is None
    assert time_to_full(series(0, 300), GIB) is None
    assert time_to_full([(float(t), GIB + (t % 25) * 20 * MIB) for t in range(300)], GIB) is None
    plateau = [(float(t), int(GIB * (1 - 0.5 ** (t / 30)))) for t in range(300)]
    assert time_to_full(plateau, GIB) is None


def test_too_little_history_says_nothing() -> None:
    assert time_to_full(series(MIB, 5), GIB) is None
