"""What a job without a cgroup holds: forked pages once, growth at once, little reading."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oomproof.guard import process_tree
from oomproof.guard.process_tree import ProcessTree
from oomproof.machine import processes
from oomproof.units import MIB

# Obeys one word a line: "hold N" takes N MiB, "fork" forks a child that obeys nothing, "child N" makes the next forked
# child take N MiB of its own, "write" makes the next child write to all that it inherited.
OBEDIENT = """
import os, sys, time
held, child, write = [], 0, False
def take(size):
    block = bytearray(size << 20)
    block[::4096] = b"x" * len(block[::4096])
    held.append(block)
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "hold": take(int(rest[0]))
    elif word == "child": child = int(rest[0])
    elif word == "write": write = True
    elif word == "fork":
        read, done = os.pipe()
        if os.fork() == 0:
            parent = os.getppid()
            if child: take(child)
            if write:
                for block in held: block[::4096] = b"y" * len(block[::4096])
            os.write(done, b".")
            while os.getppid() == parent: time.sleep(0.02)
            os._exit(0)
        os.read(read, 1)
    print("done", flush=True)
"""


class Obedient:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OBEDIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def do(self, *lines: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def pids(self) -> list[int]:
        return [self.process.pid, *processes.descendants(self.process.pid)]


@pytest.fixture
def job() -> Iterator[Obedient]:
    made = Obedient()
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture
def tree(job: Obedient) -> Iterator[ProcessTree]:
    made = ProcessTree(job.pids)
    yield made
    made.close()


def use(tree: ProcessTree, available: int | None = 10**12, headroom: int = 0) -> int:
    found = tree.memory(available, headroom)
    assert found is not None
    return found.use


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_forked_workers_never_count_twice_not_even_for_a_moment(job: Obedient, tree: ProcessTree) -> None:
    job.do("hold 100")
    first = use(tree)
    assert 100 * MIB < first < 130 * MIB
    job.do("fork", "fork", "fork", "fork")
    for _ in range(50):
        tree._next_list = 0.0
        assert use(tree) < first + 20 * MIB
    tree.settle(10.0)
    assert abs(use(tree) - first) < 20 * MIB
    assert len(tree.pids()) == 5


def test_what_a_worker_takes_for_itself_counts(job: Obedient, tree: ProcessTree) -> None:
    job.do("hold 60")
    first = use(tree)
    job.do("child 50", "fork", "fork")
    tree._next_list = 0.0
    use(tree)  # now they are known
    tree.settle(10.0)
    assert abs(use(tree) - first - 100 * MIB) < 20 * MIB


def test_a_correction_is_no_growth(job: Obedient, tree: ProcessTree) -> None:
    """Workers that were large when they were first seen: the figure is mended, and nobody takes that for growth."""
    job.do("hold 60")
    first = use(tree) - tree.corrected
    job.do("child 50", "fork", "fork")
    tree._next_list = 0.0
    use(tree)
    tree.settle(10.0)
    assert abs(use(tree) - tree.corrected - first) < 30 * MIB


def test_copies_of_shared_pages_are_found_by_what_the_machine_loses(job: Obedient, tree: ProcessTree) -> None:
    job.do("hold 80", "fork")
    use(tree, 10**12)
    tree.settle(10.0)
    first = use(tree, 10**12)
    corrected = tree.corrected
    job.do("write", "fork")  # a third process with 80 MiB of its own, which its own figure does not show
    until(lambda: use(tree, 10**12 - 100 * MIB) > first + 60 * MIB, "the copies to be seen")
    assert tree.corrected - corrected < 90 * MIB


def test_a_parent_that_ends_leaves_what_it_shared_to_its_children(job: Obedient, tree: ProcessTree) -> None:
    job.do("hold 100", "fork")
    use(tree, None)
    (child,) = [pid for pid in tree.pids() if pid != job.process.pid]
    os.kill(child, signal.SIGSTOP)  # it would follow its parent
    try:
        job.process.kill()
        job.process.wait()
        until(lambda: use(tree) > 90 * MIB, "the child to count in full")
        assert tree.pids() == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(
                child, 0
            )  # orphans come to us where a test before this one began a run in this process
    until(lambda: tree.memory(10**12) is None, "the last one to be gone")


def test_a_light_one_that_grows_is_seen_at_once_when_the_machine_loses_it(
    job: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "_KEPT", 0)  # nobody is read at every look
    tree = ProcessTree(job.pids)
    first = use(tree, 10**12)
    tree._next_light = float("inf")
    job.do("hold 80")
    assert use(tree, 10**12) == first, "not looked at"
    tree._next_hurry = 0.0
    assert use(tree, 10**12 - 80 * MIB) > first + 70 * MIB
    tree.close()


def test_the_list_is_read_only_after_a_process_was_started(job: Obedient) -> None:
    lists: list[int] = []

    def pids() -> list[int]:
        lists.append(1)
        return job.pids()

    tree = ProcessTree(pids)
    newest = [b"100\n"]
    tree._newest_pid = lambda: newest[0]  # type: ignore[method-assign]
    for _ in range(20):
        tree._next_list = 0.0
        use(tree)
    assert len(lists) == 1
    newest[0] = b"101\n"
    for _ in range(20):
        tree._next_list = 0.0
        use(tree)
    assert len(lists) == 2
    tree.close()


def test_no_descriptors_are_no_end_of_the_job(job: Obedient, monkeypatch: pytest.MonkeyPatch) -> None:
    job.do("hold 50")
    listed = [job.pids()]
    tree = ProcessTree(lambda: listed[0])
    first = use(tree)
    real = os.open

    def none_left(path: str, *rest: int) -> int:
        if "/proc/" in str(path):
            raise OSError(24, "Too many open files")
        return real(path, *rest)

    monkeypatch.setattr(os, "open", none_left)
    listed[0] = []
    tree._next_list = tree._next_light = 0.0
    tree._newest = b"another"
    assert use(tree) == first
    monkeypatch.undo()
    tree.close()


def test_settling_never_waits_longer_than_it_may(job: Obedient, monkeypatch: pytest.MonkeyPatch) -> None:
    job.do("hold 30", "fork")
    tree = ProcessTree(job.pids)
    use(tree)
    monkeypatch.setattr(processes, "overlap", lambda *_: time.sleep(3))  # a process that waits for its disk
    begun = time.monotonic()
    tree.settle(0.05)
    assert time.monotonic() - begun < 2.0
    tree.close()


def test_one_process_alone_needs_no_walk(
    job: Obedient, tree: ProcessTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tree)
    asked: list[float] = []
    monkeypatch.setattr(tree._walker, "wait", asked.append)
    tree.settle(1.0)
    assert asked == []


OLD = """00400000-7fff [rollup]
Rss:              300000 kB
Pss:              100000 kB
Anonymous:        250000 kB
Swap:               4000 kB
SwapPss:            1000 kB
"""
NEW = OLD.replace("Pss:              100000 kB\n", "Pss: 100000 kB\nPss_Anon: 50000 kB\nPss_Shmem: 7 kB\n")


def test_overlap_of_old_and_new_kernels() -> None:
    new = processes.parse_overlap(NEW.encode())
    assert (new.anon, new.swap, new.shmem_pss, new.pss) == (
        200000 << 10,
        3000 << 10,
        7 << 10,
        100000 << 10,
    )
    old = processes.parse_overlap(OLD.encode())
    assert (old.anon, old.pss) == (200000 << 10, 100000 << 10), "in doubt the smaller figure"


def test_it_reads_a_folder(tmp_path: Path) -> None:
    """Without any real process: a pid that is not there is not there."""
    tree = ProcessTree(lambda: [5], proc=str(tmp_path))
    assert tree.memory(1) is None
    tree.close()
