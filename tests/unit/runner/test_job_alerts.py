"""What an alert of a run says: its figures, the time left, what comes, what to type."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oomproof.alerts.alert import Alert, message
from oomproof.guard.guarded_job import LatestReading
from oomproof.machine.cgroups import JobMemory
from oomproof.recording.run_folders import Run
from oomproof.runner.job_alerts import JobAlerts

GIB = 1 << 30


class Sent:
    is_on = True

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.started: tuple[Any, ...] = ()

    def start(self, *words: Any) -> None:
        self.started = words

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)


@pytest.fixture
def told(tmp_path: Path) -> Any:
    def tell(kind: str, text: str = "why", terms: str = "", watch_only: bool = False, **moment: Any) -> Alert:
        memory = JobMemory(19 * GIB, 0, 0, 0, 0, 19 * GIB)
        guarded = SimpleNamespace(
            moment=LatestReading(t=100.0, available=3 * GIB, memory=memory, **moment),
            settings=SimpleNamespace(grace=30.0, limit=20 * GIB, watch_only=watch_only),
            job=SimpleNamespace(leader=4242, leader_start=7),
        )
        sent = Sent()
        alerts = JobAlerts(cast(Any, sent), Run(tmp_path / "20260101-000000-abc"), cast(Any, guarded))
        alerts.start()
        lost = sent.started[1]
        assert sent.started[2] == (4242, 7) and lost.command == "oomproof watch 20260101-000000-abc"
        alerts.action(kind, text, terms)
        return sent.alerts[0]

    return tell


def test_a_pause_says_when_it_ends_and_how_to_end_it(told: Any) -> None:
    alert = told("pause", "1.0 GiB of RAM available", "resumes when 3 GiB are available")
    assert (alert.kind, alert.held, alert.available, alert.limit) == ("pause", 19 * GIB, 3 * GIB, 20 * GIB)
    assert alert.next == "resumes when 3 GiB are available"
    assert alert.command == "oomproof resume 20260101-000000-abc"
    assert "OOMPROOF_DISABLE=1" in message(alert.as_json("here", 0.0))


@pytest.mark.parametrize(
    ("kind", "following", "verb"),
    [
        ("warn", "paused, or asked to save and stop", "stop"),
        ("request", "SIGTERM follows when memory is still short after 30 s", "pause"),
        ("term", "killed if it has not ended after 30 s", "why"),
        ("kill", "", "why"),
        ("resume", "", "pause"),
        ("withdraw", "the job continues", "stop"),
        ("above", "oomproof inspect 20260101-000000-abc", "stop"),
        ("worker-killed", "", "stop"),
    ],
)
def test_every_action_says_what_comes_and_what_to_type(
    told: Any, kind: str, following: str, verb: str
) -> None:
    alert = told(kind)
    assert following in alert.next and "{" not in alert.next
    assert alert.command == f"oomproof {verb} 20260101-000000-abc"


def test_the_time_left_is_of_what_is_told(told: Any) -> None:
    assert told("warn", time_to_full=60.0).seconds_left == 60.0
    assert told("leak", time_to_full=60.0, full_at=4000.0).seconds_left == 3900.0
    assert told("kill", time_to_full=60.0).seconds_left is None
    assert told("request", "full in about 0.8 s", time_to_full=60.0).seconds_left is None


def test_who_only_watches_does_nothing(told: Any) -> None:
    assert told("warn", watch_only=True).next == "nothing is done (--watch-only)"
