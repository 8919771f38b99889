"""The job's parent: holds its terminal or pipes, keeps its output, waits for it, ends what it leaves behind.

Runs as a script of its own (``python -I -S keeper.py FD``), standard library only, so that it stays small and
outlives the front. It decides nothing about memory. The front speaks to it over an inherited socket in frames:
one letter, four bytes of length, then the bytes.

    keeper → front   J news (hello first)   T the pty   O standard output   E standard error
    front → keeper   J spec (first)   I input   W rows, columns   S signal number   C stream closed
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import fcntl
import json
import os
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
OUTBOX = 1 << 20  # bytes waiting for a slow front; above it the job's output is left in its pipes
LOOK_AFTER = 5.0  # seconds between looks after a job whose front is gone: a later guard may vanish too
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


class Output:
    """output.log with a cap: the first part is kept as output.first.log, the last two as .prev and .log."""

    def __init__(self, folder: str, cap: int) -> None:
        self._folder = folder
        self._part = max(4096, cap // 3)
        self._size = 0
        self._fd: int | None = self._open()
        self.trouble: str | None = None

    def _open(self) -> int | None:
        try:
            return os.open(
                f"{self._folder}/output.log",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
        except OSError as error:
            self.trouble = f"output not kept: {error.strerror}"
            return None

    def write(self, data: bytes) -> None:
        """Best effort: a full disk must not stop the job."""
        if self._fd is None:
            return
        try:
            if self._size + len(data) > self._part and self._size:
                self._rotate()
            self._size += os.write(self._fd, data)
        except OSError as error:
            self.trouble = f"output not kept: {error.strerror}"

    def sync_now_and_then(self) -> None:
        """In a thread: what was printed shall outlive a power cut, and no disk may hold the job up for it."""
        synced = -1
        while True:
            time.sleep(5.0)
            fd, size = self._fd, self._size
            if fd is not None and size != synced:
                with contextlib.suppress(OSError):  # rotated under us; the next round has the new one
                    sync(fd)
                synced = size

    def _rotate(self) -> None:
        first = f"{self._folder}/output.first.log"
        target = f"{self._folder}/output.prev.log" if os.path.exists(first) else first
        os.rename(f"{self._folder}/output.log", target)
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._open()
        self._size = 0


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
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(int(word) for word in file.read().split())
    except OSError:
        pass
    return found


EXIT_BYTES = 4096


def reserve_exit(folder: str) -> int | None:
    """Room for exit.json, taken at the start: a disk that fills later must not lose how the job ended."""
    try:
        fd = os.open(f"{folder}/.exit.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, b" " * EXIT_BYTES)
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
    with os.popen("ps -axo pid=,ppid=,stat=") as table:
        rows = [line.split() for line in table]
    return [int(row[0]) for row in rows if len(row) > 2 and int(row[1]) == pid and not row[2].startswith("Z")]


def append_event(folder: str, **event: object) -> None:
    event = {"boottime": boottime(), "wall": time.time(), **event}
    with contextlib.suppress(OSError):  # a full disk loses the line, not the job
        fd = os.open(f"{folder}/keeper.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(fd, json.dumps(event).encode() + b"\n")
        os.fsync(fd)
        os.close(fd)


def boottime() -> float:
    return time.clock_gettime(
        time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
    )


class Keeper:
    def __init__(self, front: socket.socket, spec: dict[str, Any]) -> None:
        self.front: socket.socket | None = front
        self.spec = spec
        self.folder: str = spec["folder"]
        self.exit_fd = reserve_exit(self.folder)
        self.output = Output(self.folder, spec["output_cap"])
        self.selector = selectors.DefaultSelector()
        self.narrow = selectors.DefaultSelector()  # without the job's streams
        self.outbox = bytearray()
        self.streams: dict[int, bytes] = {}  # readable descriptor of ours → frame letter
        self.master: int | None = None
        self.slave: int | None = None  # held until the leader ends: a job may drop its terminal and live on
        self.backlog = bytearray()  # typed input the pty did not take yet
        self.leader = 0
        self.status: int | None = None  # the leader's wait status
        self.died = (0.0, 0.0)  # when, as boottime and wall clock
        self.leftovers: list[str] = []
        self.ending_since: float | None = None
        self.term_sent: float | None = None
        self.helper: int | None = None  # restores the job's GPU memory; no process of the job

    # --- starting the job -------------------------------------------------------------------------------------

    def start(self) -> None:
        spec = self.spec
        ours: list[int] = []  # the job's ends, closed here after the fork
        ends: dict[int, int] = {}  # 0, 1, 2 → descriptor in the job
        if spec["tty"]:
            self.master, slave = os.openpty()
            self.slave = slave
            if spec.get("termios"):
                with contextlib.suppress(termios.error, TypeError):
                    termios.tcsetattr(slave, termios.TCSANOW, decode_termios(spec["termios"]))
            self.resize(*spec["size"])
            ends.update(dict.fromkeys(spec["tty"], slave))
            self.watch(self.master, b"T")
        for number, letter in ((1, b"O"), (2, b"E")):
            if number in ends:
                continue
            if number == 2 and spec["merge"] and 1 in ends:
                ends[2] = ends[1]
                continue
            read_end, write_end = os.pipe()
            ends[number] = write_end
            ours.append(write_end)
            self.watch(read_end, letter)
        if spec["stdin"] == "null":
            ends[0] = os.open(os.devnull, os.O_RDONLY)
            ours.append(ends[0])
        report_read, report_write = os.pipe()
        self.leader = os.fork()
        if self.leader == 0:
            self.become_job(ends, report_write)
        os.close(report_write)
        for fd in set(ours):
            os.close(fd)
        with os.fdopen(report_read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(self.leader, 0)
            raise OSError(*json.loads(failure))

    def become_job(self, ends: dict[int, int], report: int) -> None:
        stage = "start"
        try:
            os.setsid()
            stage = "join the cgroup"
            for path in self.spec["join"]:
                with open(path, "w") as file:
                    file.write("0")
            stage = "start"
            self.be_a_younger_one()
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
            stage = "execute"
            os.execvpe(self.spec["argv"][0], self.spec["argv"], self.spec["env"])
        except OSError as error:
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

    def watch(self, fd: int, letter: bytes) -> None:
        os.set_blocking(fd, False)
        self.streams[fd] = letter
        self.selector.register(fd, selectors.EVENT_READ)

    def resize(self, rows: int, columns: int) -> None:
        if self.master is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # --- while it runs -----------------------------------------------------------------------------------------

    def tell(self, news: dict[str, object]) -> None:
        self.send(b"J", json.dumps(news).encode())

    def send(self, kind: bytes, payload: bytes) -> None:
        """Never blocks: both sides waiting in a send would wait for ever. A front that is gone costs nothing."""
        if self.front is not None:
            self.outbox += HEADER.pack(kind, len(payload)) + payload
            self.flush()

    def flush(self) -> None:
        if self.front is None:
            return
        try:
            while self.outbox:
                sent = self.front.send(memoryview(self.outbox)[:CHUNK].tobytes(), socket.MSG_DONTWAIT)
                del self.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.lose_front()
            return
        with contextlib.suppress(KeyError):  # not registered yet
            write = selectors.EVENT_WRITE if self.outbox else 0
            self.selector.modify(self.front, selectors.EVENT_READ | write)

    def lose_front(self) -> None:
        if self.front is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(self.front)
            self.narrow.unregister(self.front)
        self.outbox.clear()
        self.front.close()
        self.front = None
        if self.status is None:
            append_event(self.folder, event="guard-lost")
            self.thaw_without_guard()
            self.give_the_card_again()

    def give_the_card_again(self) -> None:
        """Its GPU memory was given back and nobody is left to restore it: tried until it works, by a process of its own."""
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
                    (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)
                ],
            )

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
        if kind == b"I":
            self.backlog += payload
            self.feed_terminal()
        elif kind == b"W":
            self.resize(*struct.unpack("!HH", payload))
        elif kind == b"S":
            self.forward_signal(payload[0])
        elif kind == b"C":
            for fd in [fd for fd, letter in self.streams.items() if letter == payload]:
                self.forget(fd)

    def feed_terminal(self) -> None:
        if self.master is None:
            self.backlog.clear()
            return
        try:
            written = os.write(self.master, self.backlog)
            del self.backlog[:written]
        except BlockingIOError:
            pass
        except OSError:
            self.backlog.clear()
        if self.master in self.streams:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.backlog else 0)
            self.selector.modify(self.master, events)

    def forward_signal(self, number: int) -> None:
        """SIGINT to the job's process group, as a terminal does for Ctrl-C; others to the leader, as `kill` does."""
        if self.status is None:
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
            return
        self.output.write(data)
        self.send(self.streams[fd], data)

    def forget(self, fd: int) -> None:
        self.selector.unregister(fd)
        del self.streams[fd]
        os.close(fd)
        if fd == self.master:
            self.master = None

    def reap(self) -> None:
        """All our dead children: the leader, and orphans that came to us because we are their subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.helper:
                self.helper = None
                gone = not os.path.exists(f"{self.folder}/{GPU_PAUSED}")
                append_event(self.folder, event="gpu-resume" if gone else "gpu-resume-failed")
            if pid == self.leader:
                self.status = status
                if self.slave is not None:  # from now on EIO says that the last one has closed it
                    os.close(self.slave)
                    self.slave = None
                self.died = (boottime(), time.time())

    def remaining(self) -> list[int]:
        """Processes of the job that still live."""
        me = os.getpid()
        if self.spec["procs"]:
            pids: list[int] = []
            for folder, _, _ in os.walk(self.spec["procs"]):
                with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs") as file:
                    pids.extend(int(line) for line in file)
        else:
            pids, queue = [], children_of(me)
            while queue:
                pid = queue.pop()
                if pid not in pids:
                    pids.append(pid)
                    queue.extend(children_of(pid))
        return [pid for pid in pids if pid > 0 and pid not in (me, self.helper) and not is_zombie(pid)]

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
        return float(self.spec["grace"]) if self.status == 0 else 0.0

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
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        for selector in (self.selector, self.narrow):
            selector.register(wake_read, selectors.EVENT_READ)
        if self.front is not None:
            self.selector.register(self.front, selectors.EVENT_READ)
            self.narrow.register(self.front, selectors.EVENT_READ | selectors.EVENT_WRITE)
        self.reap()  # it may have died before the handler stood
        deadline: float | None = None
        while True:
            timeout: float | None = 0.05
            if self.status is None:
                timeout = None if self.front is not None else LOOK_AFTER
                if self.front is None and not self.has_guard():
                    self.thaw_without_guard()
                    self.give_the_card_again()
            for key, mask in (self.narrow if len(self.outbox) > OUTBOX else self.selector).select(timeout):
                fd = key.fd
                if fd == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self.reap()
                elif self.front is not None and key.fileobj is self.front:
                    if mask & selectors.EVENT_WRITE:
                        self.flush()
                    if self.front is not None and mask & selectors.EVENT_READ:
                        self.from_front()
                elif fd in self.streams:
                    if mask & selectors.EVENT_WRITE:
                        self.feed_terminal()
                    if mask & selectors.EVENT_READ:
                        self.from_job(fd)
            if self.status is None:
                continue
            self.reap()
            if self.end_leftovers():
                # Everybody is dead; what they wrote may still be in the pipes. A stranger may hold an end open.
                # ... or the front may be slow: then its backlog is waited for, not the clock.
                deadline = None if len(self.outbox) > OUTBOX else deadline or time.monotonic() + 1.0
                if not self.drain() or (deadline is not None and time.monotonic() > deadline):
                    return

    def drain(self) -> bool:
        """True while some stream has, or may have, more to read."""
        if len(self.outbox) <= OUTBOX:
            for fd in list(self.streams):
                self.from_job(fd)
        return bool(self.streams)

    def on_sigterm(self, *_: object) -> None:
        """Logout, shutdown or somebody's kill: pass it on and stay until the job has ended."""
        append_event(self.folder, event="sigterm")
        if self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.leader, signal.SIGTERM)
            self.thaw()

    def finish(self) -> None:
        status = self.status or 0
        died, wall = self.died
        shm = None
        with contextlib.suppress(OSError):
            room = os.statvfs("/dev/shm")
            shm = {"total": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}
        record: dict[str, object] = {
            "boottime": died,
            "wall": wall,
            "status": status,
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "core": os.WCOREDUMP(status),
            "leftovers": self.leftovers[:20],
            "counters": read_counters(self.spec["counters"]),
            "shm": shm,
        }
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{FROZEN}")
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{GPU_PAUSED}")
        if self.output.trouble:
            append_event(self.folder, event="disk-full", text=self.output.trouble)
        try:
            write_exit(self.folder, self.exit_fd, record)
        except OSError as error:  # a full disk: the front still learns it from us
            append_event(self.folder, event="disk-full", text=f"exit.json: {error.strerror}")
        self.tell({"exit": record})
        self.remove_cgroups()
        if self.front is not None and self.outbox:
            with contextlib.suppress(OSError):
                self.front.sendall(self.outbox)

    def remove_cgroups(self) -> None:
        """The kernel lets go of a cgroup a moment after its last process is gone."""
        for directory in self.spec["remove"]:
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
    except (OSError, IndexError):
        return {"pid": pid, "start": None}


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
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


def main() -> None:
    front = socket.socket(fileno=int(sys.argv[1]))
    front.set_inheritable(False)  # held by the job too, it would hide our death from the front
    send_frame(front, b"J", json.dumps({"hello": os.getpid()}).encode())
    try:
        _, payload = receive_frame(front)
    except EOFError:  # the front takes another rung
        return
    spec: dict[str, Any] = json.loads(payload)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("oomproof-keeper")
    with contextlib.suppress(OSError, AttributeError):  # not on macOS
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getsid(0) != os.getpid():  # where posix_spawn cannot (macOS before 10.15)
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = os.open(
        f"{os.path.dirname(spec['folder'])}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    with contextlib.suppress(
        OSError
    ):  # a file system without locks: the run then looks as if it had vanished
        fcntl.flock(lock, fcntl.LOCK_EX)
    keeper = Keeper(front, spec)
    before = read_counters(spec["counters"])
    try:
        keeper.start()
    except OSError as error:
        keeper.tell({"failed": [error.errno, error.strerror, error.filename]})
        keeper.remove_cgroups()
        return
    # The user's terminal or pipe must not be held open by us: its reader waits for the last writer.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.chdir("/")
    pids = {"keeper": with_start(os.getpid()), "job": with_start(keeper.leader)}
    keeper.tell({"started": pids, "boottime": boottime(), "wall": time.time(), "counters": before})
    _thread.start_new_thread(
        keeper.output.sync_now_and_then, ()
    )  # after the fork: threads do not survive one
    keeper.run()
    keeper.finish()


if __name__ == "__main__":
    main()
