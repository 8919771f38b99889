"""The view of a guard for all users: whose runs do nothing, told apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from oomproof.guard import view_reader
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.view import Settings, UnmanagedView
from oomproof.guard.view_reader import IDLE_AFTER, ViewReader
from oomproof.ledger.live_runs import Live
from oomproof.units import GIB, MIB


def test_each_users_runs_are_idle_or_not_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, clock = {"2-b"}, SimpleNamespace(t=0.0)
    monkeypatch.setattr(
        view_reader.Idleness, "_cpu", lambda self, run: int(clock.t) if run.name in busy else 7
    )
    runs = [Live("1-a", pid=11, uid=1000), Live("2-b", pid=12, uid=1001)]
    paused = UnmanagedView((5, 1), "loader", GIB, paused="guard", uid=1000)
    host = SimpleNamespace(headroom=lambda: (GIB, 0), stall=lambda t: 0.0, ram=8 * GIB)
    unmanaged = SimpleNamespace(view=lambda near: (paused,), is_searching=lambda t: False)
    settings = [Settings(margin=2 * GIB, floor=GIB // 2, grace=30.0)]
    reader = ViewReader(host, (), BestEffort(pytest.fail), unmanaged, settings, lambda now: runs)  # type: ignore[arg-type]
    seen = {}
    for t in (0.0, 60.0, IDLE_AFTER + 1.0, IDLE_AFTER + 10.0):
        clock.t = t
        seen[t] = reader.read(t)
    last = seen[IDLE_AFTER + 10.0]
    assert seen[60.0].idle_users == frozenset() and last.idle_users == frozenset({1000})
    assert not last.others_idle, "somebody works"
    assert [job.uid for job in last.others] == [1000, 1001]


def test_growth_that_runs_explain_uses_up_none_of_the_time_of_a_search() -> None:
    """A run took the margin for eight seconds; then a job was started by hand, and nobody was looked for any more."""
    left = iter((1000, 900, 800, 700))
    host = SimpleNamespace(headroom=lambda: (next(left) * MIB, 0), stall=lambda t: 0.0, ram=8 * GIB)
    asked: list[float] = []
    unmanaged = SimpleNamespace(view=lambda near: (), is_searching=lambda t: not asked.append(t))
    settings = [Settings(margin=2 * GIB, floor=GIB // 2, grace=30.0)]
    rate = [100.0 * MIB / 0.2]
    runs = lambda now: [Live("1-a", pid=11, rate=rate[0])]  # noqa: E731
    reader = ViewReader(host, (), BestEffort(pytest.fail), unmanaged, settings, runs)  # type: ignore[arg-type]
    assert not any(reader.read(t).searching for t in (0.0, 0.2, 0.4)) and asked == []
    rate[0] = 0.0
    assert reader.read(0.6).searching and asked == [0.6]
