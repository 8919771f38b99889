"""A file that the job writes to itself: which the job gets, what is new in it, and that nothing is kept twice."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof.runner import job_streams
from oomproof.runner.followed_file import Followed
from oomproof.runner.job_streams import Log, Streams
from oomproof.runner.output_log import Output, noted_place
from oomproof.runner.terminal import Terminal
from oomproof.runner.zero_copy import FileChanges

ASK = """
import os, sys
from oomproof.runner.followed_file import open_to_follow
readers = open_to_follow([1, 2])
told = [sorted(readers), len(set(readers.values())), [os.lseek(fd, 0, os.SEEK_CUR) for fd in readers.values()]]
open(sys.argv[1], "w").write(repr(told))
"""


def asked(tmp_path: Path, line: str) -> list[object]:
    """What a process is told whose streams a shell has opened: which, how many files, where each begins."""
    answer = tmp_path / "answer"
    words = ["sh", "-c", line, "sh", sys.executable, "-c", ASK, str(answer)]
    null = subprocess.DEVNULL
    subprocess.run(words, cwd=tmp_path, check=True, stdout=null, stderr=null)
    return eval(answer.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('exec "$@" > out', [[1], 1, [0]]),
        ('exec "$@" 2> err', [[2], 1, [0]]),
        ('exec "$@" > out 2> err', [[1, 2], 2, [0, 0]]),
        ('exec "$@" > out 2>&1', [[1, 2], 1, [0, 0]]),
        ('exec > out; "$@"; true', [[], 0, []]),  # the shell above has it too
        ('"$@" >> out', [[], 0, []]),
        ('exec "$@" > out 2> out', [[], 0, []]),  # one file, two places
        ('exec "$@" >&- 2>&-', [[], 0, []]),
        ('exec "$@" | cat', [[], 0, []]),
    ],
)
def test_which_the_job_gets(tmp_path: Path, line: str, told: list[object]) -> None:
    assert asked(tmp_path, line) == told


def test_it_begins_where_the_next_byte_goes(tmp_path: Path) -> None:
    assert asked(tmp_path, '(echo before; exec "$@") > out') == [[1], 1, [7]]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_we_may_not_read_is_not_followed(tmp_path: Path) -> None:
    assert asked(tmp_path, ': > out; chmod 200 out; exec "$@" > out') == [[], 0, []]


class Scene:
    """A job's file, and who follows it."""

    def __init__(self, folder: Path, cap: int = 96 << 20) -> None:
        self.folder = folder
        self.path = folder / "out"
        self.writes = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.output = Output(str(folder), cap)
        self.file = Followed(os.open(self.path, os.O_RDONLY), "O")

    def prints(self, data: bytes) -> None:
        os.write(self.writes, data)

    def log(self) -> bytes:
        return (self.folder / "output.log").read_bytes()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_what_is_new_is_kept_once(scene: Scene) -> None:
    scene.prints(b"one\n")
    assert scene.output.follow(scene.file) == 4
    assert scene.output.follow(scene.file) == 0
    scene.prints(b"two \0 \xff\n")
    scene.output.follow(scene.file)
    assert scene.log() == b"one\ntwo \0 \xff\n"
    assert noted_place(str(scene.folder), "O") == 12 and noted_place(str(scene.folder), "E") is None


def test_another_holder_reads_on_where_the_first_stopped(scene: Scene) -> None:
    other = Followed(os.dup(scene.file.fd), "O")
    scene.prints(b"one\n")
    scene.output.follow(scene.file)
    scene.prints(b"two\n")
    Output(str(scene.folder), 96 << 20).follow(other)
    assert scene.log() == b"one\ntwo\n"


def test_our_own_lines_are_no_output_of_the_jobs(scene: Scene) -> None:
    scene.prints(b"one\n")
    scene.file.write_own(scene.writes, b"oomproof: a word\n")
    scene.file.write_own(scene.writes, b"oomproof: a word\n")
    scene.prints(b"two\n")
    scene.output.follow(scene.file)
    scene.file.write_own(scene.writes, b"oomproof: the last\n")
    assert scene.output.follow(scene.file) == 0
    size = scene.path.stat().st_size
    assert noted_place(str(scene.folder), "O") == size, "nor for who reads on when all of ours are gone"
    scene.prints(b"oomproof: a word\n")
    scene.output.follow(scene.file)
    assert scene.log() == b"one\ntwo\noomproof: a word\n"
    assert scene.path.read_bytes().count(b"a word") == 3


def test_a_file_that_is_cut_begins_anew(scene: Scene) -> None:
    scene.prints(b"one\n" * 5000)
    scene.output.follow(scene.file)
    os.truncate(scene.path, 0)
    scene.output.follow(scene.file)
    scene.prints(b"two\n")  # at its old place: before it is a hole of 20,000 bytes
    scene.output.follow(scene.file)
    log = scene.log()
    assert log.startswith(b"one\n" * 5000) and log.endswith(b"two\n") and log.count(b"\0") < 4096
    os.truncate(scene.path, 0)
    scene.output.follow(scene.file)
    os.lseek(scene.writes, 0, os.SEEK_SET)
    scene.prints(b"three\n")
    scene.output.follow(scene.file)
    assert scene.log().endswith(b"two\nthree\n")
    os.truncate(scene.path, 3 * 4096)
    scene.output.follow(scene.file)
    assert scene.file.waiting() == 0 and scene.output.trouble is None, (
        "a file that was made longer has an end too"
    )


def test_of_a_flood_the_first_and_the_last_are_kept(tmp_path: Path) -> None:
    scene = Scene(tmp_path, cap=300_000)
    lines = [b"line %07d of the flood\n" % number for number in range(100_000)]
    scene.prints(b"".join(lines))
    while scene.output.follow(scene.file, 50_000):
        pass
    kept = b"".join((tmp_path / f"output{part}.log").read_bytes() for part in (".first", ".prev", ""))
    assert kept.startswith(lines[0]) and kept.endswith(lines[-1]) and len(kept) <= 300_000
    assert kept.count(b"MiB of output not stored]\n") == 1
    assert kept.rpartition(b"not stored]\n")[2] in b"".join(lines), "in one piece"


def test_a_disk_that_takes_nothing_loses_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file waits for us, however much comes meanwhile."""
    scene.output.close()
    scene.output = Output(str(scene.folder / "later"), 96 << 20)
    for number in range(3):
        scene.prints(b"%d" % number * (1 << 20))
        scene.output.follow(scene.file)
    assert scene.output.trouble is not None
    (scene.folder / "later").mkdir()
    monkeypatch.setattr(scene.output, "_next_try", 0.0)
    scene.output.follow(scene.file)
    assert (scene.folder / "later" / "output.log").read_bytes() == scene.path.read_bytes()


def test_a_file_that_cannot_be_read_any_more_costs_only_the_log(scene: Scene) -> None:
    """Neither the front's loop nor the keeper's may stumble over it, at each turn."""
    os.dup2(scene.writes, scene.file.fd)  # read from what is open for writing only: EBADF
    streams, _ = streams_of(scene)
    scene.prints(b"one\n")
    streams.log.follow(Followed(scene.file.fd, "O"))
    os.lseek(scene.file.fd, 0, os.SEEK_SET)
    streams.follow()
    assert scene.output.trouble == "output not stored: Bad file descriptor"
    streams.finish_files()
    assert not streams.open


def test_a_growing_file_is_told_once_for_each_time_it_is_asked(scene: Scene) -> None:
    changes = FileChanges()
    assert changes.fd is not None
    with selectors.DefaultSelector() as selector:
        selector.register(changes.fd, selectors.EVENT_READ)
        for _ in range(2):
            assert changes.arm(scene.file.fd) and not selector.select(0)
            scene.prints(b"one\n")
            assert selector.select(10)
            changes.clear()
            assert not selector.select(0)
            scene.prints(b"not asked\n")
            assert not selector.select(0)


def streams_of(scene: Scene, **held: int) -> tuple[Streams, selectors.BaseSelector]:
    selector = selectors.DefaultSelector()
    streams = Streams(
        selector, {"O": scene.file.fd, **held}, Terminal(), scene.output, True, lambda *_: None, [scene.file]
    )
    return streams, selector


def serve(streams: Streams, selector: selectors.BaseSelector, until: Callable[[], bool]) -> None:
    while not until():
        for key, mask in selector.select(streams.follow_in):
            streams.serve(key.fd, mask)
        streams.follow()


@pytest.mark.parametrize("told", [True, False])
def test_the_front_follows_it(scene: Scene, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:
        monkeypatch.setattr(FileChanges, "arm", lambda *_: False)
        monkeypatch.setattr(job_streams, "_POLL_SECONDS", 0.05)
    streams, selector = streams_of(scene)
    streams.follow()
    assert (streams.follow_in is None) == told, "a quiet job costs nothing"
    for number in range(3):
        scene.prints(b"%d\n" % number)
        serve(streams, selector, lambda line=b"%d\n" % number: scene.log().endswith(line))  # type: ignore[misc]
    scene.prints(b"last\n")
    assert streams.open
    streams.finish_files()
    assert not streams.open and streams.follow_in is None and scene.log() == b"0\n1\n2\nlast\n"
    assert not selector.get_map(), "nothing of it stays open: another attempt may follow"
    streams.finish_files()


def test_what_came_before_a_line_on_the_other_stream_stands_before_it(scene: Scene) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    streams, selector = streams_of(scene, E=read_end)
    streams.follow()
    scene.prints(b"to the file\n")
    os.write(write_end, b"to the pipe\n")
    os.close(write_end)
    saved = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        serve(streams, selector, lambda: b"pipe" in scene.log())
    finally:
        os.dup2(saved, 2)
    assert scene.log() == b"to the file\nto the pipe\n"


def test_a_flood_takes_no_more_of_the_disk_than_through_a_pipe(tmp_path: Path) -> None:
    scene = Scene(tmp_path, cap=30 << 20)
    log = Log(scene.output, rate=0, burst=4 << 20)
    os.truncate(scene.path, 0)
    for _ in range(40):
        scene.prints(b"x" * (1 << 20))
    for _ in range(4):
        log.follow(scene.file)
    assert sum(path.stat().st_size for path in tmp_path.glob("output*.log")) <= 15 << 20
    scene.output.finish(scene.file)
    assert scene.file.waiting() == 0


def test_a_file_that_somebody_else_still_writes_to_has_an_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scene.output.write

    def write_and_grow(data: bytes) -> None:
        write(data)
        scene.prints(b"somebody else\n")

    scene.prints(b"the last of the job\n")
    monkeypatch.setattr(scene.output, "write", write_and_grow)
    scene.output.finish(scene.file)
    assert scene.log() == b"the last of the job\n"
