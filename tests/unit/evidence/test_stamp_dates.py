"""Stamps without a zone are local, stamps without a year get the newest that fits: for any moment, in any zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.kill_history import dated
from oomproof.evidence.texts.line_prefixes import date_without_year, strip
from oomproof.units import format_time

DAY = 86400.0
YEAR = 366 * DAY
moment = st.integers(int(1.0e9), int(4.0e9)).map(float)
here = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"], autouse=True)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def clock(when: float, form: str) -> str:
    return time.strftime(form, time.localtime(when))


def same_reading(one: float | None, other: float) -> bool:
    """Where clocks are set back an hour comes twice, and its stamp does not say which."""
    return one is not None and clock(one, "%F %T") == clock(other, "%F %T") and abs(one - other) <= 3600


@here
@given(moment)
def test_dmesg_t_is_local(when: float) -> None:
    assert same_reading(strip(f"[{time.ctime(when)}] Out of memory: x").seconds, when)


@here
@given(moment)
def test_an_iso_stamp_without_a_zone_is_local_and_with_one_is_what_it_says(when: float) -> None:
    assert same_reading(strip(f"{clock(when, '%F %T')} box kernel: x").seconds, when)
    exact = datetime.fromtimestamp(when, UTC)
    assert strip(f"{exact:%Y-%m-%dT%H:%M:%S}Z x").seconds == when
    assert strip(f"{exact + timedelta(hours=5, minutes=30):%Y-%m-%dT%H:%M:%S}+0530 x").seconds == when
    assert strip(f"{exact + timedelta(hours=1):%a %Y-%m-%d %H:%M:%S} CET box kernel: x").seconds == when


@here
@given(moment, st.floats(0, YEAR - 3 * DAY))
def test_a_stamp_without_a_year_is_of_the_last_twelve_months(when: float, later: float) -> None:
    printed = strip(f"{clock(when, '%b %d %H:%M:%S')} box kernel: x").time
    if clock(when, "%m-%d") != "02-29":  # which may be four years back, and is then told so
        found = date_without_year(printed, when + later)
        assert found is not None and (
            same_reading(found, when) or found > when
        )  # a day of slack: next year's
        assert found <= when + later + DAY
        if later < 300 * DAY:
            assert same_reading(found, when)


@here
@given(st.text(max_size=40), moment)
def test_any_text_is_dated_or_not_but_never_fails(text: str, latest: float) -> None:
    found = date_without_year(text, latest)
    assert found is None or found <= latest + DAY
    strip(text)


@here
@given(moment, st.lists(st.floats(DAY, 300 * DAY), max_size=8))
def test_a_row_of_stamps_goes_back_over_new_years(end: float, gaps: list[float]) -> None:
    whens = [end]
    for gap in gaps:
        whens.insert(0, whens[0] - int(gap))
    if any(clock(when, "%m-%d") == "02-29" for when in whens) or whens[0] < 1e8:
        return
    findings = [
        Finding("oom-kill-global", "k", line, "", "", 1.0, time=clock(when, "%b %e %H:%M:%S"))
        for line, when in enumerate(whens, 1)
    ]
    for found, when in zip(dated(findings, end + 60), whens, strict=True):
        assert same_reading(found.seconds, when)


def test_uptime_is_shown_as_such_and_a_date_with_its_zone(zone: str) -> None:
    assert format_time(55220.5) == "55220.5 s after boot"
    offset = {"UTC": "UTC", "Asia/Kolkata": "UTC+05:30", "America/New_York": "UTC-05:00"}.get(
        zone, "UTC+11:00"
    )
    assert format_time(time.mktime((2026, 1, 9, 3, 41, 7, 0, 0, -1))) == f"2026-01-09 03:41:07 {offset}"


@pytest.mark.parametrize(("stamp", "month"), [("avril 16", 4), ("Okt 16", 10), ("5月 16", 5), ("дек 16", 12)])
def test_months_in_the_readers_language(stamp: str, month: int) -> None:
    latest = time.mktime((2026, 12, 31, 0, 0, 0, 0, 0, -1))
    expected = time.mktime((2026, month, 16, 3, 0, 0, 0, 0, -1))
    assert date_without_year(strip(f"{stamp} 03:00:00 box kernel: x").time, latest) == expected


def test_a_log_level_is_no_zone() -> None:
    assert strip("2026-11-03 04:12:07 INFO loss 0.1").message == "INFO loss 0.1"
