"""The job's parent: waits for it, ends what it leaves behind, and keeps its output when nobody else does.

A process of its own (leaf/start_by_path.py starts it), standard library and ``leaf`` only, so that it stays small and
outlives the front. It decides nothing about memory. Both hold the job's streams: while the front lives it reads them,
after it the keeper does. keeper_frames.py says how the two speak.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time

from oomproof.leaf import start_by_path
from oomproof.leaf.attempt_names import (
    EXIT,
    GPU_PAUSED,
    GUARD_LOCK,
    KEEPER_ERRORS,
    KEEPER_LOCK,
    OUTPUT,
    PAUSED,
    STARTED,
)
from oomproof.leaf.proc_files import (
    boottime,
    children,
    command_line,
    is_stopped,
    is_zombie,
    name_of,
    with_start,
)
from oomproof.leaf.process_signals import become_subreaper, peek_status, signal_all
from oomproof.leaf.small_files import hold_lock, is_locked, read_object
from oomproof.runner.attempt_files import (
    append_event,
    how_it_ended,
    read_counters,
    remove_cgroups,
    reserve_exit,
    write_exit,
    write_started,
)
from oomproof.runner.followed_file import Followed, file_id, followed, is_file
from oomproof.runner.job_start import become_job, make_streams
from oomproof.runner.keeper_frames import HEADER, receive_frame, receive_with_fds, send_frame
from oomproof.runner.output_log import CHUNK, Output, sync_at_intervals

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all of this
    from typing import Any

CHECK_JOB_SECONDS = 5.0  # seconds between looks after a job whose front is gone: a later guard may vanish too
FOLLOW_SECONDS = 0.5  # between looks at a file that the job writes to itself, when the front is gone
CHECK_FOLDER_SECONDS = 20.0  # ... and at the run's folder while the front lives
# seconds to read what the dead left in the pipes: an unrelated process may hold an end open
LAST_OUTPUT = 1.0
GPU_RESTORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_restore.py")
# Seconds that Python's own helpers, and who is ending already, may take unmentioned: they need nobody to end them.
HELPERS_END = 10.0
_HELPERS = ("from multiprocessing.resource_tracker import ", "from multiprocessing.forkserver import ")
KILL_AFTER_TERM = 2.0  # seconds a left-behind process has between SIGTERM and SIGKILL


class FrontGone(Exception):
    """Before the job was started: then it is not."""


class Keeper:
    def __init__(self, front: socket.socket | None, spec: dict[str, Any]) -> None:
        self.front = front
        self.spec = spec
        self.folder: str = spec["folder"]
        self.spares: list[str] = spec.get("spares") or []  # folders for what the run's disk does not take
        self.exit_fd = reserve_exit(self.folder)
        self.outbox = bytearray()
        self.streams: dict[int, bytes] = {}  # readable descriptor of the job's output → its letter
        self.files: list[Followed] = []  # those of them that are files, which the job writes to itself
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
        self.largest_rss = 0  # of any process of the job that was waited for
        self.file_io = 0  # bytes that all of them read from disk and wrote to files
        self.folder_gone = False
        self.next_look = 0.0
        self.recorded_errors: set[str] = set()

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
        self.streams, self.slave, ends, theirs = make_streams(self.spec)
        self.files = followed({letter.decode(): fd for fd, letter in self.streams.items()})
        self.share_streams()
        report_read, report_write = os.pipe()
        go_read, go_write = os.pipe()
        self.leader = os.fork()
        if self.leader == 0:
            os.close(go_write)
            become_job(self.spec, ends, go_read, report_write)
        for fd in (report_write, go_read, *theirs):
            os.close(fd)
        record: dict[str, object] = {
            **self.spec["started"],
            "boottime": boottime(),
            "wall": time.time(),
            "keeper": with_start(os.getpid()),
            "job": with_start(self.leader),
            "streams": {
                letter.decode(): os.fstat(fd).st_ino for fd, letter in self.streams.items() if not is_file(fd)
            },
            "files": {file.letter: [*file_id(file.fd), file.place] for file in self.files},
            "counters": before,
        }
        self.leader_start = with_start(self.leader)["start"]
        trouble = write_started(self.folder, record, self.spares)
        with contextlib.suppress(OSError):  # it could not even get so far: its report says why
            os.write(go_write, b"1")
        os.close(go_write)
        with os.fdopen(report_read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(self.leader, 0)
            for folder in (self.folder, *self.spares):
                with contextlib.suppress(OSError):
                    os.unlink(f"{folder}/{STARTED}")
            raise OSError(*json.loads(failure))
        return {"started": record, "unwritten": trouble}

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
            self.on_front_lost()
            return
        except OSError:  # full, or no memory for it now
            pass
        write = selectors.EVENT_WRITE if self.outbox else 0
        self.selector.modify(self.front, selectors.EVENT_READ | write)

    def on_front_lost(self) -> None:
        """From now on the output is ours to read."""
        if self.front is None:
            return
        front, self.front = self.front, None
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(front)
        front.close()
        self.outbox.clear()
        self.output = self.output or Output(self.folder, self.spec["output_cap"])
        self.watch_streams()
        if not self.ended:
            append_event(self.folder, event="guard-lost")
            self.tell_terminal()
            self.check_job()

    def tell_terminal(self) -> None:
        """Opened by its name, and for this line only: one held open would keep a closed terminal from being free again."""
        terminal, text = self.spec.get("if_lost") or ("", "")
        with contextlib.suppress(OSError):
            fd = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.isatty(fd):
                    os.write(fd, f"\r\n{text}\r\n".encode(errors="backslashreplace"))
            finally:
                os.close(fd)

    def watch_streams(self) -> None:
        """Files are looked at now and then: no selector takes them."""
        for fd in self.streams.keys() - {file.fd for file in self.files}:
            self.selector.register(fd, selectors.EVENT_READ)

    def follow(self) -> None:
        """While they are ours to read."""
        if self.output is not None:
            for file in self.files:
                self.output.follow(file)

    def check_job(self) -> None:
        """Now and then: what nobody else does for a job without a guard, or without a folder."""
        self.next_look = time.monotonic() + (
            CHECK_JOB_SECONDS if self.front is None else CHECK_FOLDER_SECONDS
        )
        if not self.folder_gone and not os.path.isdir(self.folder):
            self.folder_gone = True
            self.resume()  # nobody can name it any more to resume it
        if self.front is None and not self.has_guard():
            self.resume_without_guard()
            self.restore_gpu_memory()

    def restore_gpu_memory(self) -> None:
        """Its GPU memory was given back and nobody is left to restore it: tried until it works, by a process of its own."""
        self.note_restored(at_last=False)
        if self.helper is not None or not os.path.exists(f"{self.folder}/{GPU_PAUSED}"):
            return
        if os.path.exists(f"{self.folder}/{PAUSED}"):
            return  # the user paused it
        with contextlib.suppress(OSError):
            command = [
                *start_by_path.command(GPU_RESTORE),
                f"{self.folder}/{GPU_PAUSED}",
            ]
            log = f"{self.folder}/{KEEPER_ERRORS}"
            self.helper = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
            self.restoring = True

    def resume_without_guard(self) -> None:
        """Nobody is left to resume a paused job. One that the user paused stays so: `oomproof resume` is theirs."""
        mark = f"{self.folder}/{PAUSED}"
        by = read_object(mark).get("by")
        if by == "user" or not self.is_paused():
            return
        if not self.spec["freezer"] and by != "guard":
            return  # stopped by somebody's own SIGSTOP or Ctrl-Z
        self.resume()
        with contextlib.suppress(OSError):
            os.unlink(mark)
        append_event(self.folder, event="resume", text="its guard was lost while it was paused")

    def has_guard(self) -> bool:
        """Whether `oomproof watch` has taken the guard up: its lock goes with it, however it ends."""
        return is_locked(f"{os.path.dirname(self.folder)}/{GUARD_LOCK}")

    def is_paused(self) -> bool:
        if not self.spec["freezer"]:
            return any(is_stopped(pid) for pid in self.remaining())
        try:
            with open(self.spec["freezer"], "rb") as file:
                return file.read().strip() not in (b"0", b"THAWED")
        except OSError:
            return False

    def resume(self) -> None:
        """Harmless for a job that runs."""
        if self.spec["freezer"]:
            value = "0" if self.spec["freezer"].endswith("cgroup.freeze") else "THAWED"
            with contextlib.suppress(OSError), open(self.spec["freezer"], "w") as file:
                file.write(value)
        else:
            signal_all(self.remaining(), signal.SIGCONT)

    def from_front(self) -> None:
        assert self.front is not None
        try:
            kind, payload = receive_frame(self.front)
        except (EOFError, OSError):
            self.on_front_lost()
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
            status = peek_status(self.leader)
            if status is not None:  # told before it is waited for: whoever comes after us shall not miss it
                self.note_end(status)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.helper:
                self.note_helper()
            else:
                self.note_usage(usage)
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

    def note_usage(self, usage: resource.struct_rusage) -> None:
        """The high-water mark of the largest process it waited for or its children did: exact to the moment of its death."""
        unit = 1 if sys.platform == "darwin" else 1024
        self.largest_rss = max(self.largest_rss, usage.ru_maxrss * unit)
        self.file_io += (usage.ru_inblock + usage.ru_oublock) * 512

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
        told = (
            left
            if clock - self.ending_since >= HELPERS_END
            else [pid for pid in left if not ends_by_itself(pid)]
        )
        if told and not self.leftovers:
            self.leftovers = [name_of(pid) or "?" for pid in told]
            append_event(self.folder, event="leftovers", names=self.leftovers)
            self.tell({"leftovers": self.leftovers, "wait": self.grace_before_term()})
        if self.term_sent is None:
            if now or clock - self.ending_since >= self.grace_before_term():
                self.term_sent = clock
                signal_all(left, signal.SIGTERM)
                signal_all(left, signal.SIGCONT)
                self.resume()
        elif now or clock - self.term_sent >= self.grace_after_term():
            self.kill_all(left)
            self.resume()  # the v1 freezer holds even a SIGKILL back
        return False

    def grace_before_term(self) -> float:
        """A job that ended well may still be uploading something; one that failed leaves only wreckage."""
        return float(self.spec["grace"]) if self.status in (0, None) else 0.0

    def grace_after_term(self) -> float:
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
                self.record_error(error)

    def record_error(self, error: Exception) -> None:
        """Each kind is written down once; the next round may go better."""
        text = f"{type(error).__name__}: {error}"
        if text not in self.recorded_errors and len(self.recorded_errors) < 20:
            self.recorded_errors.add(text)
            append_event(self.folder, event="error", text=text)
        time.sleep(0.05)

    def step(self) -> bool:
        """One round; True when all is done."""
        if time.monotonic() >= self.next_look and not self.ended:
            self.check_job()
        timeout = 0.05 if self.ended else max(0.0, self.next_look - time.monotonic())
        if self.files and self.output is not None:
            timeout = min(timeout, FOLLOW_SECONDS)
        self.follow()
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
        return self.end_leftovers() and self.finish_output()

    def on_wake(self) -> None:
        self.reap()
        if self.asked_to_end:
            self.asked_to_end = False
            append_event(self.folder, event="sigterm")
            if not self.ended:
                with contextlib.suppress(OSError):
                    os.kill(self.leader, signal.SIGTERM)
                self.resume()

    def finish_output(self) -> bool:
        """Everybody is dead. What they wrote may still be in the pipes; then the end is written down."""
        now = time.monotonic()
        if self.over_since is None:
            self.over_since = now
            self.tell({"over": True})
        late = now - self.over_since > LAST_OUTPUT
        if self.front is None:
            self.finish_files()
            for fd in list(self.streams):
                self.from_job(fd)
            self.drained = self.drained or late or not self.streams
        if self.record is None and (self.drained or late):  # a front that hangs must not hold it back
            self.finish()
        return self.drained and self.record is not None

    def finish_files(self) -> None:
        """Nobody writes to them any more."""
        for file in self.files:
            if self.output is not None:
                self.output.finish(file)
            self.forget(file.fd)
        self.files = []

    def on_sigterm(self, *_: object) -> None:
        """Logout, shutdown or somebody's kill: passed on, and we stay until the job has ended."""
        self.asked_to_end = True

    def finish(self) -> None:
        """exit.json, then the cgroups go."""
        died, wall = self.died
        shm = None
        with contextlib.suppress(OSError):
            shm_stat = os.statvfs("/dev/shm")
            shm = {
                "total": shm_stat.f_blocks * shm_stat.f_frsize,
                "free": shm_stat.f_bavail * shm_stat.f_frsize,
            }
        record: dict[str, object] = {
            "boottime": died,
            "wall": wall,
            **how_it_ended(self.status),
            "leftovers": self.leftovers[:20],
            "counters": {
                **read_counters(self.spec["counters"]),
                "largest_rss": self.largest_rss or None,
                "file_io": self.file_io if self.largest_rss else None,
            },
            "shm": shm,
        }
        self.record = record
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{PAUSED}")
        with contextlib.suppress(OSError):
            os.unlink(f"{self.folder}/{GPU_PAUSED}")
        trouble = self.trouble or (self.output.trouble if self.output is not None else None)
        if trouble:
            append_event(self.folder, event="disk-full", text=trouble)
        try:
            write_exit(self.folder, self.exit_fd, record, self.spares)
        except OSError as error:  # no disk took it: the front still learns it from us
            append_event(self.folder, event="disk-full", text=f"{EXIT}: {error.strerror}")
        self.tell({"exit": record})
        remove_cgroups(self.spec["remove"])


def ends_by_itself(pid: int, proc: str = "/proc") -> bool:
    """A process that Python itself started for multiprocessing, which cleans up behind the job; or one that has given its
    memory back, its command line with it, and is no zombie yet."""
    words = command_line(pid, proc)
    return any(word.startswith(_HELPERS) for word in words) or (not words and os.path.isdir(f"{proc}/self"))


def children_of(pid: int) -> list[int]:
    return children(pid) if os.path.isdir("/proc/self/task") else children_by_ps(pid)


def children_by_ps(pid: int) -> list[int]:
    """macOS has no /proc; zombies are left out."""
    try:
        with os.popen("ps -axo pid=,ppid=,stat=") as table:
            rows = [line.split() for line in table]
    except OSError:  # no process more
        return []
    return [int(row[0]) for row in rows if len(row) > 2 and int(row[1]) == pid and not row[2].startswith("Z")]


def main(arguments: list[str]) -> None:
    front = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(front.fileno(), False)  # held by the job too, it would hide our death from the front
    send_frame(front, b"J", json.dumps({"hello": os.getpid()}).encode())
    try:
        _, payload, fds = receive_with_fds(front)
    except (EOFError, OSError):  # the front takes another backend
        return
    spec: dict[str, Any] = json.loads(payload)
    for fd in fds:
        os.set_inheritable(fd, False)
    too_few = len(fds) != len(spec["files"])
    spec["files"] = dict(zip(spec["files"], fds, strict=False))
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("oomproof-keeper")
    become_subreaper()
    if os.getsid(0) != os.getpid():  # where posix_spawn cannot (macOS before 10.15)
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(front, spec)
    keeper.lock = hold_lock(f"{os.path.dirname(spec['folder'])}/{KEEPER_LOCK}")
    try:
        if too_few:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "start")
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
        _thread.start_new_thread(sync_at_intervals, (f"{keeper.folder}/{OUTPUT}",))
    keeper.run()
