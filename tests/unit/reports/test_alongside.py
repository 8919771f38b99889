"""A question asked beside others: its answer, what it raises, and where there are no threads."""

from __future__ import annotations

import threading

import pytest

from oomproof.reports.alongside import Alongside


def test_it_is_asked_at_once_and_answered_when_wanted() -> None:
    asked, go = threading.Event(), threading.Event()

    def ask() -> int:
        asked.set()
        assert go.wait(60)
        return 7

    answer = Alongside(ask)
    assert asked.wait(60)
    go.set()
    assert answer.result() == answer.result() == 7


def test_what_it_raises_is_raised_for_whoever_wants_it() -> None:
    with pytest.raises(ZeroDivisionError):
        Alongside(lambda: 1 // 0).result()


def test_without_a_thread_it_is_asked_when_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert Alongside(lambda: 7).result() == 7
