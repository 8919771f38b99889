"""Growth of a job's swap: by a rate, or by steps."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.runner.swap_growth import SwapGrowth
from oomproof.units import MIB


def told(
    growth: SwapGrowth, swap: Callable[[float], float], seconds: int, every: float = 1.0
) -> list[tuple[float, str]]:
    """(when, what) over a stretch of time; ``swap`` in MiB."""
    times = [number * every for number in range(int(seconds / every))]
    return [(t, text) for t in times if (text := growth.look(t, int(swap(t) * MIB)))]


def test_a_rate_is_told_when_it_is_passed_and_once_a_minute() -> None:
    heard = told(SwapGrowth(50 * MIB), lambda t: 2.0 * t, 300)  # 120 MiB a minute
    assert [t for t, _ in heard] == [26.0, 86.0, 146.0, 206.0, 266.0]
    assert heard[0][1] == "the job's swap grew by 52 MiB in 26 s to 52 MiB: more than 50 MiB a minute"


def test_slower_growth_and_what_comes_and_goes_is_not_told() -> None:
    assert told(SwapGrowth(50 * MIB), lambda t: 0.8 * t, 3600) == [], "48 MiB a minute, for an hour"
    assert told(SwapGrowth(50 * MIB), lambda t: 40 * (t % 20 < 10), 600) == []
    assert told(SwapGrowth(50 * MIB), lambda t: 4000 - t, 600) == [], "it comes back"


def test_one_step_up_is_told_once() -> None:
    heard = told(SwapGrowth(50 * MIB), lambda t: 300.0 if t > 100 else 0.0, 600)
    assert [t for t, _ in heard] == [101.0]


def test_however_often_it_looks_it_keeps_a_minute_of_seconds() -> None:
    growth = SwapGrowth(50 * MIB)
    assert len(told(growth, lambda t: 2.0 * t, 300, every=0.05)) == 5
    assert len(growth._looks) <= 61


def test_without_a_rate_every_64_mib_are_told() -> None:
    growth = SwapGrowth(0)
    assert not growth.look(0, 500 * MIB), "what was there before"
    assert not growth.look(1, 560 * MIB)
    assert growth.look(9999, 570 * MIB) == "the job's swap grew by 70 MiB to 570 MiB"
    assert not growth.look(9999, 600 * MIB) and not growth.look(9999, 300 * MIB)
    assert growth.look(9999, 365 * MIB), "from where it had gone down to"
