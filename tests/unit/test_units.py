"""Sizes and rates as people read them."""

from __future__ import annotations

import pytest

from oomproof.units import GIB, KIB, MIB, TIB, format_rate, format_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1.5 * MIB, "2 MiB"), (380 * MIB, "380 MiB"), (11.2 * GIB, "11.2 GiB"),
        (-5 * MIB, "-5 MiB"), (2000 * TIB, "2000.0 TiB"), (None, "?"),
    ],
)  # fmt: skip
def test_a_size(size: float | None, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(("unit", "text"), [(MIB, "1 MiB"), (GIB, "1.0 GiB"), (TIB, "1.0 TiB")])
def test_what_is_rounded_up_to_a_unit_is_one(unit: int, text: str) -> None:
    for size in (unit, unit - 1, unit - unit // KIB // 25):
        assert format_size(size) == text


def test_a_rate_is_told_in_the_time_that_gives_a_number() -> None:
    assert [format_rate(rate) for rate in (12 * MIB, MIB / 2)] == ["12.0 MiB/s", "30 MiB/min"]
