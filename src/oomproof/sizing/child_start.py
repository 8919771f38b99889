"""Starts a child that nobody else would end: a Ctrl-C between its start and the watch over it waits until it is watched."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from oomproof.leaf.process_signals import signal_all
from oomproof.machine import processes


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The child, in a session of its own; ended when the block is left, in whichever way."""
    let_through = _hold_interrupts()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    except BaseException:
        let_through()
        raise
    try:
        let_through()
        yield child
    finally:
        _end(child)


def _hold_interrupts() -> Callable[[], None]:
    """Not by a mask: another thread would take the signal, and the main one raise it all the same."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    held: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *interrupt: held.append(interrupt))

    def let_through() -> None:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])

    return let_through


def _end(child: subprocess.Popen[bytes]) -> None:
    """With everybody below it: launchers give their ranks a session of their own."""
    while child.poll() is None:
        signal_all((child.pid, *processes.descendants(child.pid)), signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
