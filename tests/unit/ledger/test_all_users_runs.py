"""What root's guard reads of other users' runs: their figures, and nothing of what a hostile one puts in its way."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomproof.ledger import all_users_runs
from oomproof.ledger.all_users_runs import AllUsersRuns, Place, read_all
from oomproof.ledger.live_runs import BY_GUARD, LiveRun
from oomproof.machine import processes

ME = os.getuid()
needs_root = pytest.mark.skipif(ME != 0, reason="only root may act as another user")
NAME = "000000000001000-theirs"


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    tmp_path.chmod(0o755)
    base = tmp_path / "run"
    base.mkdir()
    return [Place(str(base), re.compile(r"(\d+)"), ("oomproof",))]


@pytest.fixture
def folder(places: list[Place]) -> Path:
    """This user's runtime folder."""
    path = Path(places[0].base) / str(ME) / "oomproof"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def live(folder: Path) -> Iterator[LiveRun]:
    start = processes.start_time(os.getpid())
    run = LiveRun("theirs", 1.0, folder, leader=(os.getpid(), start))
    run.update(700 << 20, 50.0, 3e6, BY_GUARD)
    yield run
    run.leave()


def test_a_run_is_read_as_it_was_written(places: list[Place], live: LiveRun) -> None:
    (run,) = read_all(51.0, places)
    assert (run.name, run.uid, run.use, run.rate, run.paused) == (
        live.name,
        ME,
        700 << 20,
        3_000_000,
        BY_GUARD,
    )
    assert run.pid == os.getpid()
    assert read_all(90.0, places)[0].rate == 0, "the growth of a guard that is silent is not believed"
    live.leave()
    assert read_all(51.0, places) == []


def test_what_was_not_left_behind_by_a_living_run_is_none(places: list[Place], folder: Path) -> None:
    (folder / "live").mkdir()
    (folder / "live" / NAME).write_bytes(b"x" * 100)
    assert read_all(1.0, places) == [], "nobody holds its lock"


@pytest.mark.parametrize("where", ["user", "oomproof", "live", "file"])
def test_no_link_is_followed(places: list[Place], live: LiveRun, tmp_path: Path, where: str) -> None:
    """Each step on the way is moved elsewhere and a link to it is put in its place."""
    user = Path(places[0].base) / str(ME)
    path = {
        "user": user,
        "oomproof": user / "oomproof",
        "live": user / "oomproof" / "live",
        "file": user / "oomproof" / "live" / live.name,
    }[where]
    assert read_all(51.0, places)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_all(51.0, places) == []


def test_pipes_sockets_folders_and_odd_names_are_passed_over(places: list[Place], folder: Path) -> None:
    below = folder / "live"
    below.mkdir()
    os.mkfifo(below / NAME)
    (below / "000000000001000-folder").mkdir()
    for name in ("x", "000000000001000-", "000000000001000-a b", "000000000001000-" + "x" * 101, "1-\x1b[2J"):
        held = os.open(below / name, os.O_CREAT | os.O_RDWR)
        all_users_runs.fcntl.flock(held, all_users_runs.fcntl.LOCK_EX)
    assert read_all(1.0, places) == []


def test_a_huge_file_and_a_million_names_cost_little(
    places: list[Place], live: LiveRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(folder / "live" / live.name, 1 << 40)
    read = os.pread
    sizes: list[int] = []
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (sizes.append(size), read(fd, size, at))[1])
    assert [run.use for run in read_all(51.0, places)] == [700 << 20] and max(sizes) < 100
    for number in range(3000):
        (folder / "live" / f"{number:015d}-junk").touch()
    opened: list[object] = []
    open_file = os.open
    monkeypatch.setattr(
        os, "open", lambda *given, **named: (opened.append(given[0]), open_file(*given, **named))[1]
    )
    read_all(51.0, places)
    assert len(opened) < 1100, "it stops looking"


def test_wild_figures_are_bounded(places: list[Place], live: LiveRun) -> None:
    wild = struct.pack("=qdqBBiq", -(1 << 62), float("nan"), 1 << 62, 255, 255, 1, 0)
    os.pwrite(live._fd, wild, 0)
    (run,) = read_all(51.0, places)
    assert (run.use, run.rate, run.pid) == (0, 0, 0), "and process 1 is nobody's run"
    os.pwrite(live._fd, struct.pack("=qdqBBiq", 1 << 62, 50.0, 1 << 62, 0, 0, 1 << 30, 0), 0)
    (run,) = read_all(51.0, places)
    assert run.use == run.rate == 1 << 50 and run.pid == 0


def test_a_mount_of_the_users_own_is_not_touched(
    places: list[Place], live: LiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may never answer."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    point = f"{places[0].base}/{ME}/oomproof"
    line = f"90 30 0:52 / {point} rw,nosuid,nodev shared:1 - fuse.evil evil rw\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(line.replace("fuse.evil", "tmpfs"))
    assert read_all(51.0, places, str(tmp_path / "proc"))
    (tmp_path / "proc" / "self" / "mountinfo").write_text(line)
    assert read_all(51.0, places, str(tmp_path / "proc")) == []


@needs_root
def test_another_users_folder_under_a_wrong_name(places: list[Place], live: LiveRun, folder: Path) -> None:
    """User 4242 cannot speak for root: neither the folder nor the file may be somebody else's."""
    for path in (folder.parent, folder, folder / "live", folder / "live" / live.name):
        os.chown(path, 4242, 4242)
        assert read_all(51.0, places) == []
        os.chown(path, 0, 0)
    assert read_all(51.0, places)


@needs_root
def test_folders_under_other_users_names_hide_nobody(
    places: list[Place], live: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user makes a folder for each of many others, as anybody may in /tmp."""
    monkeypatch.setattr(all_users_runs, "_MOST_USERS", 2)
    for uid in range(1, 30):
        path = Path(places[0].base) / str(uid)
        path.mkdir()
        os.chown(path, 4242, 4242)
    assert len(read_all(51.0, places)) == 1


@needs_root
def test_another_users_real_run_is_known_and_not_by_a_process_of_somebody_else(
    places: list[Place], tmp_path: Path
) -> None:
    folder = Path(places[0].base) / "4242" / "oomproof"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        os.chown(path, 4242, 4242)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from oomproof.ledger.live_runs import LiveRun\n"
        "os.setgroups([]); os.setgid(4242); os.setuid(4242)\n"
        f"runs = [LiveRun(name, 1.0, Path({str(folder)!r}), leader=(pid, None)) for name, pid in\n"
        f"        (('own', os.getpid()), ('claimed', {os.getpid()}))]\n"
        "[run.update(5 << 20, 50.0) for run in runs]\n"
        "print('ready', flush=True); sys.stdin.read()\n"
    )
    for path in (tmp_path.parent, *tmp_path.parent.parents[:-1]):
        if path.stat().st_mode & 0o001 == 0 and path.name.startswith(("pytest", "popen")):
            path.chmod(path.stat().st_mode | 0o011)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    claimed, own = read_all(51.0, places)
    assert (own.id, own.uid, own.pid) == ("own", 4242, process.pid)
    assert (claimed.id, claimed.uid, claimed.pid) == ("claimed", 4242, 0), "that process is root's"
    process.stdin.close()
    process.wait()
    assert read_all(51.0, places) == [], "their locks went with it"


def test_whoever_asks_never_waits(
    monkeypatch: pytest.MonkeyPatch, places: list[Place], live: LiveRun
) -> None:
    release, begun, read = threading.Event(), threading.Event(), all_users_runs.read_all

    def slow(now: float, *rest: object) -> object:
        begun.set()
        release.wait()
        return read(now, places)

    monkeypatch.setattr(all_users_runs, "read_all", slow)
    runs = AllUsersRuns(places)
    assert runs(51.0) == [] and begun.wait(10)
    assert runs(60.0) == [], "one reading at a time; it hangs"
    release.set()
    while not runs(52.0):
        time.sleep(0.001)
    assert [run.use for run in runs(52.0)] == [700 << 20]
    release.clear()
    assert runs(200.0) == [], "what is old says nothing about now"
    release.set()
