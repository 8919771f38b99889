"""What a sized script writes is seen by nobody else; a real child in real namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.sizing import private_files

SCRIPT = """
import os, socket, sys
folder = sys.argv[1]
open(folder + "/kept", "w").write("changed")
os.remove(folder + "/deleted")
open(folder + "/new", "w").write("x" * 100)
assert sorted(os.listdir(folder)) == ["kept", "new"], os.listdir(folder)
assert not os.listdir("/dev/shm")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    assert error.errno == 101, error  # unreachable, not refused and not timed out
sys.exit(3)
"""


def run(results: Path, *command: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-I", "-S", "-B", private_files.__file__, str(results), *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


def test_writes_and_deletes_stay_private(tmp_path: Path) -> None:
    results, folder = tmp_path / "results", tmp_path / "user"
    results.mkdir()
    folder.mkdir()
    (folder / "kept").write_text("mine")
    (folder / "deleted").write_text("mine")
    ended = run(results, sys.executable, "-c", SCRIPT, str(folder))
    if ended.returncode == private_files.CANNOT:
        pytest.skip((results / "cannot").read_text())
    assert ended.returncode == 3, ended.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["deleted", "kept"]
    assert (folder / "kept").read_text() == "mine"
    written = json.loads((results / "written.json").read_text())
    assert written["count"] == 3, "changed, deleted, new"
    assert str(folder / "new") in written["names"]


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    ended = run(tmp_path, "/no/such/command")
    if ended.returncode == private_files.CANNOT:
        pytest.skip((tmp_path / "cannot").read_text())
    assert ended.returncode == 127
    assert "/no/such/command: No such file or directory" in ended.stderr


def test_which_folders_are_covered(tmp_path: Path) -> None:
    inner = tmp_path / "with space"
    inner.mkdir()
    named = str(inner).replace(" ", "\\040")
    mountinfo = "\n".join(
        [
            f"1 0 8:1 / {tmp_path} rw,relatime - ext4 /dev/sda1 rw",
            f"2 1 8:2 / {named} rw - xfs /dev/sdb rw",
            "3 1 0:5 / /proc rw - proc proc rw",
            "4 1 0:6 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
            f"5 1 8:3 / {tmp_path} ro - ext4 /dev/sdc ro",
            "6 1 0:7 / /dev/shm rw - tmpfs tmpfs rw",
        ]
    )
    assert private_files.folders_to_cover(mountinfo) == [str(tmp_path), str(inner)]
