"""What a run's own disk does not take is found elsewhere, and comes to its place when there is space."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers_disk import fill

from oomproof.evidence.case_collector import collect
from oomproof.recording import spare_files
from oomproof.recording.attempt import Attempt
from oomproof.recording.state_files import runtime_folder
from oomproof.runner.attempt_files import reserve_exit, write_exit, write_started


@pytest.fixture
def attempt(small_disk: Path) -> Attempt:
    """On a disk that is full before the keeper could reserve anything."""
    folder = small_disk / "20260101-000000-abc" / "1"
    folder.mkdir(parents=True)
    fill(small_disk)
    return Attempt(folder)


def end(attempt: Attempt) -> None:
    folder, spares = str(attempt), spare_files.spare_folders(attempt.folder)
    assert write_started(folder, {"job": {"pid": 7, "start": 1}}, spares) is None
    write_exit(folder, reserve_exit(folder), {"code": 5}, spares)


def test_readers_find_it_and_it_comes_home(attempt: Attempt, small_disk: Path) -> None:
    end(attempt)
    assert not attempt.exit_json_file.exists() and not attempt.started_file.exists()
    assert attempt.exit() == {"code": 5} and attempt.has_ended()
    assert attempt.started() == {"job": {"pid": 7, "start": 1}}
    spare_files.bring_home()
    assert attempt.exit() == {"code": 5}, "no space yet: it stays where it is"
    (small_disk / "filler").unlink()
    spare_files.bring_home()
    assert json.loads(attempt.exit_json_file.read_text()) == {"code": 5}
    assert not list((runtime_folder() / "spare").glob("*"))


def test_the_verdict_knows_it_too(attempt: Attempt, small_disk: Path) -> None:
    """Seen in chaos (seed 256): finished, and told that "how it ended is not known", which was then stored."""
    end(attempt)
    case = collect(attempt)
    assert case.exit.status is not None and case.exit.status.code == 5
    assert not {"started.json", "exit.json"} & {gap.source for gap in case.missing}
    assert attempt.was_begun()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_it_is_found_while_another_run_brings_it_home(
    attempt: Attempt, small_disk: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    end(attempt)
    (small_disk / "filler").unlink()
    read = spare_files.read

    def moved(folder: Path, name: str) -> dict[str, object]:
        value = read(folder, name) if moment == "after" else {}
        spare_files.bring_home()
        return value or read(folder, name)

    monkeypatch.setattr(spare_files, "read", moved)
    assert attempt.exit() == {"code": 5} and attempt.started()["job"]["pid"] == 7


def test_it_is_written_at_its_place_where_there_is_space_at_the_end(
    attempt: Attempt, small_disk: Path
) -> None:
    folder = str(attempt)
    reserved = reserve_exit(folder)
    (small_disk / "filler").unlink()
    write_exit(folder, reserved, {"code": 5}, spare_files.spare_folders(attempt.folder))
    assert json.loads(attempt.exit_json_file.read_text()) == {"code": 5}


def test_another_attempt_is_not_meant(attempt: Attempt, tmp_path: Path) -> None:
    """Of another state folder, with the same id by chance."""
    end(attempt)
    assert Attempt(tmp_path / "other" / attempt.run_folder.name / "1").exit() == {}


def test_without_a_runtime_folder_shared_memory_serves(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_files, "_MEMORY", tmp_path)
    (runtime_folder() / "spare").touch()  # no folder can be made there
    end(attempt)
    assert (tmp_path / f"oomproof-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    assert attempt.exit() == {"code": 5}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_what_belongs_to_somebody_else_is_neither_written_to_nor_believed(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_files, "_MEMORY", tmp_path)
    (runtime_folder() / "spare").touch()
    theirs = tmp_path / f"oomproof-{os.getuid()}"
    spare = theirs / "spare" / attempt.run_folder.name / "1"
    spare.mkdir(parents=True)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(OSError, match="No space left"):
        end_only(attempt)
    (spare / "exit.json").write_text(json.dumps({"attempt_folder": str(attempt), "code": 0}))
    assert attempt.exit() == {}


def end_only(attempt: Attempt) -> None:
    write_exit(str(attempt), None, {"code": 5}, spare_files.spare_folders(attempt.folder))


def test_a_run_that_was_removed_leaves_nothing(attempt: Attempt, small_disk: Path) -> None:
    end(attempt)
    attempt.run_folder.rename(small_disk / "gone")
    spare_files.bring_home()
    assert not list((runtime_folder() / "spare").glob("*"))
    with pytest.raises(OSError, match="No such file"):
        end_only(attempt)
    assert not list((runtime_folder() / "spare").glob("*"))
