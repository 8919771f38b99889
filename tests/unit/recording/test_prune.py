"""Old recordings go when asked to; a run that lives, and whatever is not a run, never."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.recording import prune, run_folders, state_files
from oomproof.recording.prune import Rules, Stored, choose

DAY = 86400.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def made(name: str, days: float, size: int = 4096) -> run_folders.Run:
    run = run_folders.new_run()
    state_files.write_json(run.folder / "run.json", {"name": name, "created": time.time() - days * DAY})
    state_files.write_json(run.attempt / "exit.json", {"code": 0})
    (run.attempt / "output.log").write_bytes(b"x" * size)
    return run_folders.Run(run.folder)


def names() -> set[str]:
    return {run.name for run in run_folders.list_runs()}


def test_it_only_says_so_without_yes(capsys: pytest.CaptureFixture[str]) -> None:
    for days in range(5):
        made(f"d{days}", days)
    for flags in (["--keep", "2"], ["--keep", "2", "--dry-run"]):
        assert main(["runs", "prune", *flags]) == 0
        said = capsys.readouterr().out
        assert (
            "3 of 5 runs would be removed" in said and "--yes" in said and "d4" in said and "d1" not in said
        )
    assert len(names()) == 5
    assert main(["runs", "prune", "--keep", "2", "--yes"]) == 0
    assert "3 of 5 runs removed" in capsys.readouterr().out and names() == {"d0", "d1"}


def test_by_age_and_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    for days in (0, 10, 40):
        made(f"d{days}", days, size=1 << 20)
    assert main(["runs", "prune", "--older-than", "30d", "--yes"]) == 0
    assert names() == {"d0", "d10"}
    assert main(["runs", "prune", "--total", "1.5M", "--yes", "--json"]) == 0
    value = json.loads(capsys.readouterr().out.partition("stay\n")[2])
    assert names() == {"d0"} and [each["name"] for each in value["runs"]] == ["d10"]
    assert value["removed"] and value["kept"] == 1 and value["bytes"] >= 1 << 20


@pytest.mark.parametrize("name", ["keeper.lock", "guard.lock", "waiting.lock"])
def test_a_live_run_stays(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = made("old", 99)
    # ended, but its keeper or guard still cleans up; or not even begun
    lock = state_files.take_lock(run.folder / name)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out and names() == {"old"}
    assert prune.remove(run) == "it lives"
    assert lock is not None
    os.close(lock)
    assert prune.remove(run) is None and names() == set()


def test_without_a_rule_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    made("one", 99)
    assert main(["runs", "prune", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "nothing is removed without a rule" in said and "--older-than 30d" in said and names() == {"one"}


def test_contradicting_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "prune", "--keep", "1", "--yes", "--dry-run"]) == 2
    assert main(["runs", "prune", "--older-than", "sometime"]) == 2


def test_links_and_foreign_folders_stay(tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious"
    (elsewhere / "1").mkdir(parents=True)
    (elsewhere / "run.json").write_text("{}")
    made("x", 1)
    (run_folders.runs_folder() / "link").symlink_to(elsewhere)
    assert prune.remove(run_folders.Run(run_folders.runs_folder() / "link")) == "not a folder of runs"
    assert prune.remove(run_folders.Run(elsewhere)) == "not a folder of runs"
    assert (elsewhere / "run.json").exists()


def test_a_small_old_run_does_not_outlive_a_large_new_one() -> None:
    sizes = [(3.0, 10, False), (2.0, 100, False), (1.0, 1, False)]
    found = [Stored(run_folders.Run(Path(f"/r/{n}")), *each) for n, each in enumerate(sizes)]
    assert [each.created for each in choose(found, Rules(total=50))] == [1.0, 2.0]


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 1 << 40), st.booleans()), max_size=12),
    st.builds(
        Rules,
        st.none() | st.integers(0, 5),
        st.none() | st.floats(0, 1e9),
        st.none() | st.integers(0, 1 << 41),
    ),
)
def test_who_goes(found: list[tuple[float, int, bool]], rules: Rules) -> None:
    all_of = [Stored(run_folders.Run(Path(f"/r/{n}")), *each) for n, each in enumerate(found)]
    going = choose(all_of, rules)
    kept = [each for each in all_of if each not in going]
    assert not any(each.alive for each in going)
    if rules.newest is not None:
        assert sum(not each.alive for each in kept) <= rules.newest
    if rules.total is not None:
        idle = sum(each.size for each in kept if not each.alive)
        assert idle <= rules.total
    if rules == Rules():
        assert not going
