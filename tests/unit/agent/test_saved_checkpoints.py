"""Where a plain loop put its checkpoint is told; parts of a trainer's own checkpoint and caches of samples are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomproof.agent.trainers import phases_torch


class Agent:
    rank = None

    def __init__(self) -> None:
        self.phase_now, self.step = "train", 40
        self.told: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})

    def failed(self, where: str, error: BaseException) -> None:
        self.failures.append(where)


@pytest.fixture
def agent() -> Agent:
    return Agent()


def saving(agent: Agent) -> Any:
    return phases_torch._telling_where(agent, lambda obj, f, **_: "saved")  # type: ignore[arg-type]


def test_a_checkpoint_is_told_with_its_step(agent: Agent, tmp_path: Path) -> None:
    save = saving(agent)
    assert save({"model": 1}, tmp_path / "ckpt.pt") == "saved"
    assert save({"model": 1}, f=str(tmp_path / "again.pt")) == "saved"
    assert agent.told == [{"kind": "saved", "path": str(tmp_path / "ckpt.pt"), "step": 40}], "one in seconds"


def test_a_path_that_cannot_be_told_is_not_the_jobs_trouble(agent: Agent) -> None:
    class Once:
        def __fspath__(self) -> str:
            raise FileNotFoundError("its folder is gone")

    assert saving(agent)({"model": 1}, Once()) == "saved"
    assert not agent.told and agent.failures == ["phases_torch.saved"]


def test_the_last_of_many_is_told_once_time_has_passed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(phases_torch.time, "monotonic", lambda: clock[0])
    save = saving(agent)
    for _ in range(3):
        save({}, f="/x/ckpt.pt")
        clock[0] += 6.0
    assert len(agent.told) == 3


@pytest.mark.parametrize(
    ("phase", "step", "what", "where"),
    [
        ("save", 40, {}, "/x/optimizer.pt"),  # inside a trainer's own saving
        ("load", None, {}, "/x/ckpt.pt"),  # before any step
        ("train", 40, [1, 2], "/x/sample.pt"),
        ("train", 40, {}, object()),  # a buffer in memory
    ],
)
def test_what_is_no_checkpoint_of_a_loop(agent: Agent, phase: str, step: Any, what: Any, where: Any) -> None:
    agent.phase_now, agent.step = phase, step
    saving(agent)(what, where)
    assert agent.told == []
