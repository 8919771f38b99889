"""Kills out of several texts: one told twice is one, and whose it can be is decided by pid, date and name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.evidence.texts.finding import Finding, Sizes
from oomproof.evidence.texts.kill_history import JobLog, of_others, told_once, told_twice

WALL, DAY = 1.79e9, 86400.0


def kill(
    source: str, wall: float | None, pid: int = 7, name: str = "python", anon: int | None = 100
) -> Finding:
    sizes = Sizes(pid, name, 300, anon)
    return Finding("oom-kill-global", source, 1, "", "", 1.0, None, wall, sizes, pids=(pid,))


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        (kill("a", WALL), kill("b", WALL + 2), True),
        (kill("a", WALL), kill("b", WALL + 3 * 3600), True),  # dmesg -T on a laptop that had slept
        (kill("a", WALL), kill("b", WALL + 3 * 3600, anon=101), False),  # the pid came round
        (kill("a", WALL), kill("b", WALL + 8 * DAY), False),
        (kill("a", WALL), kill("b", WALL, pid=8), False),
        (kill("a", WALL), kill("b", WALL, name="chrome"), False),
        (kill("a", WALL), kill("b", 5000.0), True),  # uptime: the figures say it is the same
        (kill("a", WALL), kill("b", 5000.0, anon=101), False),
        (kill("a", WALL), kill("a", WALL + 2), False),  # one text's own kills are told apart by its parser
    ],
)
def test_the_same_kill_in_two_texts(first: Finding, second: Finding, one: bool) -> None:
    assert len(told_once([first, second])) == (1 if one else 2)
    if one:  # whichever came first, a date stays
        assert told_once([second, first])[0].seconds in (WALL, WALL + 2, WALL + 3 * 3600)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 3)), max_size=12))
def test_no_kill_is_lost_and_none_is_invented(rows: list[tuple[str, int, int]]) -> None:
    findings = [kill(source, WALL + 2 * day * DAY, pid) for source, day, pid in rows]
    kept = told_once(findings)
    assert {(each.seconds, each.pids) for each in kept} == {(each.seconds, each.pids) for each in findings}
    assert all(each in findings for each in kept)


@pytest.mark.parametrize(
    ("told", "log", "others"),
    [
        (kill("k", WALL + 20), JobLog("t", WALL), False),
        (kill("k", WALL + 1800), JobLog("t", WALL), False),  # it had printed nothing for half an hour
        (kill("k", WALL - 3600), JobLog("t", WALL), True),  # the job lived on for an hour
        (kill("k", WALL + 5 * DAY), JobLog("t", WALL), True),
        (kill("k", WALL + 5 * DAY), JobLog("t", WALL, pids=(7,)), False),  # the log names the dead process
        (kill("k", WALL, name="chrome"), JobLog("t", WALL), True),
        (kill("k", WALL, name="chrome"), JobLog("k", WALL), False),  # one text tells one story
        (kill("k", 5000.0), JobLog("t", WALL), False),  # nothing speaks against it
        (kill("k", WALL + 5 * DAY), JobLog("t", None, WALL), True),  # last written five days before
        (kill("k", WALL - 5 * DAY), JobLog("t", None, WALL), False),  # copied since: its date tells nothing
    ],
)
def test_whose_kill_it_can_be(told: Finding, log: JobLog, others: bool) -> None:
    assert of_others([told], [log]) == ([told] if others else [])


def test_without_a_jobs_log_every_kill_is_in_question() -> None:
    assert of_others([kill("k", WALL, name="chrome")], []) == []


def test_a_pid_is_needed() -> None:
    assert not told_twice((None, None), (WALL, WALL), True)
