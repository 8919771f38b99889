"""How an end is told to those who are not at the terminal, and which ends are worth it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_case import Attempt

from oomproof.alerts.alert import ALERT, END, NEWS, QUIET, message, subject
from oomproof.causes import cause_of
from oomproof.diagnosis.conclusion import Conclusion
from oomproof.diagnosis.judge import judge
from oomproof.recording.run_folders import Run
from oomproof.reports.end_alert import LONG, end_alert, level


@pytest.mark.parametrize(
    ("cause", "seconds", "worth"),
    [
        ("oom-kill-memcg", 1.0, ALERT),
        ("cuda-oom", 1.0, ALERT),
        ("stopped-by-guard", 1.0, ALERT),
        ("other-error", 1.0, NEWS),
        ("segfault", 1.0, NEWS),
        ("interrupted", 9999.0, QUIET),
        ("stopped-by-user", 9999.0, QUIET),
        ("finished", LONG - 1, QUIET),
        ("finished", LONG, NEWS),
    ],
)
def test_which_end_is_worth_a_message(cause: str, seconds: float, worth: str) -> None:
    kind = cause_of(cause)
    assert level(kind, kind.good, seconds) == worth


def test_finished_but_not_all_well_is_news() -> None:
    assert level(cause_of("finished"), False, 1.0) == NEWS


def test_a_death_of_memory_in_words(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.run["name"] = "big"
    attempt.ended(signal=9, memcg_oom_kill=1)
    case = attempt.case()
    alert = end_alert(Run(attempt.dir.parent), Conclusion(judge(case), stored=False), 137)
    assert (alert.kind, alert.level, alert.cause, alert.exit_status) == (END, ALERT, "oom-kill-memcg", 137)
    told = alert.as_json("gpubox", 0.0)
    assert subject(told) == "big on gpubox: ran out of memory (kernel: cgroup limit)"
    assert "holding 4.0 GiB" in message(told) and "\nmore: oomproof why r1" in message(told)


@pytest.mark.parametrize(("status", "worth"), [(0, QUIET), (3, NEWS)])
def test_without_a_verdict_the_status_is_told(tmp_path: Path, status: int, worth: str) -> None:
    alert = end_alert(Run(tmp_path / "r1"), None, status)
    assert alert.level == worth and f"exit status {status}" in alert.text
