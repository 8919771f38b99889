"""A job that reads its libraries and weights back from disk all the time is told of it, once; one that reads data is not."""

from __future__ import annotations

import pytest

from oomproof.machine.cache_faults import CacheFaults
from oomproof.runner.page_cache_watch import Held, PageCacheWatch
from oomproof.units import GIB, MIB

HELD = Held(use=409 * MIB, charged=412 * MIB, cache=19 * MIB, limit=435 * MIB, available=20 * GIB)


def told(
    seconds: int,
    read: float = 500.0,
    major: float = 110.0,
    waited: float | None = 0.35,
    held: Held = HELD,
    loading: bool = False,
    calm_at: int | None = None,
) -> tuple[dict[int, str], str]:
    """(what was told and when, what is told at the end) of a look every two seconds; ``read`` in MiB a second."""
    watch, said = PageCacheWatch(), {}
    back = stalled = faults = 0.0
    for t in range(0, seconds + 1, 2):
        if t and not (calm_at is not None and calm_at <= t < calm_at + 14):
            back, faults, stalled = back + 2 * read * MIB, faults + 2 * major, stalled + 2 * (waited or 0.0)
        look = CacheFaults(int(back), int(faults), stalled if waited is not None else None)
        if text := watch.look(float(t), look, held, loading):
            said[t] = text
    return said, watch.whole()


def test_it_is_told_once_with_the_limit_to_try_and_again_at_the_end() -> None:
    said, end = told(120)
    assert [*said] == [24], "twenty seconds, in slices of five"
    assert said[24] == (
        "slowed by its limit: held 409 MiB of 435 MiB and read 11.7 GiB back from disk in 24 s for lack of page cache, "
        "waiting 35% of the time; raise --limit to about 544M"
    )
    assert end == (
        "slowed by its limit of 435 MiB: read 58.6 GiB back from disk for lack of page cache, "
        "waiting 35% of the time; raise --limit to about 544M"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {
            "major": 0.0
        },  # a data file that is read over and over: the cache would be of use, but nobody asked for it
        {"read": 0.0},  # weights that are mapped and read for the first time
        {"waited": 0.03},  # now and then a page
        {"major": 10.0, "waited": None},
        {"read": 0.5},
        {"seconds": 18},
        {"calm_at": 10, "seconds": 40},
        {"loading": True, "seconds": 55},
        {"read": 1.1, "seconds": 24},  # its page cache was not yet read back twice
    ],
)
def test_what_is_no_reason_to_say_anything(facts: dict[str, float]) -> None:
    assert told(**{"seconds": 60, **facts}) == ({}, "")  # type: ignore[arg-type]


def test_a_slow_disk_an_old_kernel_and_a_long_load_are_told_too() -> None:
    assert [*told(60, read=1.5, major=30.0, waited=0.95)[0]] == [30], "when its cache was read back twice"
    said, end = told(60, waited=None)
    assert said and "waiting" not in said[24] + end
    assert [*told(120, loading=True)[0]] == [60]
    assert [*told(60, calm_at=10)[0]] == [42], "what was before a calm does not count"


def test_where_its_limit_leaves_plenty_it_is_the_machine_that_is_full() -> None:
    for held in (
        Held(409 * MIB, 412 * MIB, 19 * MIB, None, 300 * MIB),
        Held(409 * MIB, 412 * MIB, 19 * MIB, GIB, 300 * MIB),
    ):
        said, end = told(30, held=held)
        assert said[24].startswith("slowed by a full machine: held 409 MiB and read 11.7 GiB back from disk")
        assert "--limit" not in said[24] and end.endswith("; 300 MiB were available")


def test_a_counter_that_falls_with_a_process_that_ended_is_no_rate() -> None:
    watch = PageCacheWatch()
    for t in range(0, 60, 2):
        faults = CacheFaults(t * 500 * MIB, 10_000 - t * 100, t * 0.5)
        assert watch.look(float(t), faults, HELD, loading=False) == ""
