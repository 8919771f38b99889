"""The folder where runs see each other is our own, whoever was in /tmp first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.recording import state_files
from oomproof.recording.state_files import state_folder
from oomproof.runner import agent_feed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of the test's own, and no runtime folder of the session's."""
    monkeypatch.setattr(state_files, "TEMPORARY", tmp_path)
    monkeypatch.setattr(state_files, "_said", set())
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    return tmp_path


def ours(tmp: Path) -> Path:
    return tmp / f"oomproof-{os.getuid()}"


def test_it_is_made_private_and_made_private_again(tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state_files.runtime_folder() == ours(tmp)
    ours(tmp).chmod(0o777)
    assert state_files.runtime_folder().stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err == ""


def taken_by_a_link(tmp: Path) -> None:
    (tmp / "trap").mkdir()
    ours(tmp).symlink_to(tmp / "trap")


def taken_by_a_file(tmp: Path) -> None:
    ours(tmp).touch()


def taken_by_another(tmp: Path) -> None:
    ours(tmp).mkdir(mode=0o777)
    os.chown(ours(tmp), 4242, 4242)


@pytest.mark.parametrize(
    "taken", [taken_by_a_link, taken_by_a_file, pytest.param(taken_by_another, marks=needs_root)]
)
def test_one_that_is_not_ours_is_told_once_and_another_serves(
    tmp: Path, capsys: pytest.CaptureFixture[str], taken: object
) -> None:
    taken(tmp)  # type: ignore[operator]
    found = state_files.runtime_folder()
    assert found == state_files.runtime_folder()
    assert found.parent == state_folder() and found.stat().st_mode & 0o777 == 0o700
    told = capsys.readouterr().err
    assert told.count(f"oomproof-{os.getuid()}") == 1 and str(found) in told
    assert "hint: set XDG_RUNTIME_DIR" in told
    assert not list((tmp / "trap").glob("*"))


def test_the_sessions_own_comes_first_and_a_link_in_it_is_not_followed(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = tmp / "session"
    session.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert state_files.runtime_folder() == session / "oomproof"
    (session / "oomproof").rmdir()
    (session / "oomproof").symlink_to(tmp)
    assert state_files.runtime_folder() == ours(tmp)


@needs_root
def test_a_sessions_folder_of_another_user_is_not_used(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sudo -E` leaves the variable as it was, and its owner could move our folder away."""
    session = tmp / "session"
    session.mkdir()
    os.chown(session, 4242, 4242)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert state_files.runtime_folder() == ours(tmp)
    assert os.listdir(session) == [] and capsys.readouterr().err == ""


@pytest.mark.parametrize("umask", ["000", "022"])
def test_the_folders_above_the_state_folder_are_private_too(tmp_path: Path, umask: str) -> None:
    code = (
        f"import os; from pathlib import Path; os.umask(0o{umask});"
        "from oomproof.recording.state_files import make_private; make_private(Path('a/b/oomproof'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    made = [tmp_path / name for name in ("a", "a/b", "a/b/oomproof")]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700"] * 3


def test_no_folder_at_all_is_said(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken_by_a_file(tmp)
    (tmp / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp / "file"))
    for _ in range(2):
        with pytest.raises(OomproofError, match="cannot make"):
            state_files.runtime_folder()
    assert capsys.readouterr().err.count("the runs do not see each other") == 1


def test_the_agents_socket_never_lies_in_anothers_folder(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_feed, "_LONGEST", 4096)  # however deep the test's own folders lie
    taken_by_a_link(tmp)
    path = agent_feed.socket_path("20261115-210000-abc")
    assert path.parent == state_files.runtime_folder() != ours(tmp)


@needs_root
@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_run_says_so(folders_of_their_own: Path, tmp_path: Path, detach: tuple[str, ...]) -> None:
    session = tmp_path / "session"
    session.mkdir()
    (session / "oomproof").mkdir()
    os.chown(session / "oomproof", 4242, 4242)
    program = (
        "import sys\nfrom pathlib import Path\nfrom oomproof.recording import state_files\n"
        f"state_files.TEMPORARY = Path({str(tmp_path)!r}) / 'nowhere'\n"
        "from oomproof.cli.main import main\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", *detach, "--", "true"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(session)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("belongs to another user") == 1
