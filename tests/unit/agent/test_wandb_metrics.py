"""What a script logs with wandb reaches the sweep that started it, and nobody else."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomproof.agent import wandb_metrics
from oomproof.sweeps.metric_sources import read_logged


class Agent:
    def __init__(self) -> None:
        self.failures: list[str] = []

    def failed(self, where: str, error: BaseException) -> None:
        self.failures.append(where)


class Tensor:
    """One element, or several: then it is no number."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __float__(self) -> float:
        (value,) = self.values
        return value


@pytest.fixture
def logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """wandb's Run with our hook in it, its calls, and what is written down as the script ends."""
    at_exit: list[Any] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setenv("OOMPROOF_METRIC_FILE", str(tmp_path / "metric"))
    monkeypatch.delenv("RANK", raising=False)

    class Run:
        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []

        def log(self, data: Any, step: int | None = None, commit: bool | None = None) -> str:
            self.calls.append((data, step, commit))
            return "logged"

    agent = Agent()
    wandb_metrics.install(SimpleNamespace(Run=Run), agent)  # type: ignore[arg-type]
    return SimpleNamespace(run=Run(), agent=agent, at_exit=at_exit, file=tmp_path / "metric")


def test_the_newest_value_to_every_digit(logging: Any) -> None:
    for loss in (0.9, 0.5, 1 / 3):
        assert (
            logging.run.log({"val/loss": loss, "note": "text", "done": True}, step=3, commit=False)
            == "logged"
        )
    assert logging.run.calls[2][1:] == (3, False), "wandb has got all of it"
    assert (told := read_logged(logging.file, "val/loss")) is not None and told.value == 0.9, "once a second"
    logging.at_exit[0]()
    told = read_logged(logging.file, "val_loss")
    assert told is not None and told.value == 1 / 3 and told.source == "wandb.log"
    assert read_logged(logging.file, "note") is None and read_logged(logging.file, "done") is None


def test_nested_names_tensors_and_what_is_no_number(logging: Any) -> None:
    logging.run.log({"eval": {"loss": Tensor(0.25), "all": Tensor(1.0, 2.0)}, "image": object()})
    assert (told := read_logged(logging.file, "eval.loss")) is not None and told.value == 0.25
    assert read_logged(logging.file, "eval.all") is None
    assert logging.run.log(None) == "logged" and logging.run.log(data={"x": 1}) == "logged"
    assert not logging.agent.failures


def test_a_fork_tells_nothing_and_a_lost_folder_is_no_error_of_the_script(
    logging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: mine + 1)
    assert logging.run.log({"loss": 1.0}) == "logged" and read_logged(logging.file, "loss") is None
    monkeypatch.setattr("os.getpid", lambda: mine)
    logging.file.parent.rmdir()
    logging.at_exit[0]()
    assert logging.agent.failures == ["wandb_metrics.write"]


@pytest.mark.parametrize("change", [("OOMPROOF_METRIC_FILE", ""), ("RANK", "3")])
def test_outside_a_sweep_and_on_other_ranks_nothing_is_hooked(
    change: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OOMPROOF_METRIC_FILE", "/nowhere")
    monkeypatch.setenv(*change)
    run = SimpleNamespace(log=print)
    wandb_metrics.install(SimpleNamespace(Run=run), Agent())  # type: ignore[arg-type]
    assert run.log is print
