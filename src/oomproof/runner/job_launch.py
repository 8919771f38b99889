"""Starts the keeper on the best limit backend that can be had, and through it the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from oomproof.errors import CANNOT_EXECUTE, MORE_FILES, NOT_FOUND, OUR_FAILURE, OomproofError
from oomproof.leaf import start_by_path
from oomproof.leaf.proc_files import with_start
from oomproof.leaf.process_signals import become_subreaper
from oomproof.machine import cgroups, processes, systemd_manager
from oomproof.recording.attempt import Attempt
from oomproof.recording.spare_files import spare_folders
from oomproof.records import dataclass
from oomproof.runner import keeper, limit_backends
from oomproof.runner.attempt_files import remove_cgroups
from oomproof.runner.followed_file import Followed, followed, open_to_follow
from oomproof.runner.keeper_frames import receive_frame, receive_with_fds, send_frame, send_with_fds
from oomproof.runner.terminal import Terminal

IGNORED = (signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)  # by us, not by the job
_SCOPE_SECONDS = 20.0  # systemd on a busy machine takes its time; there are other backends
# a keeper that dies hangs up, so this is for a machine that hardly moves (20 s were seen)
_HELLO_SECONDS = 300.0


@dataclass
class Launch:
    """What is to be started, and how."""

    argv: list[str]
    environment: dict[str, str]
    attempt: Attempt
    unit: str
    cap: int  # bytes the kernel shall hold the job to
    grace: float
    output_cap: int
    watch_only: bool = False
    detached: bool = False
    oom_score_add: int = 0
    name: str = ""  # what a command calls the run by
    # the limits of open files the job shall have, where ours are others
    nofile: tuple[int, int] | None = None


class Launcher:
    """What it leaves, once ``start`` has returned: the keeper's pid and socket, what it was told, the descriptors it shares."""

    def __init__(self, launch: Launch, terminal: Terminal, say: Callable[[str], None]) -> None:
        self._launch, self._terminal, self._say = launch, terminal, say
        self.backend = limit_backends.LimitBackend(limit_backends.WATCH)
        self.keeper_pid = 0
        self.socket: socket.socket | None = None
        self.spec: dict[str, Any] = {}
        self.held: dict[str, int] = {}  # streams by letter, the pty's other end, its lock
        self.files: list[Followed] = []  # those of them that are files, which the job writes to itself
        self._made: list[str] = []  # cgroups
        self._logout_note = ""

    def start(self) -> dict[str, Any]:
        """started.json of the job, which runs from now on. A start that fails leaves no cgroup behind."""
        try:
            return self._start()
        except BaseException:
            remove_cgroups(self._made)
            raise

    def _start(self) -> dict[str, Any]:
        """Tries the backends from the best down."""
        become_subreaper()  # a job whose keeper is killed then becomes ours
        reasons: list[str] = []
        for backend in self._backends(reasons):
            backend.why_not_better = list(reasons)
            self.backend = backend
            try:
                news = self._start_job()
            except (EOFError, OSError) as error:
                return self._started_without_keeper(error)
            if "failed" in news:
                number, text, stage = news["failed"]
                self._dismiss_keeper()
                if stage == "join the cgroup":
                    reasons.append(f"{backend.name}: the job could not join it ({text})")
                    continue
                raise self._cannot_start(number, text, stage)
            started: dict[str, Any] = news["started"]
            if news.get("unwritten"):
                self._say(
                    f"oomproof: started.json could not be written ({news['unwritten']}); "
                    "`oomproof watch` and `stop` will not find this run"
                )
            return started
        raise OomproofError(
            "the keeper could not be started", "see keeper.err in the run's folder", OUR_FAILURE
        )

    def _start_job(self) -> dict[str, Any]:
        """The keeper makes the streams, we hold them too, it starts the job."""
        assert self.socket is not None
        self._send_spec()
        _, payload, fds = receive_with_fds(self.socket)
        news: dict[str, Any] = json.loads(payload)
        if "streams" not in news:
            return news
        self.held = dict(zip(news["streams"], fds, strict=False))
        for fd in fds:
            os.set_inheritable(fd, False)
        if len(fds) != len(news["streams"]):
            self._dismiss_keeper()
            raise OomproofError("too few open files are allowed to start the job", MORE_FILES, OUR_FAILURE)
        self.files = followed(self.held)
        self._terminal.own_file = next((file for file in self.files if file.is_where(2)), None)
        send_frame(self.socket, b"G", b"")
        return self._news()

    def _started_without_keeper(self, error: Exception) -> dict[str, Any]:
        """The keeper was killed while it started the job: if that is there, it is ours."""
        started = self._launch.attempt.started()
        if not started or not self.held:
            self._dismiss_keeper()
            raise OomproofError(
                f"the keeper ended before the job was started: {self._keeper_said()}"
            ) from error
        return started

    def _backends(self, reasons: list[str]) -> Any:
        """Each backend that can be made, with its keeper running; a reason for each that cannot."""
        launch = self._launch
        if not launch.watch_only:
            yield from self._scopes(reasons)
            for make in (limit_backends.make_v2, limit_backends.make_v1):
                backend, reason = make(launch.unit, launch.cap)
                if backend is None:
                    reasons.append(reason)
                    continue
                self._made += backend.remove
                self._spawn_keeper([])
                yield backend
        self._spawn_keeper([])
        yield limit_backends.LimitBackend(
            limit_backends.WATCH, note=limit_backends.AS_ASKED if launch.watch_only else self._logout_note
        )

    def _scopes(self, reasons: list[str]) -> Any:
        launch = self._launch
        if not systemd_manager.has_systemd():
            return  # not worth a word: nothing the user could change
        is_root = os.geteuid() == 0
        note = ""
        if not is_root:
            if not limit_backends.user_manager_answers():
                reasons.append(
                    "no systemd user manager answers (log in over ssh or a desktop, or use `machinectl shell`)"
                )
                return
            user = _user_name()
            if not systemd_manager.lingers(user):
                note = f"your last logout may end it; to prevent that: loginctl enable-linger {user}"
                if launch.detached:
                    reasons.append("a systemd user scope would end with your last logout")
                    self._logout_note = note
                    return
        unit = f"oomproof-{launch.unit}"
        try:
            self._spawn_keeper(limit_backends.scope_command(unit, user_manager=not is_root))
        except OomproofError as error:
            reasons.append(f"systemd gave no scope ({error.message})")
            return
        scope = cgroups.own_directory("", self.keeper_pid)
        name = limit_backends.SYSTEM_SCOPE if is_root else limit_backends.USER_SCOPE
        backend = limit_backends.shape_scope(name, scope, self.keeper_pid, launch.cap) if scope else None
        if backend is None:
            reasons.append("the systemd scope does not delegate the memory controller")
            self._dismiss_keeper()
            return
        if launch.detached and not limit_backends.attach_to_scope(unit, "/keeper", os.getpid(), not is_root):
            note = "its guard stays in this login session and may end with it; the job does not"
        backend.note = note
        yield backend

    def _spawn_keeper(self, prefix: list[str]) -> None:
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        command = [*prefix, *start_by_path.command(keeper.__file__), str(theirs.fileno())]
        log = os.open(
            self._launch.attempt.keeper_errors_file,
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        try:
            # Signals wait until the keeper stands in a session of its own: Ctrl-C now must not kill it before that.
            try:
                self.keeper_pid = os.posix_spawnp(
                    command[0], command, os.environ, file_actions=actions, setsigdef=IGNORED, setsid=True
                )
            except NotImplementedError:  # the keeper then does it itself
                self.keeper_pid = os.posix_spawnp(
                    command[0], command, os.environ, file_actions=actions, setsigdef=IGNORED
                )
        except OSError as error:
            raise OomproofError(f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            for fd in (log, null):
                os.close(fd)
            theirs.close()
        self.socket = ours
        ours.settimeout(_SCOPE_SECONDS if prefix else _HELLO_SECONDS)
        try:
            self._news()
        except OSError as error:
            self._dismiss_keeper()
            raise OomproofError(self._keeper_said()) from error
        ours.settimeout(None)

    def _dismiss_keeper(self) -> None:
        """Nothing was started: it ends when we hang up."""
        self._close_held()
        if self.socket is not None:
            self.socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.keeper_pid, signal.SIGTERM)
            os.waitpid(self.keeper_pid, 0)

    def _close_held(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held = {}

    def _keeper_said(self) -> str:
        with contextlib.suppress(OSError):
            text = self._launch.attempt.keeper_errors_file.read_text(errors="replace").strip()
            if text:
                return text.splitlines()[-1]
        return "it did not answer"

    def _send_spec(self) -> None:
        assert self.socket is not None
        launch, backend, terminal = self._launch, self.backend, self._terminal
        tty = [] if launch.detached else terminal.tty_numbers
        self.spec = spec = {
            "argv": launch.argv,
            "env": launch.environment,
            "folder": str(launch.attempt),
            "spares": spare_folders(launch.attempt.folder),
            "tty": tty,
            "termios": None if launch.detached else terminal.attributes(),
            "size": terminal.size(),
            "merge": terminal.merges(),
            "stdin": "null" if launch.detached else "inherit",
            "ignored": [
                int(number)
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
                if signal.getsignal(number) == signal.SIG_IGN
            ],
            "join": backend.join,
            "procs": backend.procs,
            "kill": backend.kill,
            "freezer": backend.freezer,
            "oom_score_add": launch.oom_score_add,
            "remove": backend.remove,
            "counters": backend.counters(),
            "grace": launch.grace,
            "output_cap": launch.output_cap,
            "nofile": launch.nofile,
            "if_lost": [] if launch.detached else self._if_lost(),
            "started": {
                "boot_id": processes.boot_id(),
                "guard": with_start(os.getpid()),
                "backend": backend.as_json(),
                "memcg": cgroups.memory_path(),
                "terminal": tty,
            },
        }
        readers = {} if launch.detached else open_to_follow([1, 2])
        fds = {str(number): number for number in readers}
        for letter, number in (("O", 1), ("E", 2)):
            if number in readers and readers[number] not in fds.values():
                fds[letter] = readers[number]
        spec["files"] = list(fds)
        try:
            send_with_fds(self.socket, b"J", json.dumps(spec).encode(), list(fds.values()))
        finally:
            for fd in set(readers.values()):
                os.close(fd)

    def _if_lost(self) -> list[str]:
        """A terminal, and what the keeper writes there when we are killed: the shell says "Killed", and the job lives."""
        try:
            terminal = os.ttyname(2)
        except OSError:  # no terminal
            return []
        name = self._launch.name
        return [
            terminal,
            f"oomproof: the guard of run {name} was killed; the job continues without it. "
            f"To guard it again: oomproof watch {name}; its output: oomproof logs -f {name}",
        ]

    def _news(self) -> dict[str, Any]:
        assert self.socket is not None
        try:
            while True:
                kind, payload = receive_frame(self.socket)
                if kind == b"J":
                    value: dict[str, Any] = json.loads(payload)
                    return value
        except EOFError as error:
            raise ConnectionResetError("the keeper ended") from error

    def _cannot_start(self, number: int, text: str, stage: str | None) -> OomproofError:
        name = self._launch.argv[0]
        import errno

        if stage != "execute":
            hint = MORE_FILES if number == errno.EMFILE else "see how many processes you may have: ulimit -u"
            return OomproofError(f"the job could not be started: {text}", hint, OUR_FAILURE)
        if number in (errno.ENOENT, errno.ENOTDIR):
            return OomproofError(f"{name}: command not found", "check the spelling and PATH", NOT_FOUND)
        if number == errno.ENOEXEC:
            return OomproofError(
                f"{name} is not a program and has no #! line",
                f"run it with its interpreter: sh {name}",
                CANNOT_EXECUTE,
            )
        return OomproofError(f"cannot execute {name}: {text}", f"chmod +x {name}", CANNOT_EXECUTE)


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
