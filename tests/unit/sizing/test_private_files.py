"""What a sized script writes is seen by nobody else; a real child in real namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oomproof.sizing import private_files, watched_child

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


OUTSIDE = """
import os, signal, subprocess, sys
refused = 0
for path in ("/proc/sys/kernel/hostname", "/sys/kernel/profiling"):
    try:
        open(path, "r+").close()
    except OSError:
        refused += 1
assert refused == 2
if os.path.isdir("/run") and os.access("/run", os.W_OK):
    open("/run/oomproof-test", "w").close()
child = subprocess.Popen(["sleep", "60"])
child.terminate()
assert child.wait() == -signal.SIGTERM, "its own processes it may end"
try:
    os.kill(int(sys.argv[1]), signal.SIGTERM)
except (PermissionError, ProcessLookupError):
    print("kept inside")
"""


def test_nothing_outside_is_changed_or_ended(tmp_path: Path) -> None:
    """By a script that restarts a server by its pid file, say."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        ended = run(tmp_path, sys.executable, "-c", OUTSIDE, str(other.pid))
        if ended.returncode == private_files.CANNOT:
            pytest.skip((tmp_path / "cannot").read_text())
        assert ended.returncode == 0, ended.stderr
        assert not Path("/run/oomproof-test").exists()
        assert "kept inside" in ended.stdout
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    ended = run(tmp_path, "/no/such/command")
    if ended.returncode == private_files.CANNOT:
        pytest.skip((tmp_path / "cannot").read_text())
    assert ended.returncode == 127
    assert "/no/such/command: No such file or directory" in ended.stderr


def test_which_mounts_are_covered() -> None:
    mountinfo = "\n".join(
        [
            "2 1 8:2 / /home/with\\040space rw - xfs /dev/sdb rw",
            "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
            "3 1 0:5 / /proc rw - proc proc rw",
            "4 1 0:6 / /sys/fs/cgroup rw - cgroup2 cgroup rw",
            "5 1 8:3 / /home ro,nosuid - ext4 /dev/sdc ro",
            "6 1 0:7 / /dev/shm rw - tmpfs tmpfs rw",
            "7 1 0:8 / /run/namespace rw - nsfs nsfs rw",
            "8 1 0:9 / /device rw - tmpfs tmpfs rw",
        ]
    )
    assert list(private_files.mount_points(mountinfo).items()) == [
        ("/", True),
        ("/device", True),
        ("/home", False),
        ("/home/with space", True),
        ("/run/namespace", False),
    ]


MOUNTED = """
import os, sys
folder = sys.argv[1]
assert open(folder + "/user/lib/driver.so").read() == "the driver", "a file that is mounted by itself"
assert open(folder + "/user/image/data").read() == "read only"
for path in ("/user/lib/driver.so", "/user/image/new"):
    try:
        open(folder + path, "w").write("spoiled")
    except OSError as error:
        assert error.errno == 30, error
    else:
        sys.exit(9)
open(folder + "/user/lib/own", "w").write("x")
"""


def test_what_is_mounted_below_a_covered_folder_is_still_there(tmp_path: Path) -> None:
    """A container's GPU driver is a row of files that are mounted one by one; and an overlay hides a mount."""
    results, user = tmp_path / "results", tmp_path / "user"
    for folder in (results, user / "lib", user / "image"):
        folder.mkdir(parents=True)
    (tmp_path / "driver").write_text("the driver")
    (user / "lib" / "driver.so").touch()
    (tmp_path / "script.py").write_text(MOUNTED)
    ours = f"{sys.executable} -I -S -B {private_files.__file__} {results} {sys.executable} {tmp_path}/script.py {tmp_path}"
    lines = (
        f"mount --bind {tmp_path}/driver {user}/lib/driver.so && mount -t tmpfs tmpfs {user}/image && "
        f"echo -n 'read only' > {user}/image/data && mount -o remount,ro {user}/image && {ours}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", lines], capture_output=True, text=True, timeout=60
    )
    if done.returncode == private_files.CANNOT or "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "driver").read_text() == "the driver"
    assert not (user / "lib" / "own").exists()


def test_the_script_is_found_among_its_processes(tmp_path: Path) -> None:
    """It knows itself by another number than we do."""
    ready = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-I", "-S", "-B", private_files.__file__, str(tmp_path)]
    with subprocess.Popen(
        [*arguments, sys.executable, "-c", ready], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        line = child.stdout.readline()
        found = watched_child.script_processes(child.pid, is_wrapped=True)
        numbers = [watched_child.own_number(pid) for pid in found]
        child.stdin.close()
        if child.wait(60) == private_files.CANNOT:
            pytest.skip((tmp_path / "cannot").read_text())
        assert numbers == [int(line)]
