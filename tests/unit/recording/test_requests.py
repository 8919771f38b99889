"""Requests to save and stop: taken back when there is no longer a reason, unless somebody already acts on them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from oomproof.guard.guard_actions import Actions, TaskThread
from oomproof.guard.job_handle import Job
from oomproof.recording.attempt import Attempt
from oomproof.runner.guard_settings import usual_peak
from oomproof.runner.job_watch import shall_save


class Withdrawn:
    """One request, asked for and taken back."""

    def __init__(self, attempt: Attempt, stop_signal: int | None = None) -> None:
        self.attempt, self.said = attempt, [""]
        task_thread = TaskThread()
        actions = Actions(cast(Job, _NoJob()), attempt, task_thread, [attempt / "stop"], stop_signal)
        actions.take("request", "it grows")
        actions.withdraw("it no longer grows", lambda kind, why: self.said.append(f"{kind}: {why}"))
        task_thread.close()

    @property
    def actions(self) -> list[str]:
        return [
            json.loads(line)["action"] for line in (self.attempt / "actions.jsonl").read_text().splitlines()
        ]


def test_an_action_is_recorded_with_what_it_was_for(tmp_path: Path) -> None:
    attempt, task_thread = Attempt(tmp_path), TaskThread()
    actions = Actions(cast(Job, _NoJob()), attempt, task_thread, [])
    actions.take("warn", "it grows", scope="limit", others_growth=False)
    actions.take("warn", "firefox grows", scope="machine", others_growth=True)
    task_thread.close()
    lines = [(line.get("scope"), line.get("others_growth")) for line in attempt.actions()]
    assert lines == [("limit", False), ("machine", True)]


@pytest.mark.parametrize("kind", ["request", "term", "kill", "pause"])
def test_what_a_person_does_stands_in_the_record_before_it_is_done(tmp_path: Path, kind: str) -> None:
    """The run's own guard judges the moment the job has ended: `oomproof stop` was then told as somebody else's SIGTERM."""
    attempt, task_thread = Attempt(tmp_path), TaskThread()
    recorded: list[list[str]] = []

    class Ends(_NoJob):
        def signal_leader(self, number: int) -> bool:
            return recorded.append([str(line["action"]) for line in attempt.actions()]) is None

        kill = pause = resume = lambda self: self.signal_leader(0)
        freezer = property(lambda self: self)

    Actions(cast(Job, Ends()), attempt, task_thread, [], 10, by="user").take(kind, "oomproof stop")
    task_thread.close()
    assert recorded and set(map(tuple, recorded)) == {(kind,)} and len(attempt.actions()) == 1


class _NoJob:
    def hears(self, number: int) -> bool:
        return True

    def ask_by_signal(self, number: int) -> bool:
        return self.signal_leader(number)

    def signal_leader(self, number: int) -> bool:
        return True


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Of a job in which a trainer listens."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / f"{os.getpid()}-listens.txt").write_text("save stop\nthe Hugging Face Trainer\n")
    return Attempt(tmp_path)


def test_a_request_nobody_took_is_taken_back_and_told(attempt: Attempt) -> None:
    done = Withdrawn(attempt)
    assert not (attempt / "stop").exists()
    assert done.actions == ["request", "withdraw"] and done.said[-1] == "withdraw: it no longer grows"


@pytest.mark.parametrize("mark", ["stop.taken", "stop.at"])
def test_what_somebody_acts_on_is_not_called_withdrawn(attempt: Attempt, mark: str) -> None:
    (attempt / "agent" / mark).touch()
    assert Withdrawn(attempt).actions == ["request"]


def test_who_may_have_read_it_unseen_was_asked(tmp_path: Path) -> None:
    """A script that looks for the file itself, or got a signal: its end may be its answer."""
    for folder, stop_signal in ((tmp_path / "file", None), (tmp_path / "signal", 10)):
        folder.mkdir()
        assert Withdrawn(Attempt(folder), stop_signal).actions == ["request"]
        assert not (folder / "stop").exists()


def test_a_users_own_stop_file_stays(attempt: Attempt) -> None:
    (attempt / "stop").write_text("mine")
    assert Withdrawn(attempt).actions == ["request"]
    assert (attempt / "stop").read_text() == "mine"


@pytest.mark.parametrize(
    ("left", "sure", "saved_at", "due"),
    [
        (None, False, None, False),
        (60.0, True, None, True),
        (60.0, False, None, False),  # it may be a cache that fills
        (1000.0, True, None, False),
        (60.0, True, 9000.0, False),
        (60.0, True, 1000.0, True),
    ],
)
def test_a_checkpoint_is_asked_for_when_the_growth_is_sure_and_the_end_is_near(
    left: float | None, sure: bool, saved_at: float | None, due: bool
) -> None:
    assert shall_save(left, sure, 10_000.0, saved_at) is due


def test_a_lower_bound_is_no_usual_peak() -> None:
    assert usual_peak({"need": 5, "basis": "declared"}) == 5
    assert usual_peak({"need": 5, "basis": "the most it held in 3 runs"}) == 5
    assert usual_peak({"need": 5, "basis": "at least: what it held in a run that ended early"}) is None
    assert usual_peak({"need": None}) is None and usual_peak(None) is None
