"""An unmanaged job that has its turn again: looked at closely, since it was let run although little memory is left."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from oomproof.guard.view import UnmanagedView
from oomproof.machine import processes

if TYPE_CHECKING:
    from oomproof.guard.unmanaged_growth import Culprit

_SPAN = 0.35  # seconds over which growth is told, as of a run
_MOST = 16  # of its processes: each costs a read


class FollowedJob:
    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit
        self._points: deque[tuple[float, int]] = deque()

    def view(self, t: float) -> UnmanagedView:
        members = [processes.memory(pid) for pid in self.culprit.job.pids[:_MOST]]
        held = sum(member.anon + member.shmem for member in members if member is not None)
        self._points.append((t, held))
        while len(self._points) > 2 and t - self._points[1][0] >= _SPAN:
            self._points.popleft()
        before, held_before = self._points[0]
        rate = max(0.0, (held - held_before) / (t - before)) if t > before else 0.0
        return UnmanagedView(self.culprit.key, self.culprit.name, held, rate)
