"""The keeper's parts that need no job: the output's file, the exit's file, and a loop that nothing ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oomproof.leaf.proc_files import name_of
from oomproof.leaf.process_signals import peek_status
from oomproof.recording import run_folders
from oomproof.runner import attempt_files, keeper
from oomproof.runner.output_log import Output


def spec(folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "procs": None,
        "kill": None,
        "freezer": None,
        "counters": [],
        "remove": [],
        "grace": 0,
        "output_cap": 3 * 4096,
    }


def test_output_survives_a_rotation_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file cannot be opened again: what is printed then waits for the next try."""
    output = Output(str(tmp_path), cap=3 * 4096)
    output.write(b"a" * 4000)
    real = os.open
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    output.write(b"b" * 4000)
    output.write(b"c" * 4000)
    assert output.trouble == "output not stored: Too many open files"
    monkeypatch.setattr(os, "open", real)
    output._next_try = 0.0
    output.write(b"d" * 40)
    assert (tmp_path / "output.first.log").read_bytes() == b"a" * 4000
    assert (tmp_path / "output.log").read_bytes() == b"b" * 4000 + b"c" * 4000 + b"d" * 40


def test_output_keeps_its_cap_where_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    output = Output(str(folder), cap=3 * 4096)
    output.write(b"a" * 4000)
    shutil.rmtree(folder)
    for _ in range(100):
        output.write(b"b" * 4000)
    assert output.place(1) is None, "nothing is written into a file that nobody can find"


def test_output_that_no_file_takes_is_written_when_one_does(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    output = Output(str(folder), 1 << 20)
    output.write(b"one\n")
    assert output.behind and output.trouble
    folder.mkdir()
    output.write(b"two\n")  # tried again once a second
    output.close()
    assert (folder / "output.log").read_bytes() == b"one\ntwo\n" and output.trouble is None


def test_output_waits_in_memory_up_to_a_cap(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    output = Output(str(folder), 8 << 20)
    for letter in b"abc":
        output.write(bytes([letter]) * (1 << 19))
    folder.mkdir()
    output.close()
    assert (folder / "output.log").read_bytes() == b"b" * (1 << 19) + b"c" * (1 << 19) and output.trouble


def test_output_is_taken_up_where_the_front_left_it(tmp_path: Path) -> None:
    first = Output(str(tmp_path), cap=1 << 20)
    first.write(b"front\n")
    second = Output(str(tmp_path), cap=1 << 20)
    second.write(b"keeper\n")
    assert (tmp_path / "output.log").read_bytes() == b"front\nkeeper\n"


def test_the_status_is_found_in_the_reserved_file(tmp_path: Path) -> None:
    """A folder made read-only: the rename fails, the record is there."""
    attempt = tmp_path / "run" / "1"
    attempt.mkdir(parents=True)
    run = run_folders.Run(tmp_path / "run")
    fd = attempt_files.reserve_exit(str(attempt))
    assert fd is not None
    assert run.exit() == {}, "reserved is not written"
    os.pwrite(fd, json.dumps({"code": 3}).encode().ljust(attempt_files.EXIT_BYTES), 0)
    assert run.exit() == {"code": 3}
    attempt_files.write_exit(str(attempt), fd, {"code": 4})
    assert run.exit() == {"code": 4}


def test_the_loop_outlives_whatever_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keeper.Keeper(None, spec(tmp_path))
    rounds = iter([OSError("no descriptor"), MemoryError(), ValueError("odd"), True])

    def step() -> bool:
        now = next(rounds)
        if isinstance(now, Exception):
            raise now
        return True

    monkeypatch.setattr(kept, "step", step)
    monkeypatch.setattr(kept, "reap", lambda: None)
    kept.run()
    events = [json.loads(line)["text"] for line in (tmp_path / "keeper.jsonl").read_text().splitlines()]
    assert events == ["OSError: no descriptor", "MemoryError: ", "ValueError: odd"]


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Path("/proc/self/comm").write_bytes(b"caf\xe9")
        os.kill(os.getpid(), 19)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    try:
        assert name_of(child).startswith("caf")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("how", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9)])
def test_a_look_at_a_childs_end_leaves_it_to_be_waited_for(how: str, status: int) -> None:
    child = os.posix_spawn("/bin/sh", ["sh", "-c", how], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert peek_status(child) == status
    assert os.waitpid(child, 0) == (child, status)


def test_pythons_own_helpers_are_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end when they see that the job has; only one that stays is told."""
    kept = keeper.Keeper(None, {**spec(tmp_path), "grace": 1000})
    kept.status = 0
    codes = ["from multiprocessing.resource_tracker import main;input()", "input()"]
    helper, real = (subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for code in codes)
    while not all(Path(f"/proc/{child.pid}/cmdline").read_bytes() for child in (helper, real)):
        time.sleep(0.01)  # the kernel closes Popen's pipe before it has set the command line
    try:
        left = [helper.pid]
        monkeypatch.setattr(kept, "remaining", lambda: left)
        assert not kept.end_leftovers() and kept.leftovers == []
        left.append(real.pid)
        assert not kept.end_leftovers() and len(kept.leftovers) == 1
        kept.leftovers, kept.ending_since = [], (kept.ending_since or 0.0) - keeper.HELPERS_END
        del left[1]
        assert not kept.end_leftovers() and len(kept.leftovers) == 1
    finally:
        for child in (helper, real):
            child.communicate()


def test_who_is_ending_already_is_not_left_behind(tmp_path: Path) -> None:
    """Its memory is gone, and its command line with it; a moment later it is a zombie."""
    for name, words in (("self", b"python"), ("41", b""), ("42", b"python\0train.py\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmdline").write_bytes(words)
    assert [keeper.ends_by_itself(pid, str(tmp_path)) for pid in (41, 42, 43)] == [True, False, True]
