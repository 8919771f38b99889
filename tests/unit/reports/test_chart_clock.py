"""The clock under the chart, over the night in which summer time begins or ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.reports.chart import clock_spans, clock_text, ticks

BACK = 1_792_890_000.0  # 2026-10-25 01:00 UTC: 03:00 becomes 02:00 in central Europe
FORWARD = 1_774_746_000.0  # 2026-03-29 01:00 UTC: 02:00 becomes 03:00
HOUR = 3600.0


@pytest.fixture(autouse=True, scope="module")
def central_europe() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


def labels(end: float, begin: float) -> list[str]:
    return [f"{tick.text} {tick.zone}".strip() for tick in ticks(end, begin)]


def test_an_hour_that_comes_twice_has_both_ticks_each_with_its_zone() -> None:
    end = BACK + 2.5 * HOUR
    shown = ["01:00 UTC+02:00", "02:00", "02:00 UTC+01:00", "03:00", "04:00"]
    assert labels(end, -5 * HOUR) == shown
    assert {later.t - tick.t for tick, later in pairwise(ticks(end, -5 * HOUR))} == {HOUR}
    assert clock_text(end, -5 * HOUR) == "UTC+02:00, from 2026-10-25 02:00:00 on UTC+01:00"


def test_an_hour_that_is_leapt_over_has_no_tick() -> None:
    end = FORWARD + 2.5 * HOUR
    assert labels(end, -5 * HOUR) == ["00:00 UTC+01:00", "01:00", "03:00 UTC+02:00", "04:00", "05:00"]


def test_steps_longer_than_the_change_stay_round_and_apart() -> None:
    end = BACK + 12 * HOUR  # every four hours
    assert labels(end, -24 * HOUR) == [
        "16:00 UTC+02:00",
        "20:00",
        "00:00",
        "04:00 UTC+01:00",
        "08:00",
        "12:00",
    ]


def test_before_and_after_it_is_the_plain_clock() -> None:
    assert labels(BACK - 1, -300.0) == ["02:55", "02:56", "02:57", "02:58", "02:59"]
    assert labels(BACK + HOUR, -HOUR) == ["02:00", "02:10", "02:20", "02:30", "02:40", "02:50", "03:00"]
    assert clock_text(BACK - 1, -300.0) == "UTC+02:00"


def test_a_run_over_a_year_has_every_change() -> None:
    spans = clock_spans(BACK + 24 * HOUR, -380 * 24 * HOUR)
    assert [span.zone for span in spans] == ["UTC+02:00", "UTC+01:00", "UTC+02:00", "UTC+01:00"]
    assert [round(BACK + 24 * HOUR + span.begin) for span in spans][2:] == [FORWARD, BACK]


@given(
    end=st.floats(BACK - 90 * 24 * HOUR, BACK + 200 * 24 * HOUR),
    length=st.floats(0.05, 40 * 24 * HOUR),
)
def test_every_tick_tells_the_local_clock_of_its_moment(end: float, length: float) -> None:
    placed = ticks(end, -length)
    assert len(placed) <= 22 and all(-length - 1e-3 <= tick.t <= 1e-3 for tick in placed)
    assert all(tick.t < later.t for tick, later in pairwise(placed))
    for tick in placed:
        clock = time.localtime(end + tick.t + 2e-3)
        told = {time.strftime(form, clock) for form in ("%H:%M:%S", "%H:%M", "%d %b")}
        assert tick.text in told or tick.text.rpartition(".")[0] in told
