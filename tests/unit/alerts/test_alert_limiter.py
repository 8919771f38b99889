"""A kind is told at once, then summed up; nothing is lost from the count; a storm of many kinds is bounded too."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oomproof.alerts.alert_sender import LONGEST, MOST, SPAN, WINDOW, AlertLimiter


def alert(kind: str = "warn", job: str = "big", text: str = "") -> dict[str, Any]:
    return {"kind": kind, "job": job, "text": text}


def test_the_first_is_told_at_once_and_the_rest_as_one() -> None:
    limiter = AlertLimiter()
    assert limiter.take(alert(text="first"), 0.0) == alert(text="first")
    for second in range(1, 100):
        assert limiter.take(alert(text=str(second)), float(second)) is None
    assert limiter.due(WINDOW - 1) == [] and limiter.next_time == WINDOW
    assert limiter.due(WINDOW) == [{**alert(text="99"), "repeated": 98}]
    assert limiter.due(WINDOW + 1) == [] and limiter.next_time is None


def test_kinds_and_jobs_are_apart() -> None:
    limiter = AlertLimiter()
    for kind, job in (("warn", "a"), ("warn", "b"), ("pause", "a")):
        assert limiter.take(alert(kind, job), 0.0) is not None


def test_one_that_does_not_end_is_told_ever_more_rarely() -> None:
    limiter = AlertLimiter()
    times = []
    for second in range(0, 6 * 3600, 10):
        if limiter.take(alert(), float(second)) is not None or limiter.due(float(second)):
            times.append(second)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps) and gaps[0] == WINDOW and gaps[-1] == LONGEST and len(times) < 12


def test_after_quiet_it_is_news_again() -> None:
    limiter = AlertLimiter()
    limiter.take(alert(), 0.0)
    assert limiter.take(alert(), WINDOW) is not None


def test_all_kinds_together_are_bounded() -> None:
    limiter = AlertLimiter()
    told = [limiter.take(alert(job=str(number)), 0.0) for number in range(500)]
    assert sum(each is not None for each in told) == MOST and limiter.withheld() == 500 - MOST
    assert limiter.due(SPAN - 1) == []
    assert len(limiter.due(SPAN)) == MOST


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.floats(0, 100)), max_size=200)
)
def test_every_alert_is_told_or_counted(steps: list[tuple[str, str, float]]) -> None:
    limiter, now, told, summed = AlertLimiter(), 0.0, 0, 0
    for kind, job, wait in steps:
        now += wait
        told += limiter.take(alert(kind, job), now) is not None
        summed += sum(1 + one["repeated"] for one in limiter.due(now))
    assert told + summed + limiter.withheld() == len(steps)
