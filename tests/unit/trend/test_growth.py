"""Growth, floors and the forecast, on series whose truth is known."""

from __future__ import annotations

import random

from oomproof.trend.growth import Growth, Lasting, NewHighs, WarmUp, floors, slope, time_to_full
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
    assert len(growth._times) == len(growth._values) < 1000


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


def lasting(*parts: tuple[float, float, int], start: int = GIB) -> float:
    """Of a series of parts (seconds, MiB per second, MiB of breath), looked at ten times a second."""
    found, t, value = Lasting(), 0.0, float(start)
    for seconds, rate, breath in parts:
        for _ in range(int(seconds * 10)):
            t, value = t + 0.1, value + rate * MIB / 10
            found.add(t, int(value) + int(t * 10) % 7 * breath * MIB // 6)
    return found.rate() / MIB


def test_growth_lasts_where_peaks_and_lows_rise_in_each_third() -> None:
    assert 4.5 < lasting((30, 5, 0)) < 5.5
    assert 4.5 < lasting((30, 5, 100)) < 5.5, "a training breathes with each step"
    assert 0.9 < lasting((90, 1, 20)) < 1.1
    assert lasting((60, 0, 0), (12, 10, 0)) > 0.5, "a late one, from its eleventh second on"


def test_what_rises_within_a_step_is_no_growth() -> None:
    """Steps of twelve seconds: memory climbs for nine of them and is given back."""
    found = Lasting()
    for tenth in range(1800):
        found.add(tenth / 10, GIB + tenth % 120 * MIB)
        assert found.rate(12.0) == 0


def test_bursts_steps_plateaus_and_breath_do_not_last() -> None:
    assert lasting((60, 0, 100)) == 0
    assert lasting((60, 0, 0), (1, 200, 0), (5, 0, 0)) == 0, "one step up"
    assert lasting((60, 0, 0), (5, 0, 100)) == 0, "bursts that are given back"
    assert lasting((12, 40, 0), (6, 0, 0)) == 0, "loaded, and flat for a few seconds"
    assert lasting((8, 40, 0)) == 0, "too short to tell"


def test_a_tooth_as_high_as_the_one_before_is_no_new_high() -> None:
    highs = NewHighs(0.3)
    rates = [highs.rate(step * 0.1, GIB + step % 5 * 50 * MIB) for step in range(50)]
    assert max(rates[:5]) > 100 * MIB and max(rates[5:]) == 0
    assert highs.rate(5.0, 2 * GIB) > GIB


def test_loading_and_the_first_steps_are_no_trend() -> None:
    warm_up = WarmUp()
    assert warm_up.is_over(0.0), "nobody tells: time alone must"
    warm_up.note("load", None, 10.0)
    assert not warm_up.is_over(100.0)
    warm_up.note("train", None, 101.0)
    assert not warm_up.is_over(110.0)
    warm_up.note("train", 1, 111.0)
    assert not warm_up.is_over(200.0), "one long step"
    warm_up.note("train", 6, 112.0)
    assert not warm_up.is_over(113.0) and warm_up.is_over(117.0)
    warm_up.note("eval", 6, 118.0)
    assert warm_up.is_over(118.0) and not warm_up.counts(118.0), "an evaluation has peaks of its own"
    warm_up.note("load", 6, 119.0)
    assert not warm_up.is_over(119.0)
    warm_up.note("train", 1, 130.0)
    assert not warm_up.is_over(140.0), "another training begins"


def test_a_program_that_makes_no_steps_is_warm_in_the_end() -> None:
    reading, evaluating = WarmUp(), WarmUp()
    reading.note("load", None, 0.0)
    assert not reading.is_over(500.0) and reading.is_over(700.0)
    evaluating.note("eval", None, 10.0)
    assert not evaluating.is_over(30.0) and evaluating.is_over(80.0) and evaluating.counts(80.0)


def test_what_is_pinned_for_a_card_is_no_trend() -> None:
    warm_up = WarmUp()
    for step, t in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)):
        warm_up.note("train", step, t)
    assert warm_up.is_over(20.0)
    warm_up.pins(True, 20.0)
    assert not warm_up.is_over(25.0) and warm_up.is_over(200.0), "whoever died meanwhile pins no more"
    warm_up.pins(False, 26.0)
    assert warm_up.is_over(26.0)
