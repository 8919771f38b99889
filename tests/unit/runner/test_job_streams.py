"""The job's output on its way: every byte once to the user, and to output.log what its cap allows; a slow reader is waited for."""

from __future__ import annotations

import errno
import os
import selectors
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from oomproof.recording.attempt import Attempt
from oomproof.runner import zero_copy
from oomproof.runner.front import Front
from oomproof.runner.job_streams import Log, Streams
from oomproof.runner.output_log import Output
from oomproof.runner.supervise import note_output_lost
from oomproof.runner.terminal import Terminal

TEXT = b"".join(b"line %07d of the job's output\n" % number for number in range(60_000))


class Job:
    """A job's end of a pipe, and the streams that serve it; its standard output goes to ``target``."""

    def __init__(self, folder: Path, target: int, cap: int = 96 << 20) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.selector = selectors.DefaultSelector()
        self.closed: list[tuple[bytes, int | None]] = []
        self.saved = os.dup(1)
        os.dup2(target, 1)
        self.streams = Streams(
            self.selector,
            {"O": self.read_end},
            Terminal(),
            Output(str(folder), cap),
            shown=True,
            on_closed=lambda letter, error: self.closed.append((letter, error.errno)),
        )

    def prints(self, data: bytes) -> threading.Thread:
        def write() -> None:
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self.write_end, left[:8192]) :]
            except BrokenPipeError:
                pass
            os.close(self.write_end)

        thread = threading.Thread(target=write)
        thread.start()
        return thread

    def serve(self, until: Callable[[], bool], seconds: float = 0.5) -> None:
        while not until():
            for key, mask in self.selector.select(seconds):
                self.streams.serve(key.fd, mask)

    def close(self) -> None:
        self.streams.log.close()
        os.dup2(self.saved, 1)
        os.close(self.saved)
        self.selector.close()


@pytest.mark.parametrize("append", [False, True])
def test_to_a_file(tmp_path: Path, append: bool) -> None:
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0))
    job = Job(tmp_path, target)
    try:
        thread = job.prints(TEXT)
        job.serve(lambda: not job.streams.open)
        thread.join()
    finally:
        job.close()
    assert (tmp_path / "out").read_bytes() == TEXT
    assert (tmp_path / "output.log").read_bytes() == TEXT


def test_a_pipe_that_is_read_at_the_end_holds_as_many_lines_as_without_us(tmp_path: Path) -> None:
    """Each line came as a piece of its own, of which a pipe takes 16: a job that was only waited for hung with 2 kB of output."""
    read_end, write_end = os.pipe()
    job = Job(tmp_path, write_end)
    lines = [b"step %05d\n" % number for number in range(5000)]
    try:
        os.close(write_end)
        for line in lines:
            os.write(job.write_end, line)
            for key, mask in job.selector.select(0):
                job.streams.serve(key.fd, mask)
            assert not job.streams.blocked, line
        os.close(job.write_end)
        job.serve(lambda: not job.streams.open)
    finally:
        job.close()
    assert os.read(read_end, 1 << 20) == b"".join(lines) == (tmp_path / "output.log").read_bytes()
    os.close(read_end)


def test_to_a_pipe_whose_reader_is_slow(tmp_path: Path) -> None:
    """Nothing is gathered meanwhile: the job waits, as it would without us. Then every byte comes, once."""
    read_end, write_end = os.pipe()
    job = Job(tmp_path, write_end)
    got = bytearray()
    try:
        os.close(write_end)
        thread = job.prints(TEXT)
        job.serve(lambda: job.streams.blocked)
        taken = (tmp_path / "output.log").stat().st_size
        assert taken <= 1 << 20 < len(TEXT)

        def read() -> None:
            while data := os.read(read_end, 5000):
                got.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        job.serve(lambda: not job.streams.open)
        thread.join()
        os.close(1)
        reader.join()
    finally:
        job.close()
    assert bytes(got) == TEXT
    assert (tmp_path / "output.log").read_bytes() == TEXT


def test_a_reader_that_leaves_closes_the_jobs_pipe(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    job = Job(tmp_path, write_end)
    try:
        os.close(write_end)
        os.close(read_end)
        thread = job.prints(TEXT)
        job.serve(lambda: bool(job.closed))
        thread.join()  # EPIPE ended it
    finally:
        job.close()
    assert job.closed == [(b"O", errno.EPIPE)]


@pytest.mark.parametrize("spliced", [False, True])
def test_a_disk_that_takes_no_more_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spliced: bool
) -> None:
    target = os.open("/dev/full", os.O_WRONLY)
    if spliced and not zero_copy.AVAILABLE:
        pytest.skip("no splice here")
    monkeypatch.setattr(zero_copy, "takes_splice", lambda fd: spliced)
    job = Job(tmp_path, target)
    try:
        thread = job.prints(TEXT)
        job.serve(lambda: bool(job.closed))
        thread.join()
    finally:
        job.close()
        os.close(target)
    assert job.closed == [(b"O", errno.ENOSPC)]


@pytest.mark.skipif(not zero_copy.AVAILABLE, reason="no splice here")
@pytest.mark.parametrize("to", ["file", "shared file", "pipe"])
def test_a_flood_is_kept_in_parts_and_passed_on_whole(tmp_path: Path, to: str) -> None:
    """The first part of the log is whole, the end is there, and between them stands how much is not."""
    to_pipe, append = to == "pipe", os.O_APPEND if to == "shared file" else 0
    flags = os.O_RDWR | os.O_CREAT | append
    read_end, write_end = os.pipe() if to_pipe else (-1, os.open(tmp_path / "out", flags))
    job = Job(tmp_path, write_end, cap=3 << 18)
    job.streams.log._rate, job.streams.log._left = 0, 0.0
    got = bytearray()

    def read() -> None:
        while data := os.read(read_end, 1 << 20):
            got.extend(data)

    reader = threading.Thread(target=read)
    try:
        os.close(write_end) if to_pipe else None
        reader.start() if to_pipe else None
        thread = job.prints(TEXT)
        job.serve(lambda: not job.streams.open)
        thread.join()
        os.close(1)
        reader.join() if to_pipe else None
    finally:
        job.close()
    assert (bytes(got) if to_pipe else (tmp_path / "out").read_bytes()) == TEXT
    first = (tmp_path / "output.first.log").read_bytes()
    assert TEXT.startswith(first) and len(first) >= 1 << 17
    rest = b"".join(
        (tmp_path / name).read_bytes()
        for name in ("output.prev.log", "output.log")
        if (tmp_path / name).exists()
    )
    assert b"of output not stored]" in rest
    assert rest.endswith(TEXT[-1000:])


@pytest.mark.skipif(not zero_copy.AVAILABLE, reason="no splice here")
def test_many_small_pieces_do_not_jam_the_way_to_the_log(tmp_path: Path) -> None:
    """A pipe has room for a number of pieces, not of bytes: full of small ones it must still give way."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    log = Log(Output(str(tmp_path), 3 * 4096), rate=0, burst=0)
    log._first = 0
    assert log.open()
    for number in range(2000):
        os.write(write_end, b"%d\n" % number)
        assert log.copy_from(read_end) > 0
        os.read(read_end, 100)
    log.close()
    assert (tmp_path / "output.log").read_bytes().endswith(b"1998\n1999\n")


def test_the_first_part_is_kept_at_any_speed(tmp_path: Path) -> None:
    assert Output(str(tmp_path), 3 << 20).space_in_first() == 1 << 20
    (tmp_path / "output.first.log").touch()
    assert Output(str(tmp_path), 3 << 20).space_in_first() == 0


def test_a_closed_output_is_noted_and_resumes_no_paused_job(tmp_path: Path) -> None:
    """What comes for the job (Ctrl-C, SIGTERM) resumes it, so that it hears it; a closed pipe comes from nobody."""
    front = Front.__new__(Front)
    front._socket = None
    interrupts: list[str] = []
    attempt = Attempt(tmp_path)
    front.on_interrupt = interrupts.append
    front.on_output_lost = lambda error: note_output_lost(attempt, error)
    for number in (errno.EPIPE, errno.ENOSPC):
        front._output_lost(b"O", OSError(number, os.strerror(number)))
    assert not interrupts
    told = [(line["by"], line["action"], line["why"]) for line in attempt.actions()]
    assert told == [("front", "signal", "SIGPIPE"), ("front", "output-lost", "No space left on device")]
