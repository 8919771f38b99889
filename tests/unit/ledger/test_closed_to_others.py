"""Files, folders and sockets of ours are closed to others, and no link of theirs is followed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from test_ledger import entry

from oomproof.errors import OomproofError
from oomproof.guard.guard_actions import STOP_TEXT, Actions, TaskThread
from oomproof.ledger import ledger_store
from oomproof.recording import run_folders
from oomproof.recording.attempt import Attempt
from oomproof.reports import report_file

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
# the front listens for the agents a moment after it has started the job
WAIT = """
import glob, sys, time
end = time.monotonic() + 20
while not glob.glob(sys.argv[2] + "/agent-*") and time.monotonic() < end:
    time.sleep(0.01)
"""
LOOK = """
import os, sys
for base in sys.argv[1:]:
    for folder, folders, files in os.walk(base):
        for name in folders + files:
            found = os.lstat(os.path.join(folder, name))
            if found.st_mode & 0o077:
                print("open:", oct(found.st_mode), os.path.join(folder, name))
        if any(name.startswith("agent-") for name in files):
            print("saw a socket")
"""


def oomproof(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oomproof", *words], capture_output=True, text=True, timeout=60, **options
    )  # type: ignore[call-overload, no-any-return]


def test_whatever_the_umask_nothing_of_a_run_is_open(
    folders_of_their_own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory(dir="/tmp") as runtime:  # the name of a socket must be short
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        nothing_is_open([str(folders_of_their_own / "state" / "oomproof"), f"{runtime}/oomproof"])


def nothing_is_open(bases: list[str]) -> None:
    before = os.umask(0)
    try:
        done = oomproof("run", "--", sys.executable, "-c", WAIT + LOOK, *bases)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    assert "open:" not in done.stdout and "saw a socket" in done.stdout
    after = subprocess.run([sys.executable, "-c", LOOK, *bases], capture_output=True, text=True, check=True)
    assert "open:" not in after.stdout
    for base in bases:
        assert stat.S_IMODE(os.stat(base).st_mode) == 0o700


def test_a_report_replaces_a_link_and_leaves_what_it_named(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "report.json").symlink_to(tmp_path / "precious")
    done = oomproof("run", "--report", "report.json", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "precious").read_text() == "mine"
    report = tmp_path / "report.json"
    assert not report.is_symlink() and json.loads(report.read_text())["verdict"]["cause"] == "finished"
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "report.json"]


def test_a_report_into_a_pipe_leaves_the_pipe(tmp_path: Path) -> None:
    """As root, --report /dev/null would have put a file in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    report_file.save(pipe, b"report")
    assert os.read(reader, 100) == b"report"
    os.close(reader)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    done = oomproof("run", "--report", "/dev/stdout", "--", "true")
    assert json.loads(done.stdout)["verdict"]["cause"] == "finished"


def test_a_stop_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "stop"
    link.symlink_to(tmp_path / "elsewhere")
    actions = Actions(None, Attempt(tmp_path), TaskThread(), [link, tmp_path / "other"])  # type: ignore[arg-type]
    actions._write_stop_files("full")
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "other").read_text().startswith(STOP_TEXT)


@needs_root
def test_another_users_state_folder_is_refused(folders_of_their_own: Path) -> None:
    folder = folders_of_their_own / "state" / "oomproof"
    folder.mkdir()
    os.chown(folder, 4242, 4242)
    with pytest.raises(OomproofError, match="it belongs to another user"):
        run_folders.new_run()
    assert list(folder.iterdir()) == []


def test_a_ledger_where_everybody_writes_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(OomproofError, match="is not safe"):
        ledger_store.ledger_folder(str(tmp_path))
    tmp_path.chmod(0o700)
    assert ledger_store.ledger_folder(str(tmp_path)) == (tmp_path, False)


@needs_root
def test_a_ledger_in_another_users_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 4242, 4242)
    with pytest.raises(OomproofError, match="does not belong to root"):
        ledger_store.ledger_folder(str(tmp_path))


def test_a_fifo_that_the_ledger_names_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    os.mkfifo(tmp_path / "1" / "started.json")
    attempt = entry("r", folder=str(tmp_path)).attempt
    assert attempt is not None and attempt.started() == {}


@pytest.mark.parametrize("name", ["../../../etc", "/etc/passwd", "a/b", "..", "."])
def test_a_name_is_no_path(folders_of_their_own: Path, name: str) -> None:
    assert oomproof("run", "--name", name, "--", "true").returncode == 0
    (folder,) = run_folders.runs_folder().iterdir()
    assert run_folders.find(name).folder == folder
    for text in ("..", "../runs", str(folder)):
        if text != name:
            with pytest.raises(OomproofError, match="no run is called"):
                run_folders.find(text)
