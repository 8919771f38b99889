"""What a run that has ended says, and the status it gives; who a verb without RUN means."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oomproof.causes import cause_of
from oomproof.cli import resume, stop
from oomproof.cli.main import main
from oomproof.cli.run_end import exit_status
from oomproof.evidence.script_handlers import may_listen
from oomproof.recording import run_folders
from oomproof.recording.run_folders import Run
from oomproof.reports.verdict_text import at_end


def verdict(cause: str, headline: str = "it died") -> Any:
    return SimpleNamespace(
        kind=cause_of(cause),
        headline=headline,
        certainty="proven",
        why="exited with code 0",
        next="nothing",
        next_steps=(),
        all_well=headline == "finished",
    )


def status(tmp_path: Path, cause: str, **ended: int | None) -> int:
    conclusion = SimpleNamespace(verdict=verdict(cause), died_of_memory=cause_of(cause).memory)
    return exit_status(Run(tmp_path), cast(Any, conclusion), {"code": None, "signal": None, **ended})


def test_half_a_result_is_not_success(tmp_path: Path) -> None:
    assert status(tmp_path, "stopped-by-guard", code=0) == 75
    assert (
        status(tmp_path, "stopped-by-guard", code=3) == 3
        and status(tmp_path, "stopped-by-guard", signal=15) == 143
    )
    assert status(tmp_path, "stopped-by-user", code=0) == 0 and status(tmp_path, "finished", code=0) == 0


def test_success_is_one_line() -> None:
    said = io.StringIO()
    assert at_end(verdict("finished", "finished"), said) == "oomproof: finished: exited with code 0"
    assert at_end(verdict("finished", "finished"), said, 1).splitlines()[0] == "verdict  finished"
    lost = verdict("finished", "finished, but the kernel killed 1 of its processes for memory on the way")
    assert len(at_end(lost, said).splitlines()) == 3


@pytest.mark.parametrize(
    ("cause", "told"),
    [("finished", False), ("other-error", False), ("stopped-by-guard", True), ("oom-kill-memcg", True)],
)
def test_quiet_tells_what_oomproof_did_and_deaths_of_memory(cause: str, told: bool) -> None:
    assert bool(at_end(verdict(cause), io.StringIO(), -1)) is told


def run_of(folder: Path, *argv: str) -> Run:
    (folder / "1").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"argv": argv, "cwd": str(folder)}))
    return Run(folder)


def test_nobody_listens_in_a_plain_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("while True: pass\n")
    assert not stop._listens(run_of(tmp_path / "plain", "python", str(script)))
    assert stop._listens(
        run_of(tmp_path / "shell", "sh", "-c", 'until [ -e "$OOMPROOF_STOP_FILE" ]; do sleep 1; done')
    )
    script.write_text("import os\nos.environ['OOMPROOF_STOP_FILE']\n")
    assert stop._listens(run_of(tmp_path / "asks", "python", str(script)))
    plain = run_of(tmp_path / "trainer", "sleep", "9")
    plain.attempt.agent_folder.mkdir(parents=True)
    (plain.attempt.agent_folder / f"{os.getpid()}-listens.txt").write_text("stop save\nthis loop\n")
    assert stop._listens(plain)


def test_resume_without_run_means_the_newest_that_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        SimpleNamespace(id=name, state=lambda state=state: state, paused=lambda paused=paused: paused)
        for name, state, paused in (
            ("ended", "ended", True),
            ("newer", "unguarded", False),
            ("meant", "paused", True),
            ("oldest", "unguarded", True),
        )
    ]
    monkeypatch.setattr(run_folders, "list_runs", lambda: runs)
    assert resume._newest_paused() == "meant"
    del runs[2]
    assert resume._newest_paused() == "oldest"
    del runs[2]
    assert resume._newest_paused() is None


@pytest.mark.parametrize(
    ("command", "listens"),
    [
        (("python", "-c", "import time; time.sleep(9)  # under oomproof"), False),
        (("python", "-c", "import oomproof; oomproof.stop_requested()"), True),
        (("python", "-c", "import beside; beside.train()"), None),
        (("sh", "-c", "python train.py"), None),
        (("python", "-m", "train"), None),
        (("sh", "-c", "cat $OOMPROOF_STOP_FILE"), True),
        (("python", "-c"), None),
        ((), None),
    ],
)
def test_who_may_listen_by_its_code(tmp_path: Path, command: tuple[str, ...], listens: bool | None) -> None:
    """None: not all of its code can be seen; for one that saved half its work that is not the same as no."""
    (tmp_path / "beside.py").touch()
    run = {"argv": list(command), "cwd": str(tmp_path)}
    assert may_listen(run) is listens
    assert may_listen({**run, "settings": {"stop_signal": 10}}) is True


def test_a_verb_without_run_means_the_newest_it_applies_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    states = {"newest": "ended", "middle": "running", "oldest": "paused"}
    runs = [SimpleNamespace(id=name, state=lambda name=name: states[name]) for name in states]
    monkeypatch.setattr(run_folders, "list_runs", lambda: runs)
    assert run_folders.find(None).id == "newest"
    assert run_folders.find(None, run_folders.ALIVE).id == "middle"
    assert run_folders.find(None, ("paused",)).id == "oldest"
    assert run_folders.find(None, ("unguarded",)).id == "middle", (
        "where it applies to none, the message is about the newest that lives"
    )


def test_where_nothing_runs_no_ended_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`oomproof pause` said of a run of last week, which nobody had named, that it is not running."""
    ended = SimpleNamespace(id="a", name="old", number=None, state=lambda: "ended", is_earlier=lambda: False)
    monkeypatch.setattr(run_folders, "list_runs", lambda: [ended])
    for verb, status in (("pause", 125), ("resume", 125), ("save", 125), ("stop", 0), ("watch", 0)):
        assert main([verb]) == status
        assert capsys.readouterr().err.startswith("oomproof: no run is running\n"), verb


def test_a_verb_that_acts_means_the_newest_of_that_name_it_applies_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"newest": "ended", "middle": "running", "oldest": "paused"}
    runs = [
        SimpleNamespace(id=name, info={"name": "twin"}, state=lambda name=name: states[name])
        for name in states
    ]
    monkeypatch.setattr(run_folders, "list_runs", lambda: runs)
    assert run_folders.find("twin").id == "newest", "whoever only reads means the newest"
    assert run_folders.find("twin", run_folders.ALIVE).id == "middle"
    assert run_folders.find("twin", ("paused", "unguarded")).id == "oldest"
    assert run_folders.find("newest", run_folders.ALIVE).id == "newest", "an id is that run and no other"
    assert run_folders.find("twin", ("unguarded",)).id == "middle", "one that lives before one that has ended"


def test_a_report_tells_also_why_nothing_was_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["run", "--need", "900T", "--report", str(report), "--", "true"]) == 69
    told = json.loads(report.read_text())
    assert (
        told["verdict"] is None
        and told["refused"]["status"] == 69
        and "never fits" in told["refused"]["message"]
    )
    assert "never fits" in capsys.readouterr().err
