"""A sized script that means harm changes nothing of the user's: as root, as an ordinary user, and as one in a container that masks
parts of /proc. Real scripts in real namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.sizing import private_files, watched_child

NOBODY = 65534
MASKED = "mount -t tmpfs tmpfs /proc/tty && "


class Place:
    """A folder of some user's, with ``results`` and ``user`` in it, where ``run`` runs scripts with private files."""

    def __init__(self, folder: Path, user: int, before: str) -> None:
        self.folder, self.user, self.before = folder, user, before
        self.results, self.files = folder / "results", folder / "user"
        # that user may be unable to reach this Python or this tree
        self.python = sys.executable if user == os.getuid() else shutil.which("python3", path="/usr/bin:/bin")
        self.code = shutil.copy(private_files.__file__, folder / "code.py")
        for path in (self.results, self.files):
            path.mkdir()
        self.own()

    def own(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, self.user, self.user, follow_symlinks=False)

    def run(
        self, script: str, *arguments: object, before: str = "", pass_fds: tuple[int, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """``before``: commands of a shell, as root in a mount namespace."""
        command = [
            self.python,
            "-I",
            "-S",
            "-B",
            self.code,
            self.results,
            self.python,
            "-c",
            script,
            *arguments,
        ]
        words = [str(word) for word in command]
        if self.user != os.getuid():
            words = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *words]
        if self.before or before:
            words = ["unshare", "--mount", "sh", "-c", f'{self.before} {before} exec "$@"', "sh", *words]
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=60, cwd=self.folder, pass_fds=pass_fds
        )
        if ended.returncode == private_files.CANNOT:
            pytest.skip((self.results / "cannot").read_text())
        if "unshare:" in ended.stderr or "mount:" in ended.stderr:
            pytest.skip(f"no mounts here: {ended.stderr.strip()[:200]}")
        return ended


@pytest.fixture(params=["as we are", "ordinary user", "masked /proc"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    is_root = os.getuid() == 0
    if request.param != "as we are" and not (is_root and shutil.which("setpriv")):
        pytest.skip("only root can be somebody else")
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        Path(folder).chmod(0o755)
        user = os.getuid() if request.param == "as we are" else NOBODY
        yield Place(Path(folder), user, MASKED if request.param == "masked /proc" else "")


TOP = """
import os
for name, do in (("new", lambda path: open(path, "w").close()), ("changed", lambda path: open(path, "w").write("spoiled")),
                 ("removed", os.remove), ("folder", os.mkdir)):
    try:
        do("/oomproof-hostile-" + name)
    except OSError as error:
        print(name, error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root writes to /")
def test_nothing_directly_in_the_root_folder_is_touched(tmp_path: Path) -> None:
    place, start = Place(tmp_path, 0, ""), "/oomproof-hostile-"
    try:
        for name in ("changed", "removed"):
            Path(start + name).write_text("mine")
        ended = place.run(TOP)
        assert ended.returncode == 0, ended.stderr
        assert Path(start + "changed").read_text() == Path(start + "removed").read_text() == "mine"
        assert not Path(start + "new").exists()
        assert not Path(start + "folder").exists()
        assert start + "new" in json.loads((place.results / "written.json").read_text())["names"]
    finally:
        for name in ("new", "changed", "removed"):
            Path(start + name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(start + "folder")


MOUNTED = """
import os, sys
folder = sys.argv[1]
assert open(folder + "/hosts").read() == "mine"
for name in ("hosts", "data/kept", "data/deeper/kept", "data/new"):
    try:
        open(folder + "/" + name, "w").write("spoiled")
    except OSError as error:
        print(name, error)
"""


def test_what_is_mounted_by_itself_stays_as_it_is(place: Place) -> None:
    """Mounts with flags that a user namespace may not take away: /etc/hosts of a container, a folder of secrets."""
    if os.getuid() != 0:
        pytest.skip("only root mounts")
    shared = place.folder / "shared"
    for path in (shared / "data" / "deeper", place.files / "data"):
        path.mkdir(parents=True)
    for path in (shared / "hosts", shared / "data" / "kept", shared / "data" / "deeper" / "kept"):
        path.write_text("mine")
    (place.files / "hosts").touch()
    place.own()
    lines = "".join(
        f"mount --bind {shared}/{name} {place.files}/{target} && "
        f"mount -o remount,bind,nosuid,nodev,noexec {place.files}/{target} && "
        for name, target in (("hosts", "hosts"), ("data", "data"), ("data/deeper", "data/deeper"))
    )
    ended = place.run(MOUNTED, place.files, before=lines)
    assert ended.returncode == 0, ended.stderr
    assert {path.read_text() for path in shared.rglob("*") if path.is_file()} == {"mine"}
    assert not (shared / "data" / "new").exists()


PLANTED = """
import os, sys
folder, victim = sys.argv[1:]
for name in ("looks", "written.json", "output"):
    os.symlink(victim, folder + "/" + name)
for name in ("main", "aside", "phase", "1.json"):
    os.mkfifo(folder + "/" + name)
"""
READ = """
import sys
from oomproof.sizing import rehearsing, virtual_run, watched_child
folder, pid = sys.argv[1], int(sys.argv[2])
watched_child.tell_looks(folder, 3)
watched_child.look(pid, watched_child.Watched(), folder)
print(*watched_child.held_back(folder), watched_child.printed(folder, "mine"))
assert virtual_run.read(folder) is None and rehearsing._read(folder) is None
assert rehearsing._phase(folder) == "load"
"""


def test_links_and_pipes_among_the_results_are_not_followed(place: Place) -> None:
    victim = place.files / "victim"
    victim.write_text("mine")
    place.own()
    assert place.run(PLANTED, place.results, victim).returncode == 0
    assert not (place.results / "written.json").is_symlink()
    command = [sys.executable, "-c", READ, str(place.results), str(os.getpid())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "False" in ended.stdout
    assert victim.read_text() == "mine"


DAEMON = """
import os, sys
end = int(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        os.close(2)
        os.write(end, b"alive")
        while True:
            __import__("time").sleep(60)
    os._exit(0)
os.wait()
os.read(int(sys.argv[2]), 1)
"""


def test_a_daemon_ends_with_the_script(place: Place) -> None:
    read_end, write_end = os.pipe()
    go_read, go_write = os.pipe()
    try:
        os.write(go_write, b"x")
        ended = place.run(DAEMON, write_end, go_read, pass_fds=(write_end, go_read))
        assert ended.returncode == 0, ended.stderr
        os.close(write_end)
        text = b""
        while select.select([read_end], [], [], 10)[0]:
            part = os.read(read_end, 100)
            if not part:
                return  # nobody has the other end any more
            text += part
        pytest.fail(f"it lives on: {text!r}")
    finally:
        for handle in (read_end, go_read, go_write):
            os.close(handle)


OTHERS = """
import ctypes, os, stat, sys
other = int(sys.argv[1])
def attempt(name, do):
    try:
        do()
    except OSError as error:
        print(name, "refused", error)
    else:
        print(name, "done")
attempt("score", lambda: open(f"/proc/{other}/oom_score_adj", "w").write("999"))
attempt("leader", lambda: os.readlink(f"/proc/{os.getppid()}/root"))
attempt("leader", lambda: os.listdir(f"/proc/{other}/root"))
attempt("trigger", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
assert os.path.exists(f"/proc/{os.getpid()}/stat") and os.readlink("/proc/self") == str(os.getpid())
ctypes.CDLL(None).shmget(0x00BADBAD, 4096, 0o1666)
blocks = [name for name in os.listdir("/dev") if stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)]
assert not blocks, blocks
open("/dev/null", "w").write("x")
assert len(open("/dev/urandom", "rb").read(3)) == 3
import multiprocessing.synchronize
multiprocessing.Lock()
os.openpty()
try:
    os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    open("disk", "rb").close()
except OSError as error:
    print("mknod refused", error)
else:
    sys.exit("a block device of its own")
if ctypes.CDLL(None, use_errno=True).umount2(b"/dev/shm", 2) == 0:
    sys.exit("it took the view apart")
"""


def test_other_processes_and_devices_are_out_of_reach(place: Place) -> None:
    other = subprocess.Popen(["sleep", "60"], user=place.user, group=place.user)
    before = Path(f"/proc/{other.pid}/oom_score_adj").read_text()
    try:
        ended = place.run(OTHERS, other.pid)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "score done" not in ended.stdout
        assert "trigger done" not in ended.stdout
        assert "leader done" not in ended.stdout, "by its files the real folders could be reached"
        assert Path(f"/proc/{other.pid}/oom_score_adj").read_text() == before
        shared = Path("/proc/sysvipc/shm").read_text()
        assert str(0x00BADBAD) not in shared
    finally:
        other.kill()
        other.wait()
        subprocess.run(["ipcrm", "-M", "0x00badbad"], capture_output=True, check=False)


NICE = """
import os, sys
try:
    os.setpriority(os.PRIO_PROCESS, int(sys.argv[1]), 15)
except OSError as error:
    print(error)
"""


def test_other_processes_keep_their_priority(place: Place) -> None:
    if place.before:
        pytest.skip("without a /proc of its own the script shares the process table")
    other = subprocess.Popen(["sleep", "60"], user=place.user, group=place.user)
    before = os.getpriority(os.PRIO_PROCESS, other.pid)  # 19 where the suite itself runs beside others
    try:
        assert place.run(NICE, other.pid).returncode == 0
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == before
    finally:
        other.kill()
        other.wait()


def test_a_file_of_another_group_is_named_as_the_cause(place: Place) -> None:
    """In a user namespace there is one group: the copy of such a file, in memory, cannot have its own."""
    if os.getuid() != 0 or place.user == 0:
        pytest.skip("only in a user namespace")
    path = place.files / "log"
    path.write_text("mine")
    os.chown(path, place.user, 12345)
    path.chmod(0o666)
    ended = place.run("import sys; open(sys.argv[1], 'a').write('more')", path)
    assert ended.returncode == 1
    (place.results / "output").write_text(ended.stderr)
    cause = watched_child.cause_of_failure(str(place.results), print, has_network=False, when="while sizing")
    assert "a group that is not yours" in cause
