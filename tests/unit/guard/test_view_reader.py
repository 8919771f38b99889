"""The view of a guard for all users: whose runs do nothing, told apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from oomproof.guard import idle_runs
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.idle_runs import IDLE_AFTER
from oomproof.guard.view import Settings, UnmanagedView
from oomproof.guard.view_reader import ViewReader
from oomproof.ledger.live_runs import Live
from oomproof.units import GIB


def test_each_users_runs_are_idle_or_not_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, clock = {"2-b"}, SimpleNamespace(t=0.0)
    monkeypatch.setattr(idle_runs.Idleness, "_cpu", lambda self, run: int(clock.t) if run.name in busy else 7)
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
