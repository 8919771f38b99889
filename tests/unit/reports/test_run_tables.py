"""What `runs show` says beside the chart: words that are true of this run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_case import Attempt

from oomproof.recording.run_folders import Run
from oomproof.reports.run_screen import agent_text, show


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(tmp_path)
    attempt.run["settings"]["agent"] = True
    return attempt


def shown(attempt: Attempt) -> Run:
    attempt.case()
    return Run(attempt.dir.parent)


def test_a_python_job_without_an_agent_is_not_called_no_python(attempt: Attempt) -> None:
    """Its disk was full: the agent could leave nothing behind."""
    assert agent_text(shown(attempt)) == "absent (Python ran with -I, -E or -S, or the disk was full)"


def test_a_shell_has_none(attempt: Attempt) -> None:
    attempt.run["argv"], attempt.processes = ["sh", "-c", "true"], [(4067, "main", "sh")]
    assert agent_text(shown(attempt)) == "absent (no Python, or one that ran with -I, -E or -S)"


def test_a_recording_that_cannot_be_read_tells_of_none(attempt: Attempt) -> None:
    attempt.run["argv"] = ["./train.sh"]
    run = shown(attempt)
    (attempt.dir / "recording.sqlite").write_bytes(b"")
    assert agent_text(run) == "not known: it would be in the recording"


@pytest.mark.parametrize(
    ("limit", "words"), [(None, "none (--watch-only)"), (1 << 30, "1.0 GiB, not enforced (--watch-only)")]
)
def test_watch_only_enforces_nothing(attempt: Attempt, limit: int | None, words: str) -> None:
    """It was "the machine's floor, enforced by oomproof"."""
    attempt.run["settings"] |= {"watch_only": True, "limit": limit}
    assert f"limit  {words}" in show(shown(attempt))
