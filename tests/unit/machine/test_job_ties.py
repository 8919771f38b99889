"""Who else would feel a pause: asked of real processes with real sockets, terminals and mounts."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oomproof.leaf.proc_files import start_time
from oomproof.machine import job_ties
from oomproof.machine.jobs import Job
from oomproof.records import replace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
WAITS = "print('ready', flush=True); import sys; sys.stdin.read()"


@pytest.fixture
def started() -> Iterator[Callable[..., Job]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(source: str, *words: str, first: bool = False) -> Job:
        """``first``: it prints a line of its own, which becomes the second word of the job's command."""
        process = subprocess.Popen(
            [sys.executable, "-c", f"{source}\n{WAITS}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip() if first else ""
        assert process.stdout.readline() == b"ready\n"
        return replace(job_of(process.pid), command=("python", line))

    yield start
    for process in processes:
        process.communicate()


def job_of(pid: int, *more: int) -> Job:
    return Job(pid, start_time(pid) or 0, os.getuid(), ("python",), (pid, *more), 0, 0, 0, True)


def test_a_training_has_none(started: Callable[..., Job]) -> None:
    assert job_ties.tie_of(started("import multiprocessing; pool = multiprocessing.Pool(2)")) == ""


def test_connections_of_its_own_are_none(started: Callable[..., Job]) -> None:
    """Python's own listener for workers, a pair of sockets, a client."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = (
            "import socket, sys; from multiprocessing.connection import Listener; listener = Listener(); "
            f"pair = socket.socketpair(); client = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"
        )
        assert job_ties.tie_of(started(source)) == ""


def test_a_server(started: Callable[..., Job], tmp_path: Path) -> None:
    tie = job_ties.tie_of(started("import socket; server = socket.create_server(('127.0.0.1', 0))"))
    assert tie.startswith("it serves TCP port ")
    local = "import socket, sys; server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen()"
    assert job_ties.tie_of(started(local, str(tmp_path / "s"))) == f"it serves {tmp_path / 's'}"


def test_a_window(started: Callable[..., Job], tmp_path: Path) -> None:
    folder = tmp_path / ".X11-unix"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as screen:
        screen.bind(str(folder / "X7"))
        screen.listen()
        source = "import socket, sys; client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1])"
        job = started(source, str(folder / "X7"))
        with screen.accept()[0]:
            assert job_ties.tie_of(job) == "it has a window"


def test_one_that_started_a_run_of_ours(started: Callable[..., Job]) -> None:
    job = started("")
    assert job_ties.tie_of(job, ours={job.pid}) == "it started a run of oomproof"


def test_a_run_behind_a_shell(started: Callable[..., Job], tmp_path: Path) -> None:
    """`oomproof run bash train.sh`: what bash starts is a job of its own, and still the run's; and whoever started the run
    would stop it with itself."""
    program = tmp_path / "oomproof"
    program.write_text(
        "import subprocess, sys\n"
        "words = [sys.executable, '-c', 'import os; print(os.getpid(), flush=True); input()']\n"
        "shell = subprocess.Popen(['sh', '-c', '\"$@\"; true', 'sh', *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(shell.stdout.readline().decode(), flush=True)\n"
        "sys.stdin.read(); shell.communicate(b'\\n')\n"
    )
    sweep = started(
        "import subprocess, sys\n"
        "words = ['sh', '-c', '\"$@\"; true', 'sh', sys.executable, sys.argv[1]]\n"
        "run = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(int(run.stdout.readline()), flush=True)",
        str(program),
        first=True,
    )
    inside = int(sweep.command[1])
    assert job_ties.tie_of(job_of(inside)) == "it belongs to a run of oomproof"
    assert job_ties.tie_of(sweep) == "it started a run of oomproof"
    assert job_ties.tie_of(job_of(inside), leaders={inside}).endswith("a run of oomproof")


@pytest.mark.parametrize(("mode", "expected"), [("cooked", ""), ("raw", "it is used at its terminal")])
def test_a_terminal(mode: str, expected: str) -> None:
    """In front at a terminal: as a shell starts it (in its session, with a group of its own)."""
    source = (
        "import os, sys, tty, fcntl, termios, time\n"
        "if os.fork(): os.wait(); os._exit(0)\n"
        "os.setpgid(0, 0); import signal; signal.signal(signal.SIGTTOU, signal.SIG_IGN); os.tcsetpgrp(0, os.getpgrp())\n"
        f"{'tty.setraw(0)' if mode == 'raw' else ''}\n"
        "os.write(1, b'<%d>' % os.getpid())\n"
        "os.read(0, 1)\n"
    )
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", source])
    text = b""
    while b">" not in text and select.select([master], [], [], 60)[0]:
        text += os.read(master, 100)
    child = int(text.partition(b"<")[2].partition(b">")[0])
    try:
        assert job_ties.tie_of(job_of(child)) == expected
    finally:
        os.write(master, b"x\n")
        os.waitpid(pid, 0)
        os.close(master)


def test_what_cannot_be_read_counts(monkeypatch: pytest.MonkeyPatch, started: Callable[..., Job]) -> None:
    job = started("")

    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(job_ties, "read", lambda proc="/proc": None)
    assert job_ties.tie_of(job) == "what it is connected to cannot be read"
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", refused)
    assert job_ties.tie_of(job) == "its open files cannot be read"


def test_ports_from_the_kernels_table() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0\n"
        "   1: 0100007F:1538 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 20 4\n"
        "cut\n"
    )
    assert job_ties.listening_tcp(table) == {4242: "TCP port 5432"}


def test_paths_from_the_kernels_table() -> None:
    """Where it tells nothing more: unix_diag is a module that a small kernel may not have."""
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "ffff8881: 00000002 00000000 00010000 0001 01 4711 /run/a server/s\n"
        "ffff8882: 00000003 00000000 00000000 0001 03 4712\n"
        "ffff8883: 00000002 00000000 00010000 0001 01 4713\n"
    )
    assert job_ties.listening_local(table) == {4711: "/run/a server/s", 4713: "a local socket"}


def test_a_kernel_that_does_not_tell_who_is_connected(
    monkeypatch: pytest.MonkeyPatch, started: Callable[..., Job], tmp_path: Path
) -> None:
    job = started("")

    def untold() -> dict[int, tuple[int, str, int]]:
        raise OSError("no such module")

    monkeypatch.setattr(job_ties, "_local", untold)
    screen = tmp_path / "wayland-7"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(screen))
        server.listen()
        known = job_ties.read()
        assert known is not None and known.connected is None and str(screen) in known.listening.values()
        assert job_ties.tie_of(job) == "", "it cannot draw"
        monkeypatch.setattr(job_ties, "_DRAWING", ("libc.",))
        assert job_ties.tie_of(job) == "it may have a window"
    monkeypatch.setattr(job_ties, "_SCREENS", ("/no-such-screen",))
    assert job_ties.tie_of(job) == "", "there is no screen"
