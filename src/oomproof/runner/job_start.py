"""From the keeper's fork to the job's first line: its streams, its cgroup, its signals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import struct
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NEVER_STARTED = 125  # the job's exit status when its keeper died before it let it go


def make_streams(
    spec: dict[str, Any],
) -> tuple[dict[int, bytes], int | None, dict[int, int], set[int]]:
    """(our readable ends with their letters, the pty's other end, 0, 1 and 2 → descriptor in the job, and those of
    them that are closed here after the fork)"""
    streams: dict[int, bytes] = {}
    slave: int | None = None
    theirs: set[int] = set()
    ends: dict[int, int] = {}
    if spec["tty"]:
        master, slave = os.openpty()
        if spec.get("termios"):
            with contextlib.suppress(termios.error, TypeError):
                termios.tcsetattr(slave, termios.TCSANOW, decode_termios(spec["termios"]))
        resize(master, *spec["size"])
        ends.update(dict.fromkeys(spec["tty"], slave))
        streams[master] = b"T"
    for number, letter in ((1, b"O"), (2, b"E")):
        if number in ends:
            continue
        if (file := spec["files"].get(str(number))) is not None:
            ends[number] = file
            theirs.add(file)
            if (reader := spec["files"].get(letter.decode())) is not None:  # 2>&1 has one for both
                streams[reader] = letter
            continue
        if number == 2 and spec["merge"] and 1 in ends:
            ends[2] = ends[1]
            continue
        read_end, ends[number] = os.pipe()
        theirs.add(ends[number])
        streams[read_end] = letter
    if spec["stdin"] == "null":
        ends[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        theirs.add(ends[0])
    for fd in streams:
        os.set_blocking(fd, False)
    return streams, slave, ends, theirs


def become_job(spec: dict[str, Any], ends: dict[int, int], go: int, report: int) -> None:
    stage = "start"
    try:
        os.setsid()
        stage = "join the cgroup"
        for path in spec["join"]:
            with open(path, "w") as file:
                file.write("0")
        stage = "start"
        raise_oom_score(spec["oom_score_add"])
        if spec.get("nofile"):  # raised for the front: not for the job
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, tuple(spec["nofile"]))
        for number, fd in ends.items():
            os.dup2(fd, number)
        if spec["tty"]:
            fcntl.ioctl(spec["tty"][0], termios.TIOCSCTTY, 0)
        for name in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(name, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        for number in spec["ignored"]:  # nohup, or `&` in a script: as it was for us
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        if not os.read(go, 1):  # the keeper was killed: nobody knows of us
            os._exit(NEVER_STARTED)
        stage = "execute"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(report, json.dumps([error.errno, error.strerror, stage]).encode())
    finally:
        os._exit(127)


def raise_oom_score(by: int) -> None:
    """Should it come to the kernel, it shall take this job before the older ones. Its children inherit it."""
    if by:
        with contextlib.suppress(OSError, ValueError):
            with open("/proc/self/oom_score_adj") as file:
                now = int(file.read())
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(min(1000, now + by)))


def resize(master: int, rows: int, columns: int) -> None:
    with contextlib.suppress(OSError, struct.error):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def decode_termios(value: list[Any]) -> list[Any]:
    return [*value[:6], [bytes([item]) if isinstance(item, int) else item for item in value[6]]]
