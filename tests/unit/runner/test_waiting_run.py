"""A run that waits can be called off; one that has begun is not, by a terminal that is closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.recording.run_folders import Run
from oomproof.runner.waiting_run import Cancelled, ListedAsWaiting, stay_without_terminal


@pytest.fixture
def handlers() -> Iterator[None]:
    """Heard, whatever the shell that started the tests ignores."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_terminal_calls_off_only_what_has_not_begun(tmp_path: Path, begun: bool) -> None:
    (tmp_path / "1").mkdir()
    if begun:
        (tmp_path / "1" / "started.json").write_text("{}")
        stay_without_terminal()
    heard = []
    with ListedAsWaiting(Run(tmp_path), None, (os.getpid(), None)):
        for number in (signal.SIGHUP, signal.SIGTERM):
            try:
                os.kill(os.getpid(), number)
            except Cancelled as cancelled:
                heard.append(cancelled.number)
    assert heard == ([signal.SIGTERM] if begun else [signal.SIGHUP, signal.SIGTERM])
    if begun:
        os.kill(os.getpid(), signal.SIGHUP)  # also between the wait and the next attempt
