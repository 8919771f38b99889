"""Of a run that was killed while it waited the folder goes; whatever else the ledger names stays."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_ledger import entry

from oomproof.recording import run_folders, state_files
from oomproof.runner.queue_wait import _sweep
from oomproof.runner.waiting_run import Waiting


def waiting_run() -> Path:
    folder = run_folders.new_run().folder
    for name in ("run.json", "waiting.json"):
        (folder / name).write_text("{}")
    (folder / "waiting.lock").touch()
    return folder


def sweep(folder: Path) -> None:
    _sweep([entry("r", folder=str(folder))])


def test_one_that_only_waited_goes() -> None:
    folder = waiting_run()
    (folder / ".waiting.json.123").touch()  # killed while it wrote
    (folder / "1" / "verdict.json").write_text("{}")  # somebody asked meanwhile
    (folder / "guard.lock").touch()
    sweep(folder)
    assert not folder.exists()


def test_one_that_waits_still_stays() -> None:
    folder = waiting_run()
    lock = state_files.take_lock(folder / "waiting.lock")
    assert lock is not None
    sweep(folder)
    os.close(lock)
    assert (folder / "waiting.json").exists()


def ran(folder: Path) -> None:
    (folder / "1" / "started.json").write_text("{}")


def printed(folder: Path) -> None:
    (folder / "1" / "output.log").write_text("step 1\n")


def ended(folder: Path) -> None:
    (folder / "1" / ".exit.json").write_text(" ")


def kept(folder: Path) -> None:
    (folder / "checkpoint.pt").write_text("weights")


def unmarked(folder: Path) -> None:
    (folder / "waiting.json").unlink()


def linked_attempt(folder: Path) -> None:
    (folder / "1").rmdir()
    (folder / "elsewhere").mkdir()
    (folder / "1").symlink_to(folder / "elsewhere")


@pytest.mark.parametrize("more", [ran, printed, ended, kept, unmarked, linked_attempt])
def test_one_with_anything_in_it_stays(more: Callable[[Path], None]) -> None:
    folder = waiting_run()
    more(folder)
    before = sorted(folder.rglob("*"))
    sweep(folder)
    assert sorted(folder.rglob("*")) == before


def elsewhere(tmp_path: Path) -> Path:
    """What another program calls runs, with files of our names in it."""
    folder = tmp_path / "runs" / "mine"
    (folder / "1").mkdir(parents=True)
    (folder / "waiting.json").write_text(json.dumps({"need": 1}))
    return folder


def test_folders_outside_ours_stay(tmp_path: Path) -> None:
    folder = elsewhere(tmp_path)
    state_files.make_private(run_folders.runs_folder())
    (run_folders.runs_folder() / "link").symlink_to(folder)
    for named in (
        folder,
        run_folders.runs_folder() / "link",
        run_folders.runs_folder() / ".." / "runs" / "link",
        run_folders.runs_folder() / "..",
        run_folders.runs_folder(),
        Path(""),
    ):
        sweep(named)
    assert (folder / "waiting.json").exists() and run_folders.runs_folder().exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_another_users_folder_stays() -> None:
    folder = waiting_run()
    os.chown(folder, 4242, 4242)
    sweep(folder)
    assert (folder / "waiting.json").exists()


_WAITS = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from oomproof.recording import run_folders
from oomproof.runner.waiting_run import Waiting
if sys.argv[1] == "behind" and (child := os.fork()) == 0:
    os.setpgid(0, 0)
elif sys.argv[1] == "behind":
    os.waitpid(child, 0)
    sys.exit()
entry = SimpleNamespace(need=1, front_pid=1, front_start=1)
run = run_folders.new_run()
with Waiting(run, entry, SimpleNamespace(notes=[]), print, print) as waiting:
    waiting.pause(0.0, "5 s, short by 1.0 GiB")
os.write(2, b"over")
"""


@pytest.mark.parametrize("where", ["before", "behind"])
def test_no_status_line_from_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `oomproof run … &` it stood in the line that was typed next."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    pid, ours = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _WAITS, where])
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while b"over" not in shown and (part := os.read(ours, 4096)):
            shown += part
    os.close(ours)
    os.waitpid(pid, 0)
    assert b"over" in shown and (b"waiting" in shown) is (where == "before")


def test_others_can_read_what_it_waits_for(tmp_path: Path) -> None:
    run = run_folders.Run(waiting_run())
    ledger = SimpleNamespace(notes=[])
    said: list[str] = []
    with Waiting(run, entry("r"), ledger, said.append, said.append) as waiting:  # type: ignore[arg-type]
        assert run.waits_for() == []
        waiting.tell(["needs 2.0 GiB: short by 1.0 GiB", "  in the way: a"], "  Ctrl-C gives up")
        assert run.waits_for() == ["needs 2.0 GiB: short by 1.0 GiB", "in the way: a"]
        assert "Ctrl-C" in said[0], "the terminal it was typed in is told more"
    assert run.waits_for() == [] and not run.waiting_file.exists()
