"""What an attempt held is given back: only once no traceback holds its frames."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from oomproof.sizing.fitting.released_memory import release


class Tensor:
    """Something whose end can be seen."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def failing(kept: list[weakref.ref[Tensor]], depth: int = 5) -> None:
    local = Tensor()
    kept.append(weakref.ref(local))
    if depth:
        failing(kept, depth - 1)
    cycle: list[Any] = [local]
    cycle.append(cycle)
    raise MemoryError("out of memory")


def alive(kept: list[weakref.ref[Tensor]]) -> int:
    return sum(tensor() is not None for tensor in kept)


def test_inside_the_except_block_everything_is_alive_and_outside_nothing() -> None:
    kept: list[weakref.ref[Tensor]] = []
    error: BaseException | None = None
    try:
        failing(kept)
    except MemoryError as raised:
        gc.collect()
        assert alive(kept) == 6
        error = raised
    release(error)
    assert alive(kept) == 0 and str(error) == "out of memory"


def test_those_behind_it_too() -> None:
    kept: list[weakref.ref[Tensor]] = []
    error: BaseException | None = None
    try:
        try:
            failing(kept)
        except MemoryError as raised:
            raise RuntimeError("the step failed") from raised
    except RuntimeError as raised:
        error = raised
    release(error)
    assert alive(kept) == 0


def test_what_a_notebook_keeps_of_an_earlier_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Tensor]] = []
    error: BaseException | None = None
    try:
        failing(kept)
    except MemoryError as raised:
        error = raised
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    release()
    assert alive(kept) == 0


def test_an_error_of_another_kind_stays_for_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    error: BaseException | None = None
    try:
        raise ValueError("a mistake of the user's")
    except ValueError as raised:
        error = raised
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    release()
    assert error.__traceback__ is not None
