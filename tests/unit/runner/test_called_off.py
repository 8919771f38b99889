"""A run that waits can be called off; one that has begun is not, by a terminal that is closed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.recording.run_folders import Run
from oomproof.runner.waiting_run import Cancelled, ListedAsWaiting, listen_between_attempts


@pytest.fixture
def handlers() -> Iterator[None]:
    """Heard, whatever the shell that started the tests ignores."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
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
        listen_between_attempts(lambda: None)
    heard = []
    with ListedAsWaiting(Run(tmp_path), None, (os.getpid(), None)):
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except Cancelled as cancelled:
            heard.append(cancelled.number)
    assert heard == ([] if begun else [signal.SIGHUP])
    if begun:
        os.kill(os.getpid(), signal.SIGHUP)  # also between the wait and the next attempt


@pytest.mark.usefixtures("handlers")
def test_a_second_signal_does_not_cut_short_what_the_first_began(tmp_path: Path) -> None:
    """The status of the attempt that ended was lost by it: 143 in five of eight, by default's own way."""
    (tmp_path / "1").mkdir()
    listen_between_attempts(lambda: None)
    waiting = ListedAsWaiting(Run(tmp_path), None, (os.getpid(), None))
    # the last: as around whatever may fail while it waits
    with pytest.raises(Cancelled), waiting, contextlib.suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    listen_between_attempts(lambda: None)
    with pytest.raises(Cancelled):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
