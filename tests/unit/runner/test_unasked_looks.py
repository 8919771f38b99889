"""When a job is looked into before anything is short: seldom, and never one that does not grow."""

from __future__ import annotations

from itertools import pairwise

from oomproof.runner.census_watch import UnaskedLooks
from oomproof.units import GIB, MIB


def test_a_census_when_half_is_full_and_when_nearly_all_is() -> None:
    looks = UnaskedLooks()
    asked = [use for use in range(1000) if looks.fills(use * MIB, (1000 - use) * MIB)]
    assert asked == [500, 875], "once each, though it is looked at a thousand times"
    assert not looks.fills(900 * MIB, 100 * MIB) and not looks.fills(400 * MIB, 600 * MIB)
    at_once = UnaskedLooks()
    assert at_once.fills(990 * MIB, 10 * MIB) and not at_once.fills(995 * MIB, 5 * MIB)
    assert not UnaskedLooks().fills(20 * MIB, 2 * MIB), "too small to ask"


def test_counters_are_looked_at_as_the_job_reaches_new_highs() -> None:
    flat, saw, leak = UnaskedLooks(), UnaskedLooks(), UnaskedLooks()
    seconds = range(86_400)
    assert sum(flat.grows(t, GIB + t % 7 * MIB) for t in seconds) == 1
    assert sum(saw.grows(t, GIB + t % 600 * MIB) for t in seconds) <= 12, "what comes and goes is no new high"
    times = [t for t in seconds if leak.grows(t, 100 * MIB + t * MIB // 2)]
    assert 60 <= len(times) <= 120 and all(later - earlier >= 10 for earlier, later in pairwise(times))


def test_while_a_tracer_looks_it_is_asked_each_time() -> None:
    looks = UnaskedLooks()
    assert looks.grows(0.0, GIB) and not looks.grows(1.0, GIB)
    looks.trace(2.0)
    assert looks.is_tracing(3.0) and all(looks.grows(float(t), GIB) for t in range(3, 180))
    assert not looks.grows(200.0, GIB), "a window that nobody ended is not waited for"
    looks.trace(300.0)
    looks.traced()
    assert not looks.grows(301.0, GIB) and not looks.is_tracing(301.0)
