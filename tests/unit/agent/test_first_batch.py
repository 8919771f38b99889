"""Loading ends where the first batch is asked for, not where it has arrived: making it may be what memory is too small for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.agent.trainers import phases_torch


class Agent:
    def __init__(self) -> None:
        self.base = "load"
        self.on_batch: list[Any] = []
        self.failures: list[str] = []

    def set_base(self, name: str) -> None:
        self.base = name

    def failed(self, where: str, error: BaseException) -> None:
        self.failures.append(where)


def watched(agent: Agent, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    class Iterator:
        def __init__(self, loader: str) -> None:
            self.loader, self.base = loader, agent.base

        def __next__(self) -> str:
            return "batch"

    torch = SimpleNamespace(is_grad_enabled=lambda: gradients)
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setattr(phases_torch._Mode, "evaluating", False)
    phases_torch._watch_loader(SimpleNamespace(_BaseDataLoaderIter=Iterator), agent)  # type: ignore[arg-type]
    return Iterator


@pytest.mark.parametrize(("gradients", "phase"), [(True, "train"), (False, "eval")])
def test_loading_is_over_before_the_first_batch_is_made(
    gradients: bool, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    iterator = watched(agent, gradients, monkeypatch)("loader")
    assert iterator.loader == "loader" and iterator.base == phase and not agent.failures
    assert next(iterator) == "batch" and agent.base == phase


def test_a_loop_that_runs_keeps_its_phase_until_it_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    iterator = watched(agent, False, monkeypatch)
    agent.base = "train"
    assert iterator("held out").base == "train"


def test_a_failure_of_ours_is_not_the_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    made = watched(agent, True, monkeypatch)

    def broken(name: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(agent, "set_base", broken)
    assert made("loader").loader == "loader" and agent.failures == ["phases_torch.loader"]
