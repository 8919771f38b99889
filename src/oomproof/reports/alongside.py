"""One long question to a recording beside others: SQLite counts without the interpreter's lock, and most machines have two cores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Alongside(Generic[T]):
    """What ``ask`` opens it must close: a connection belongs to its thread."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._work, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: it is asked when the answer is wanted
            self._thread = None

    def _work(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """The answer, or what was raised."""
        if self._thread is None:
            return self._ask()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer[0]
