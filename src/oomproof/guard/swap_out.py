"""Pushes a paused job's memory out to swap, in small steps and in a thread of its own: the kernel takes its time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from oomproof.machine import swap
from oomproof.machine.cgroups import JobMemory
from oomproof.units import MIB

# one write to a slow disk (20 MB/s) then ends within a second, and a resume is not held up longer
_STEP = 16 * MIB
_LEAVE = 8 * MIB  # what a job touches at once when it resumes: not worth the way out and back
_FRUITLESS = 5  # writes in a row that moved nothing: the rest cannot go (locked, or swap is full)


class PushOut:
    """One go. The kernel has memory.reclaim since 5.19, on cgroup v2 only; without it, or without disk swap, no thread."""

    def __init__(self, path: str | None) -> None:
        self._fd: int | None = None
        if path:
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except OSError:
                pass
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def possible(self) -> bool:
        return self._fd is not None

    def start(self, memory: Callable[[], JobMemory | None], done: Callable[[int], None]) -> None:
        """``done`` gets the bytes that RAM won; it is called from the thread."""
        if self._fd is None:
            return
        self.stop()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(memory, done, self._stop), name="push-out", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the step under way ends by itself."""
        self._stop.set()

    def _work(
        self, memory: Callable[[], JobMemory | None], done: Callable[[int], None], stop: threading.Event
    ) -> None:
        first = now = memory()
        fruitless = 0
        while not stop.is_set() and now is not None and fruitless < _FRUITLESS:
            held = now.anon + now.shmem
            if held <= _LEAVE or swap.disk(swap.read())[1] < 2 * _STEP:
                break
            try:
                assert self._fd is not None
                os.write(self._fd, str(min(_STEP, held)).encode())
            except OSError:
                pass  # EAGAIN: less than asked for went; what counts is measured below
            after = memory()
            moved = held - (after.anon + after.shmem) if after is not None else 0
            fruitless = 0 if moved >= MIB else fruitless + 1
            now = after
        if first is None or now is None:  # the job ended meanwhile
            done(0)
        else:
            done(max(0, first.anon + first.shmem - now.anon - now.shmem))

    def close(self) -> None:
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join(2.0)
        if self._fd is not None and (thread is None or not thread.is_alive()):
            os.close(self._fd)
            self._fd = None
