"""An unmanaged job that is ended: what it started meanwhile for another user is not touched."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from oomproof.guard.unmanaged_growth import Culprit
from oomproof.guard.unmanaged_pause import UnmanagedPauses
from oomproof.leaf.proc_files import start_time
from oomproof.machine.jobs import Job

# Two children, the second of them another user's; their pids are printed, and the output ends when all that hold it have.
TREE = """\
import subprocess, time
children = [subprocess.Popen(["sleep", "1000"]), subprocess.Popen(["sleep", "1000"], user="nobody")]
print(*(child.pid for child in children), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def tree() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    first = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    own, other = map(int, first.stdout.readline().split())
    fds = [os.pidfd_open(pid) for pid in (own, other)]
    yield first, *fds
    first.kill()
    first.wait()
    first.stdout.close()
    for fd in fds:
        end(fd)
        os.close(fd)


def end(fd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)


def has_ended(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def culprit(pid: int, uid: int) -> Culprit:
    job = Job(pid, start_time(pid) or 0, uid, ("python",), (pid,), 0, 0, 0, True)
    return Culprit(job, "python", 0.0, "")


@pytest.mark.skipif(os.getuid() != 0 or not hasattr(os, "pidfd_open"), reason="starts another user's process")
def test_only_processes_of_its_own_user_are_ended(tree: Any) -> None:
    first, own, other = tree
    pauses = UnmanagedPauses("guard")
    pauses.end(culprit(first.pid, 4_000_000), signal.SIGTERM)
    assert first.poll() is None and not has_ended(own, 0.2), "the first process has become another user's"
    pauses.end(culprit(first.pid, 0), signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert has_ended(own, 60.0), "its own child has ended too"
    assert not has_ended(other, 0.2), "the other user's has not"
