"""The keeper's part, done by the front after the keeper was killed: the job is its child then, and nothing of it is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from oomproof.leaf.attempt_names import KEEPER_LOCK
from oomproof.leaf.proc_files import is_zombie, with_start
from oomproof.leaf.small_files import hold_lock
from oomproof.machine import processes
from oomproof.runner.attempt_files import append_event, write_started
from oomproof.runner.keeper import Keeper, children_of


class TakenOver(Keeper):
    """Waits for the job, ends what it leaves behind, writes exit.json and removes the cgroups, as the keeper would.

    The front has other children (the GPU helper, git): only the job's own are waited for, signalled and counted.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        started: dict[str, Any],
        told: dict[str, Any],
        lock: int | None,
        text: str = "the front keeps the job from now on",
    ) -> None:
        super().__init__(None, spec)
        self.on_news: Callable[[dict[str, Any]], None] = lambda _: None
        self.lock = lock if lock is not None else hold_lock(f"{os.path.dirname(self.folder)}/{KEEPER_LOCK}")
        job = started.get("job") or {}
        self.leader, self.leader_start = int(job.get("pid") or 0), job.get("start")
        self._tag = f"OOMPROOF_RUN={spec['env'].get('OOMPROOF_RUN')}".encode()
        if "ended" in told:  # the keeper had waited for it already
            self.ended, self.status, self.died = True, told["ended"], tuple(told["died"])
        append_event(self.folder, event="keeper-lost", text=text)
        write_started(
            self.folder,
            {**started, "keeper": with_start(os.getpid()), "first_keeper": started.get("keeper")},
            self.spares,
        )

    def tell(self, news: dict[str, object]) -> None:
        self.on_news(news)

    def reap(self) -> None:
        for pid in self._children():
            if pid != self.leader and is_zombie(pid):
                _wait(pid)
        if self.ended:
            return
        try:
            pid, status, usage = os.wait4(self.leader, os.WNOHANG)
        except ChildProcessError:  # no child of ours (macOS), or waited for by a keeper that could not tell
            if not processes.is_alive(self.leader, self.leader_start):
                self.note_end(None)
            return
        if pid:
            self.note_usage(usage)
            self.note_end(status)

    def roots(self) -> list[int]:
        return self._children()

    def _children(self) -> list[int]:
        """Those of the front's children that are the job's: its session, or the mark that every process of it inherits."""
        return [pid for pid in children_of(os.getpid()) if pid == self.leader or self._is_jobs(pid)]

    def _is_jobs(self, pid: int) -> bool:
        fields = processes.stat_fields(pid)
        if fields and int(fields[3]) == self.leader:
            return True
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._tag in file.read().split(b"\0")
        except OSError:
            return False


def _wait(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
