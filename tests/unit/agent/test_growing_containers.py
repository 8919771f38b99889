"""Which list, dict or set of the user's code grows: by name, on every Python, without holding anything of the job's."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from typing import Any

import pytest

from oomproof.agent.growing_containers import GrowingContainers

GLOBAL: list[int | str] = []


class Kept:
    pass


class Cache:
    def __init__(self) -> None:
        self.seen: dict[int, str] = {}


def watch() -> GrowingContainers:
    return GrowingContainers(lambda path: "site-packages" in path or "/lib/python" in path)


def names(rows: list[list[Any]]) -> set[str]:
    return {row[2] for row in rows}


def train(containers: GrowingContainers) -> list[list[Any]]:
    """Asserts would call locals() here: pytest writes them so."""
    cache, kept, queue = Cache(), [], deque(maxlen=3)
    rows: list[list[Any]] = []
    for step in range(8):
        kept.append(Kept())
        cache.seen[step] = "x"
        GLOBAL.append("x")
        queue.append(Kept())
        rows = containers.look(sys._getframe())
    GLOBAL.clear()
    return rows


def test_locals_globals_and_attributes() -> None:
    rows = train(watch())
    assert names(rows) == {"kept", "Cache.seen", "GLOBAL"}
    row = next(row for row in rows if row[2] == "kept")
    assert (row[0], row[1], row[3], row[6], row[7], row[8]) == ("list", "local", "train", 1, 8, "Kept")


def breathe(containers: GrowingContainers) -> list[list[Any]]:
    history, batch = [], []
    rows: list[list[Any]] = []
    for step in range(12):
        history.append(0.5)
        batch.append(Kept())
        if step % 2:
            batch.clear()
        rows = containers.look(sys._getframe())
    return rows


def test_a_log_of_numbers_and_what_is_emptied_are_left_alone() -> None:
    assert breathe(watch()) == []


def dropped(containers: GrowingContainers) -> list[bool]:
    gone = []
    for _ in range(8):
        value = Kept()
        alive = weakref.ref(value)
        containers.look(sys._getframe())
        del value
        gone.append(alive() is None)
    return gone


def test_nothing_is_held() -> None:
    assert all(dropped(watch()))


def configured(containers: GrowingContainers) -> tuple[dict[str, Any], list[str]]:
    learning_rate = 0.1
    config = locals()
    before = sorted(config)
    later = [learning_rate]
    for _ in range(8):
        later.append(0.5)
        containers.look(sys._getframe())
    return config, before


def test_a_function_that_asked_for_its_locals_keeps_them() -> None:
    """`config = locals()` is one dict with the frame's until Python 3.12: neither filled nor emptied by us."""
    config, before = configured(watch())
    assert sorted(config) == before == ["containers", "learning_rate"]


class Model:
    def eval(self) -> None:
        pass


def evaluated(containers: GrowingContainers) -> list[list[Any]]:
    model, outputs = Model(), []
    rows: list[list[Any]] = []
    for _ in range(8):
        model.eval()
        outputs.append(Kept())
        rows = containers.look(sys._getframe())
    return rows


def test_a_method_called_eval_is_no_builtin() -> None:
    assert names(evaluated(watch())) == {"outputs"}


def keep_losses(containers: GrowingContainers) -> list[list[Any]]:
    import torch

    weight = torch.ones(3, requires_grad=True)
    losses, others = [], []
    rows: list[list[Any]] = []
    for _ in range(8):
        losses.append((weight * 2).sum())
        others += [Kept(), Kept()]
        rows = containers.look(sys._getframe())
    return rows


def test_tensors_come_first_and_say_that_they_keep_their_graph() -> None:
    rows = keep_losses(watch())
    assert [row[2] for row in rows] == ["losses", "others"]
    assert rows[0][8] == "Tensor [] with its graph"


def taken(containers: GrowingContainers) -> dict[str, Any]:
    """A helper that keeps its caller's variables: until Python 3.12 the same dict that we would be given."""
    learning_rate = 0.1
    config = by_helper()
    for _ in range(3):
        containers.look(sys._getframe())
    del learning_rate
    return dict(config)


def by_helper() -> dict[str, Any]:
    return sys._getframe(1).f_locals


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="each look gets a proxy of its own since Python 3.13")
def test_who_holds_our_dict_keeps_it() -> None:
    assert taken(watch())["learning_rate"] == 0.1


def made(containers: GrowingContainers) -> list[bool]:
    gone = []
    for _ in range(4):
        batch_class = type("Batch", (), {"__module__": __name__})
        batch = batch_class()
        alive = weakref.ref(batch_class)
        containers.look(sys._getframe())
        del batch, batch_class
        gc.collect()
        gone.append(alive() is None)
    return gone


def test_classes_are_not_held_either() -> None:
    assert all(made(watch()))


class Odd(type):
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("asked")

    def __hash__(cls) -> int:
        raise RuntimeError("asked")


class Hostile(metaclass=Odd):
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("asked")


def test_nothing_of_the_jobs_runs() -> None:
    globals()["hostile"] = Hostile()
    globals()[7] = "a name that is none"  # type: ignore[index]
    try:
        assert names(train(watch())) == {"kept", "Cache.seen", "GLOBAL"}
    finally:
        del globals()["hostile"], globals()[7]  # type: ignore[arg-type]
