"""The job's parent: waits for it, ends what it leaves behind, and keeps its output when nobody else does.

Runs as a script of its own (``python -I -S keeper.py FD``), standard library only, so that it stays small and
outlives the front. It decides nothing about memory. Both hold the job's streams: while the front lives it reads them,
after it the keeper does. The front speaks to it over an inherited socket in frames: one letter, four bytes of length,
then the bytes.

    keeper → front   J news (hello first); the descriptors of the streams come with the news of them
    front → keeper   J spec (first)   G go: it has the streams   S signal number   C stream closed   D all output was read
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
HEADER = struct.Struct("!cI")
PR_SET_CHILD_SUBREAPER = 36
CHUNK = 65536
_BACKLOG = 1 << 20  # bytes of output that wait in memory for a disk, or for a descriptor
OUTPUT_CAP = 96 << 20  # bytes of output.log with its older parts
LOOK_AFTER = 5.0  # seconds between looks after a job whose front is gone: a later guard may vanish too
LOOK_FOR_FOLDER = 20.0  # ... and at the run's folder while the front lives
LAST_OUTPUT = 1.0  # seconds to read what the dead left in the pipes: a stranger may hold an end open
NEVER_STARTED = 125  # the job's exit status when its keeper died before it let it go
GPU_PAUSED = "gpu_paused.json"  # processes whose GPU memory was given back
FROZEN = "frozen.json"  # who made the job stand still; written by the guard or `oomproof freeze`
KILL_AFTER_TERM = 2.0  # seconds a left-behind process has between SIGTERM and SIGKILL


def send_frame(sock: socket.socket, kind: bytes, payload: bytes) -> None:
    sock.sendall(HEADER.pack(kind, len(payload)) + payload)


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def receive_frame(sock: socket.socket) -> tuple[bytes, bytes]:
    kind, size = HEADER.unpack(receive_exactly(sock, HEADER.size))
    return kind, receive_exactly(sock, size)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, bytes, list[int]]:
    """A frame and the descriptors that came with it."""
    header, fds, _, _ = socket.recv_fds(sock, HEADER.size, 16)
    header += receive_exactly(sock, HEADER.size - len(header)) if header else receive_exactly(sock, 1)
    kind, size = HEADER.unpack(header)
    return kind, receive_exactly(sock, size), fds


class Output:
    """output.log with a cap: the first part is kept as output.first.log, the last two as .prev and .log.

    One writer at a time: the front, and after it the keeper.
    """

    def __init__(self, folder: str, cap: int) -> None:
        self._folder = folder
        self._part = max(4096, cap // 3)
        self._size = 0
        self.trouble: str | None = None
        self._next_try = 0.0
        self._backlog = b""  # what no file took yet
        self._lost = False
        self._fd: int | None = self._open()

    def _open(self) -> int | None:
        """Not O_APPEND: splice refuses that."""
        try:
            fd = os.open(f"{self._folder}/output.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.lseek(fd, 0, os.SEEK_END)
            return fd
        except OSError as error:
            self.trouble = f"output not kept: {error.strerror}"
            self._next_try = time.monotonic() + 1.0
            return None

    def room_in_first(self) -> int:
        """Bytes until the part is full that is kept whatever comes after it."""
        if os.path.exists(f"{self._folder}/output.first.log"):
            return 0
        return max(0, self._part - self._size)

    def place(self, size: int) -> int | None:
        """The descriptor that takes ``size`` more bytes; None while there is none."""
        try:
            if self._fd is None and time.monotonic() >= self._next_try:
                self._fd = self._open()
            if self._fd is not None and self._size and self._size + size > self._part:
                self._rotate()
        except OSError as error:
            self.fail(error)
        return self._fd

    @property
    def behind(self) -> bool:
        """Whether something waits for the file: nothing may be written past it."""
        return bool(self._backlog)

    def wrote(self, size: int) -> None:
        self._size += size

    def fail(self, error: OSError) -> None:
        """Best effort: a full disk must not stop the job."""
        self.trouble = f"output not kept: {error.strerror}"

    def write(self, data: bytes) -> None:
        """What the disk does not take now waits, the oldest goes first."""
        data = self._backlog + data
        fd = self.place(len(data))
        try:
            while data and fd is not None:
                written = os.write(fd, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            self.fail(error)
        self._backlog = data[-_BACKLOG:]
        self._lost = self._lost or len(data) > _BACKLOG
        if not data and not self._lost:
            self.trouble = None

    def _rotate(self) -> None:
        """Without a new name for the old part nothing more is kept: the cap holds also where the folder is gone."""
        fd, self._fd = self._fd, None
        self._next_try = time.monotonic() + 1.0
        if fd is not None:
            os.close(fd)
        first = f"{self._folder}/output.first.log"
        target = f"{self._folder}/output.prev.log" if os.path.exists(first) else first
        os.rename(f"{self._folder}/output.log", target)
        self._fd = self._open()

    def close(self) -> None:
        if self._backlog:
            self._next_try = 0.0
            self.write(b"")
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sync_now_and_then(path: str) -> None:
    """In a thread: what was printed shall outlive a power cut, and no disk may hold the job up for it."""
    synced: tuple[int, int] | None = None
    while True:
        time.sleep(5.0)
        with contextlib.suppress(OSError):  # no output yet, or no folder any more
            found = os.stat(path)
            if (found.st_ino, found.st_size) != synced:
                synced = (found.st_ino, found.st_size)
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    sync(fd)
                finally:
                    os.close(fd)


def read_counter(path: str, key: str) -> int | None:
    """One number: a whole file ("" key), a "key value" line, or an extended attribute ("xattr:NAME")."""
    try:
        if key.startswith("xattr:"):
            return int(os.getxattr(path, key[6:]))
        with open(path, "rb") as file:
            text = file.read()
        if not key:
            return int(text)
        for line in text.splitlines():
            name, _, value = line.partition(b" ")
            if name == key.encode():
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def read_counters(wanted: list[list[str]]) -> dict[str, int | None]:
    return {name: read_counter(path, key) for name, path, key in wanted}


def children_of(pid: int) -> list[int]:
    if not os.path.isdir("/proc/self/task"):
        return children_by_ps(pid)
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(int(word) for word in file.read().split())
    except OSError:
        pass
    return found


EXIT_BYTES = 4096


def reserve_exit(folder: str) -> int | None:
    """Room for exit.json, taken at the start: a disk that fills later must not lose how the job ended."""
    try:
        fd = os.open(f"{folder}/.exit.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(fd, b" " * EXIT_BYTES, 0)
        return fd
    except OSError:
        return None


def write_exit(folder: str, fd: int | None, record: dict[str, object]) -> None:
    """Into the reserved room, synced, then under its real name: whole or not there."""
    if fd is None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    text = json.dumps(record, indent=1).encode()
    os.pwrite(fd, text.ljust(EXIT_BYTES), 0)
    os.fsync(fd)
    os.replace(f"{folder}/.exit.json", f"{folder}/exit.json")


def children_by_ps(pid: int) -> list[int]:
    """macOS has no /proc; zombies are left out."""
    try:
        with os.popen("ps -axo pid=,ppid=,stat=") as table:
            rows = [line.split() for line in table]
    except OSError:  # no process more
        return []
    return [int(row[0]) for row in rows if len(row) > 2 and int(row[1]) == pid and not row[2].startswith("Z")]


def append_event(folder: str, **event: object) -> None:
    event = {"boottime": boottime(), "wall": time.time(), **event}
    with contextlib.suppress(OSError):  # a full disk loses the line, not the job
        fd = os.open(f"{folder}/keeper.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(event).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def write_started(folder: str, record: dict[str, object]) -> str | None:
    """Whole or not there; why not, in words. Not synced: the front does that when nobody waits for it."""
    temporary = f"{folder}/.started.json.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            text = json.dumps(record, indent=1).encode()
            if os.write(fd, text) < len(text):
                return os.strerror(errno.ENOSPC)
        finally:
            os.close(fd)
        os.replace(temporary, f"{folder}/started.json")
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return error.strerror
    return None


def boottime() -> float:
    return time.clock_gettime(
        time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
    )


class FrontGone(Exception):
    """Before the job was started: then it is not."""


class Keeper:
    def __init__(self, front: socket.socket | None, spec: dict[str, Any]) -> None:
        self.front = front
        self.spec = spec
        self.folder: str = spec["folder"]
        self.exit_fd = reserve_exit(self.folder)
        self.outbox = bytearray()
        self.streams: dict[int, bytes] = {}  # readable descriptor of the job's output → its letter
        self.output: Output | None = None  # while it is ours to write
        self.trouble: str | None = None  # what the front could not keep of the output
        self.slave: int | None = None  # held until the leader ends: a job may drop its terminal and live on
        self.lock: int | None = None
        self.leader = 0
        self.leader_start: int | None = None
        self.ended = False  # the leader is dead; its status may be unknown all the same
        self.status: int | None = None  # the leader's wait status
        self.died = (0.0, 0.0)  # when, as boottime and wall clock
        self.leftovers: list[str] = []
        self.ending_since: float | None = None
        self.term_sent: float | None = None
        self.helper: int | None = None  # restores the job's GPU memory; no process of the job
        self.restoring = False
        self.asked_to_end = False
        self.over_since: float | None = None  # nobody of the job is left
        self.drained = False  # the front has read all of the output
        self.record: dict[str, object] | None = None  # what exit.json says
        self.folder_gone = False
        self.next_look = 0.0
        self.stumbled: set[str] = set()

    # --- starting the job -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """All that the loop needs, opened before there is a job that could be lost for want of it."""
        self.selector = selectors.DefaultSelector()
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        self.selector.register(self.wake_read, selectors.EVENT_READ)
        if self.front is not None:
            self.selector.register(self.front, selectors.EVENT_READ)

    def start(self) -> dict[str, object]:
        """Starts the job: the front holds its streams, and the disk says who it is, before it runs its first line."""
        before = read_counters(self.spec["counters"])
        ends, theirs = self.make_streams()
        self.share_streams()
        report_read, report_write = os.pipe()
        go_read, go_write = os.pipe()
        self.leader = os.fork()
        if self.leader == 0:
            os.close(go_write)
            self.become_job(ends, go_read, report_write)
        for fd in (report_write, go_read, *theirs):
            os.close(fd)
        record: dict[str, object] = {
            **self.spec["started"],
            "boottime": boottime(),
            "wall": time.time(),
            "keeper": with_start(os.getpid()),
            "job": with_start(self.leader),
            "streams": {letter.decode(): os.fstat(fd).st_ino for fd, letter in self.streams.items()},
            "counters": before,
        }
        self.leader_start = with_start(self.leader)["start"]
        trouble = write_started(self.folder, record)
        with contextlib.suppress(OSError):  # it could not even get so far: its report says why
            os.write(go_write, b"1")
        os.close(go_write)
        with os.fdopen(report_read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(self.leader, 0)
            with contextlib.suppress(OSError):
                os.unlink(f"{self.folder}/started.json")
            raise OSError(*json.loads(failure))
        return {"started": record, "unwritten": trouble}

    def make_streams(self) -> tuple[dict[int, int], set[int]]:
        """0, 1 and 2 → descriptor in the job; and those of them that are closed here after the fork."""
        spec = self.spec
        theirs: set[int] = set()
        ends: dict[int, int] = {}
        if spec["tty"]:
            master, self.slave = os.openpty()
            if spec.get("termios"):
                with contextlib.suppress(termios.error, TypeError):
                    termios.tcsetattr(self.slave, termios.TCSANOW, decode_termios(spec["termios"]))
            resize(master, *spec["size"])
            ends.update(dict.fromkeys(spec["tty"], self.slave))
            self.streams[master] = b"T"
        for number, letter in ((1, b"O"), (2, b"E")):
            if number in ends:
                continue
            if number == 2 and spec["merge"] and 1 in ends:
                ends[2] = ends[1]
                continue
            read_end, ends[number] = os.pipe()
            theirs.add(ends[number])
            self.streams[read_end] = letter
        if spec["stdin"] == "null":
            ends[0] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.add(ends[0])
        for fd in self.streams:
            os.set_blocking(fd, False)
        return ends, theirs

    def share_streams(self) -> None:
        """To the front, which says go when it has them: a job is started only for a front that lives."""
        assert self.front is not None
        held = {letter.decode(): fd for fd, letter in self.streams.items()}
        held.update({name: fd for name, fd in (("slave", self.slave), ("lock", self.lock)) if fd is not None})
        news = json.dumps({"streams": list(held)}).encode()
        try:
            socket.send_fds(self.front, [HEADER.pack(b"J", len(news)) + news], list(held.values()))
            kind, _ = receive_frame(self.front)
        except (EOFError, OSError) as error:
            raise FrontGone from error
        if kind != b"G":
            raise FrontGone

    def become_job(self, ends: dict[int, int], go: int, report: int) -> None:
        stage = "start"
        try:
            os.setsid()
            stage = "join the cgroup"
            for path in self.spec["join"]:
                with open(path, "w") as file:
                    file.write("0")
            stage = "start"
            self.be_a_younger_one()
            if self.spec.get("nofile"):  # raised for the front: not for the job
                with contextlib.suppress(ValueError, OSError):
                    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(self.spec["nofile"]))
            for number, fd in ends.items():
                os.dup2(fd, number)
            if self.spec["tty"]:
                fcntl.ioctl(self.spec["tty"][0], termios.TIOCSCTTY, 0)
            for name in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(name, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            for number in self.spec["ignored"]:  # nohup, or `&` in a script: as it was for us
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            if not os.read(go, 1):  # the keeper was killed: nobody knows of us
                os._exit(NEVER_STARTED)
            stage = "execute"
            os.execvpe(self.spec["argv"][0], self.spec["argv"], self.spec["env"])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(report, json.dumps([error.errno, error.strerror, stage]).encode())
        finally:
            os._exit(127)

    def be_a_younger_one(self) -> None:
        """Should it come to the kernel, it shall take this job before the older ones. Its children inherit it."""
        if self.spec["oom_score_add"]:
            with contextlib.suppress(OSError, ValueError):
                with open("/proc/self/oom_score_adj") as file:
                    now = int(file.read())
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write(str(min(1000, now + self.spec["oom_score_add"])))

    # --- while it runs -----------------------------------------------------------------------------------------

    def tell(self, news: dict[str, object]) -> None:
        """Never blocks: both sides waiting in a send would wait for ever. A front that is gone costs nothing."""
        if self.front is not None:
            payload = json.dumps(news).encode()
            self.outbox += HEADER.pack(b"J", len(payload)) + payload
            self.flush()

    def flush(self) -> None:
        if self.front is None:
            return
        try:
            while self.outbox:
                sent = self.front.send(bytes(self.outbox[:CHUNK]), socket.MSG_DONTWAIT)
                del self.outbox[:sent]
        except (BrokenPipeError, ConnectionError):
            self.lose_front()
            return
        except OSError:  # full, or no memory for it now
            pass
        write = selectors.EVENT_WRITE if self.outbox else 0
        self.selector.modify(self.front, selectors.EVENT_READ | write)

    def lose_front(self) -> None:
        """From now on the output is ours to read."""
        if self.front is None:
            return
        front, self.front = self.front, None
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(front)
        front.close()
        self.outbox.clear()
        self.output = self.output or Output(self.folder, self.spec["output_cap"])
        for fd in self.streams:
            self.selector.register(fd, selectors.EVENT_READ)
        if not self.ended:
            append_event(self.folder, event="guard-lost")
            self.look_after()

    def look_after(self) -> None:
        """Now and then: what nobody else does for a job without a guard, or without a folder."""
        self.next_look = time.monotonic() + (LOOK_AFTER if self.front is None else LOOK_FOR_FOLDER)
        if not self.folder_gone and not os.path.isdir(self.folder):
            self.folder_gone = True
            self.thaw()  # nobody can name it any more to let it go on
        if self.front is None and not self.has_guard():
            self.thaw_without_guard()
            self.give_the_card_again()

    def give_the_card_again(self) -> None:
        """Its GPU memory was given back and nobody is left to restore it: tried until it works, by a process of its own."""
        self.note_restored(at_last=False)
        if self.helper is not None or not os.path.exists(f"{self.folder}/{GPU_PAUSED}"):
            return
        if os.path.exists(f"{self.folder}/{FROZEN}"):
            return  # the user froze it
        with contextlib.suppress(OSError):
            self.helper = os.posix_spawn(
                sys.executable,
                [
                    sys.executable,
                    "-I",
                    "-S",
                    self.spec["gpu_script"],
                    "resume-marked",
                    f"{self.folder}/{GPU_PAUSED}",
                ],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (
                        os.POSIX_SPAWN_OPEN,
                        1,
                        f"{self.folder}/keeper.err",
                        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                        0o600,
                    ),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
            self.restoring = True

    def thaw_without_guard(self) -> None:
        """Nobody is left to let a frozen job go on. One that the user froze stays so: `oomproof thaw` is theirs."""
        mark = f"{self.folder}/{FROZEN}"
        try:
            with open(mark, "rb") as file:
                by = json.load(file).get("by")
        except (OSError, ValueError, AttributeError):
            by = None
        if by == "user" or not self.stands_still():
            return
        if not self.spec["freeze"] and by != "guard":
            return  # stopped by somebody's own SIGSTOP or Ctrl-Z
        self.thaw()
        with contextlib.suppress(OSError):
            os.unlink(mark)
        append_event(self.folder, event="thaw", text="its guard was lost while it was paused")

    def has_guard(self) -> bool:
        """Whether `oomproof watch` has taken the guard up: its lock goes with it, however it ends."""
        try:
            fd = os.open(f"{os.path.dirname(self.folder)}/guard.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def stands_still(self) -> bool:
        if not self.spec["freeze"]:
            return any(state_of(pid) in (b"T", b"t") for pid in self.remaining())
        try:
            with open(self.spec["freeze"], "rb") as file:
                return file.read().strip() not in (b"0", b"THAWED")
        except OSError:
            return False

    def thaw(self) -> None:
        """Harmless for a job that runs."""
        if self.spec["freeze"]:
            value = "0" if self.spec["freeze"].endswith("cgroup.freeze") else "THAWED"
            with contextlib.suppress(OSError), open(self.spec["freeze"], "w") as file:
                file.write(value)
        else:
            signal_all(self.remaining(), signal.SIGCONT)

    def from_front(self) -> None:
        assert self.front is not None
        try:
            kind, payload = receive_frame(self.front)
        except (EOFError, OSError):
            self.lose_front()
            return
        if kind == b"S" and payload:
            self.forward_signal(payload[0])
        elif kind == b"C":
            for fd in [fd for fd, letter in self.streams.items() if letter == payload]:
                self.forget(fd)
        elif kind == b"D":
            self.drained = True
            self.trouble = payload.decode("utf-8", "replace") or None

    def forward_signal(self, number: int) -> None:
        """SIGINT to the job's process group, as a terminal does for Ctrl-C; others to the leader, as `kill` does."""
        if not self.ended:
            with contextlib.suppress(OSError):
                (os.killpg if number == signal.SIGINT else os.kill)(self.leader, number)
        else:
            self.ending_since = self.ending_since or time.monotonic()
            self.end_leftovers(now=True)

    def from_job(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the last holder of the pty's other end has closed it
                append_event(self.folder, event="stream-error", text=str(error))
            data = b""
        if not data:
            self.forget(fd)
        elif self.output is not None:
            self.output.write(data)

    def forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(fd)
        del self.streams[fd]
        os.close(fd)

    def reap(self) -> None:
        """All our dead children: the leader, and orphans that came to us because we are their subreaper."""
        if not self.ended:
            status = peek(self.leader)
            if status is not None:  # told before it is waited for: whoever comes after us shall not miss it
                self.note_end(status)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.helper:
                self.note_helper()
            if pid == self.leader and not self.ended:
                self.note_end(status)

    def reap_helper(self) -> None:
        """For those who wait for no other child."""
        with contextlib.suppress(ChildProcessError):
            if self.helper is not None and os.waitpid(self.helper, os.WNOHANG)[0]:
                self.note_helper()

    def note_helper(self) -> None:
        self.helper = None
        self.note_restored(at_last=True)

    def note_restored(self, at_last: bool) -> None:
        """The helper may stay after its work, to hold the job's turn on the card."""
        gone = not os.path.exists(f"{self.folder}/{GPU_PAUSED}")
        if self.restoring and (gone or at_last):
            self.restoring = False
            append_event(self.folder, event="gpu-resume" if gone else "gpu-resume-failed")

    def note_end(self, status: int | None) -> None:
        self.ended, self.status, self.died = True, status, (boottime(), time.time())
        if self.slave is not None:  # from now on EIO says that the last one has closed it
            os.close(self.slave)
            self.slave = None
        self.tell({"ended": status, "died": self.died})

    def remaining(self) -> list[int]:
        """Processes of the job that still live."""
        me = os.getpid()
        if self.spec["procs"]:
            pids: list[int] = []
            for folder, _, _ in os.walk(self.spec["procs"]):
                with contextlib.suppress(OSError, ValueError), open(f"{folder}/cgroup.procs") as file:
                    pids.extend(int(line) for line in file)
        else:
            pids, queue = [], self.roots()
            while queue:
                pid = queue.pop()
                if pid not in pids:
                    pids.append(pid)
                    queue.extend(children_of(pid))
        return [pid for pid in pids if pid > 0 and pid not in (me, self.helper) and not is_zombie(pid)]

    def roots(self) -> list[int]:
        """Without a cgroup: those of our children below which the job is."""
        return children_of(os.getpid())

    def end_leftovers(self, now: bool = False) -> bool:
        """After the leader: let the rest finish, then SIGTERM, then SIGKILL. True when nobody is left."""
        left = self.remaining()
        if not left:
            return True
        clock = time.monotonic()
        if self.ending_since is None:
            self.ending_since = clock
            self.leftovers = [name_of(pid) for pid in left]
            append_event(self.folder, event="leftovers", names=self.leftovers)
            self.tell({"leftovers": self.leftovers, "wait": self.patience()})
        if self.term_sent is None:
            if now or clock - self.ending_since >= self.patience():
                self.term_sent = clock
                signal_all(left, signal.SIGTERM)
                signal_all(left, signal.SIGCONT)
                self.thaw()
        elif now or clock - self.term_sent >= self.mercy():
            self.kill_all(left)
            self.thaw()  # the v1 freezer holds even a SIGKILL back
        return False

    def patience(self) -> float:
        """A job that ended well may still be uploading something; one that failed leaves only wreckage."""
        return float(self.spec["grace"]) if self.status in (0, None) else 0.0

    def mercy(self) -> float:
        """A leader that was asked to end (a shell script passes nothing on) took its children along: they may save."""
        asked = os.WIFSIGNALED(self.status or 0) and os.WTERMSIG(self.status or 0) in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
        )
        return max(KILL_AFTER_TERM, float(self.spec["grace"])) if asked else KILL_AFTER_TERM

    def kill_all(self, left: list[int]) -> None:
        if self.spec["kill"]:
            with contextlib.suppress(OSError), open(self.spec["kill"], "w") as file:
                file.write("1")
                return
        signal_all(left, signal.SIGKILL)

    def run(self) -> None:
        self.reap()  # it may have died before the first look
        while True:
            try:
                if self.step():
                    return
            except (
                Exception
            ) as error:  # a full disk, no descriptor, no memory: the job's parent must not die of it
                self.stumble(error)

    def stumble(self, error: Exception) -> None:
        """Each kind is written down once; the next round may go better."""
        text = f"{type(error).__name__}: {error}"
        if text not in self.stumbled and len(self.stumbled) < 20:
            self.stumbled.add(text)
            append_event(self.folder, event="stumbled", text=text)
        time.sleep(0.05)

    def step(self) -> bool:
        """One round; True when all is done."""
        if time.monotonic() >= self.next_look and not self.ended:
            self.look_after()
        timeout = 0.05 if self.ended else max(0.0, self.next_look - time.monotonic())
        for key, mask in self.selector.select(timeout):
            if key.fd == self.wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
                self.on_wake()
            elif self.front is not None and key.fileobj is self.front:
                if mask & selectors.EVENT_WRITE:
                    self.flush()
                if self.front is not None and mask & selectors.EVENT_READ:
                    self.from_front()
            elif key.fd in self.streams:
                self.from_job(key.fd)
        if not self.ended:
            return False
        self.reap()
        return self.end_leftovers() and self.wind_up()

    def on_wake(self) -> None:
        self.reap()
        if self.asked_to_end:
            self.asked_to_end = False
            append_event(self.folder, event="sigterm")
            if not self.ended:
                with contextlib.suppress(OSError):
                    os.kill(self.leader, signal.SIGTERM)
                self.thaw()

    def wind_up(self) -> bool:
        """Everybody is dead. What they wrote may still be in the pipes; then the end is written down."""
        now = time.monotonic()
        if self.over_since is None:
            self.over_since = now
            self.tell({"over": True})
        late = now - self.over_since > LAST_OUTPUT
        if self.front is None:
            for fd in list(self.streams):
                self.from_job(fd)
            self.drained = self.drained or late or not self.streams
        if self.record is None and (self.drained or late):  # a front that hangs must not hold it back
            self.finish()
        return self.drained and self.record is not None

    def on_sigterm(self, *_: object) -> None:
        """Logout, shutdown or somebody's kill: passed on, and we stay until the job has ended."""
        self.asked_to_end = True

    def finish(self) -> None:
        """exit.json, then the cgroups go."""
        status = self.status
        died, wall = self.died
        shm = None
        with contextlib.suppress(OSError):
            room = os.statvfs("/dev/shm")
            shm = {"total": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}
        exited = status is not None and os.WIFEXITED(status)
        killed = status is not None and os.WIFSIGNALED(status)
        record: dict[str, object] = {
            "boottime": died,
            "wall": wall,
            "status": status,
            "code": os.WEXITSTATUS(status) if status is not None and exited else None,
            "signal": os.WTERMSIG(status) if status is not None and killed else None,
            "core": status is not None and os.WCOREDUMP(status),
            "leftovers": self.leftovers[:20],
            "counters": read_counters(self.spec["counters"]),
            "shm": shm,
        }
        self.record = record
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{FROZEN}")
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{GPU_PAUSED}")
        trouble = self.trouble or (self.output.trouble if self.output is not None else None)
        if trouble:
            append_event(self.folder, event="disk-full", text=trouble)
        try:
            write_exit(self.folder, self.exit_fd, record)
        except OSError as error:  # a full disk: the front still learns it from us
            append_event(self.folder, event="disk-full", text=f"exit.json: {error.strerror}")
        self.tell({"exit": record})
        remove_cgroups(self.spec["remove"])


def remove_cgroups(directories: list[str]) -> None:
    """The kernel lets go of a cgroup a moment after its last process is gone."""
    for directory in directories:
        for _ in range(40):
            try:
                for folder, names, _ in os.walk(directory, topdown=False):
                    for name in names:
                        os.rmdir(os.path.join(folder, name))
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.025)


def state_of(pid: int) -> bytes:
    """Its letter in /proc (R, S, D, T, Z …); X when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        return text[text.rfind(b")") + 2 : text.rfind(b")") + 3]
    except OSError:
        return b"X"


def peek(pid: int) -> int | None:
    """The wait status of a child that has ended; it can still be waited for. None while it lives."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return None
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (0x80 if found.si_code == os.CLD_DUMPED else 0)


def resize(master: int, rows: int, columns: int) -> None:
    with contextlib.suppress(OSError, struct.error):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def become_subreaper() -> bool:
    """Orphans below us become our children. Not on macOS."""
    try:
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def is_zombie(pid: int) -> bool:
    if not os.path.isdir("/proc/self"):  # macOS: children_by_ps has left them out
        return False
    return state_of(pid) in (b"Z", b"X")


def with_start(pid: int) -> dict[str, int | None]:
    """A process for ever: its pid and when it started (field 22 of stat); a zombie of ours still tells."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
        return {"pid": pid, "start": int(text[text.rfind(b")") + 2 :].split()[19])}
    except (OSError, IndexError, ValueError):
        return {"pid": pid, "start": None}


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return "?"


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            if not hasattr(os, "pidfd_open"):  # macOS
                os.kill(pid, number)
                continue
            fd = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(fd, number)
            finally:
                os.close(fd)


def decode_termios(value: list[Any]) -> list[Any]:
    return [*value[:6], [bytes([item]) if isinstance(item, int) else item for item in value[6]]]


def hold_lock(folder: str) -> int | None:
    """Held as long as we live. None where none can be had: the run then looks as if it had vanished."""
    try:
        lock = os.open(f"{folder}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def main() -> None:
    front = socket.socket(fileno=int(sys.argv[1]))
    front.set_inheritable(False)  # held by the job too, it would hide our death from the front
    send_frame(front, b"J", json.dumps({"hello": os.getpid()}).encode())
    try:
        _, payload = receive_frame(front)
    except (EOFError, OSError):  # the front takes another rung
        return
    spec: dict[str, Any] = json.loads(payload)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("oomproof-keeper")
    become_subreaper()
    if os.getsid(0) != os.getpid():  # where posix_spawn cannot (macOS before 10.15)
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(front, spec)
    keeper.lock = hold_lock(os.path.dirname(spec["folder"]))
    try:
        keeper.prepare()
        news = keeper.start()
    except FrontGone:
        remove_cgroups(spec["remove"])
        return
    except OSError as error:
        news = {"failed": [error.errno, error.strerror, error.filename]}
        with contextlib.suppress(OSError):
            send_frame(front, b"J", json.dumps(news).encode())
        remove_cgroups(spec["remove"])
        return
    # The user's terminal or pipe must not be held open by us: its reader waits for the last writer.
    for number in (0, 1, 2):
        os.dup2(keeper.null, number)
    os.chdir("/")
    keeper.tell(news)
    with contextlib.suppress(RuntimeError, OSError):  # no thread more: then nobody syncs the output
        # after the fork: threads do not survive one
        _thread.start_new_thread(sync_now_and_then, (f"{keeper.folder}/output.log",))
    keeper.run()


if __name__ == "__main__":
    main()
