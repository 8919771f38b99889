"""The front's side of a run: starts the keeper on the best rung, relays the terminal, waits for the end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, OUR_FAILURE, OomproofError
from oomproof.machine import cgroups, cuda_checkpoint
from oomproof.runner import keeper as protocol
from oomproof.runner import limits
from oomproof.runner.terminal import Terminal, pack_size

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED = (signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)  # by us, not by the job
_HELLO_SECONDS = 20.0  # systemd on a busy machine takes its time


@dataclass
class Launch:
    """What is to be started, and how."""

    argv: list[str]
    environment: dict[str, str]
    attempt: Path
    unit: str
    cap: int  # bytes the kernel shall hold the job to
    grace: float
    output_cap: int
    watch_only: bool = False
    detached: bool = False
    oom_score_add: int = 0


@dataclass
class Front:
    launch: Launch
    terminal: Terminal
    rung: limits.Rung = field(default_factory=lambda: limits.Rung(limits.WATCH))
    keeper_pid: int = 0

    def __post_init__(self) -> None:
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._socket: socket.socket | None = None
        self._handlers: dict[int, Any] = {}
        self._closed: set[bytes] = set()
        self.on_interrupt: Callable[[str], None] = lambda _: None

    # --- signals -----------------------------------------------------------------------------------------------

    def catch_signals(self) -> None:
        """From before the job exists: one that comes between its start and our loop must reach it, not end us."""
        before = self._handlers
        for number in (*FORWARDED, signal.SIGWINCH, signal.SIGCONT):
            if signal.getsignal(number) == signal.SIG_IGN:
                continue  # `&` in a script: a SIGINT that shall not end the job must not end it through us
            before[number] = signal.signal(number, lambda *_: None)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)
        for number in _IGNORED:
            before[number] = signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def release_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    # --- starting ------------------------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """The keeper's "started" news. Tries the rungs from the best down."""
        reasons: list[str] = []
        for rung in self._rungs(reasons):
            rung.why_not_better = list(reasons)
            self.rung = rung
            self._send_spec()
            news = self._news()
            if "failed" in news:
                number, text, stage = news["failed"]
                os.waitpid(self.keeper_pid, 0)
                if stage == "join the cgroup":
                    reasons.append(f"{rung.name}: the job could not join it ({text})")
                    continue
                raise self._cannot_start(number, text)
            return news
        raise OomproofError(
            "the keeper could not be started", "see keeper.err in the run's folder", OUR_FAILURE
        )

    def _rungs(self, reasons: list[str]) -> Any:
        """Each rung that can be made, with its keeper running; a reason for each that cannot."""
        launch = self.launch
        if not launch.watch_only:
            yield from self._scopes(reasons)
            for make in (limits.make_v2, limits.make_v1):
                rung, reason = make(launch.unit, launch.cap)
                if rung is None:
                    reasons.append(reason)
                    continue
                self._spawn_keeper([])
                yield rung
        self._spawn_keeper([])
        yield limits.Rung(limits.WATCH, note=limits.AS_ASKED if launch.watch_only else "")

    def _scopes(self, reasons: list[str]) -> Any:
        launch = self.launch
        if not limits.has_systemd():
            return  # not worth a word: nothing the user could change
        is_root = os.geteuid() == 0
        note = ""
        if not is_root:
            if not limits.user_manager_answers():
                reasons.append(
                    "no systemd user manager answers (log in over ssh or a desktop, or use `machinectl shell`)"
                )
                return
            user = _user_name()
            if not limits.lingers(user):
                if launch.detached:
                    reasons.append(
                        "a systemd user scope would die with your last logout; "
                        f"`loginctl enable-linger {user}` makes it the best rung"
                    )
                    return
                note = f"your last logout may end it; to rule that out: loginctl enable-linger {user}"
        unit = f"oomproof-{launch.unit}"
        try:
            self._spawn_keeper(limits.scope_command(unit, user_manager=not is_root))
        except OomproofError as error:
            reasons.append(f"systemd gave no scope ({error.message})")
            return
        scope = cgroups.own_directory("", self.keeper_pid)
        name = limits.SYSTEM_SCOPE if is_root else limits.USER_SCOPE
        rung = limits.shape_scope(name, scope, self.keeper_pid, launch.cap) if scope else None
        if rung is None:
            reasons.append("the systemd scope does not hand the memory controller down")
            self._dismiss_keeper()
            return
        if launch.detached and not limits.attach_to_scope(unit, "/keeper", os.getpid(), not is_root):
            note = "its guard stays in this login session and may end with it, the job does not"
        rung.note = note
        yield rung

    def _spawn_keeper(self, prefix: list[str]) -> None:
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [*prefix, sys.executable, "-I", "-S", protocol.__file__, str(theirs.fileno())]
        log = os.open(
            self.launch.attempt / "keeper.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        try:
            # Signals wait until the keeper stands in a session of its own: Ctrl-C now must not kill it half-born.
            try:
                self.keeper_pid = os.posix_spawnp(
                    command[0], command, os.environ, file_actions=actions, setsigdef=_IGNORED, setsid=True
                )
            except NotImplementedError:  # the keeper then does it itself
                self.keeper_pid = os.posix_spawnp(
                    command[0], command, os.environ, file_actions=actions, setsigdef=_IGNORED
                )
        except OSError as error:
            raise OomproofError(f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            for fd in (log, null):
                os.close(fd)
            theirs.close()
        self._socket = ours
        ours.settimeout(_HELLO_SECONDS)
        try:
            self._news()
        except OSError as error:
            self._dismiss_keeper()
            raise OomproofError(self._keeper_said()) from error
        ours.settimeout(None)

    def _dismiss_keeper(self) -> None:
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.keeper_pid, signal.SIGTERM)
            os.waitpid(self.keeper_pid, 0)

    def _keeper_said(self) -> str:
        with contextlib.suppress(OSError):
            text = (self.launch.attempt / "keeper.err").read_text(errors="replace").strip()
            if text:
                return text.splitlines()[-1]
        return "it did not answer"

    def _send_spec(self) -> None:
        assert self._socket is not None
        launch, rung, terminal = self.launch, self.rung, self.terminal
        spec = {
            "argv": launch.argv,
            "env": launch.environment,
            "folder": str(launch.attempt),
            "tty": [] if launch.detached else terminal.tty_numbers,
            "termios": None if launch.detached else terminal.attributes(),
            "size": terminal.size(),
            "merge": terminal.merges(),
            "stdin": "null" if launch.detached else "inherit",
            "ignored": [
                int(number)
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
                if signal.getsignal(number) == signal.SIG_IGN
            ],
            "join": rung.join,
            "procs": rung.procs,
            "kill": rung.kill,
            "freeze": rung.freeze,
            "gpu_script": cuda_checkpoint.__file__,
            "oom_score_add": launch.oom_score_add,
            "remove": rung.remove,
            "counters": rung.counters(),
            "grace": launch.grace,
            "output_cap": launch.output_cap,
        }
        protocol.send_frame(self._socket, b"J", json.dumps(spec).encode())

    def _news(self) -> dict[str, Any]:
        assert self._socket is not None
        try:
            while True:
                kind, payload = protocol.receive_frame(self._socket)
                if kind == b"J":
                    value: dict[str, Any] = json.loads(payload)
                    return value
        except EOFError as error:
            raise ConnectionResetError("the keeper ended") from error

    def _cannot_start(self, number: int, text: str) -> OomproofError:
        name = self.launch.argv[0]
        import errno

        if number in (errno.ENOENT, errno.ENOTDIR):
            return OomproofError(f"{name}: command not found", "check the spelling and PATH", NOT_FOUND)
        if number == errno.ENOEXEC:
            return OomproofError(
                f"{name} is no program and has no #! line",
                f"run it with its interpreter: sh {name}",
                CANNOT_EXECUTE,
            )
        return OomproofError(f"cannot execute {name}: {text}", f"chmod +x {name}", CANNOT_EXECUTE)

    # --- while it runs --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """From any thread: a line on the user's terminal."""
        self._messages.put(text)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def relay(self, status: Callable[[], str] | None) -> dict[str, Any] | None:
        """Passes everything on until the job has ended; its exit record, or None when the keeper vanished."""
        assert self._socket is not None
        terminal = self.terminal
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        selector.register(self._wake_read, selectors.EVENT_READ)
        reading = False
        try:
            reading = self._take_keyboard(selector, reading)
            while True:
                for key, _ in selector.select(1.0 if status else None):
                    if key.fileobj is self._socket:
                        exit_record = self._from_keeper()
                        if exit_record is not None:
                            return exit_record or None
                    elif key.fd == self._wake_read:
                        for caught in os.read(self._wake_read, 4096):
                            self._on_signal(caught)
                        reading = self._take_keyboard(selector, reading)
                    elif key.fd == 0:
                        reading = self._from_keyboard(selector)
                self._show_messages()
                if status is not None:
                    terminal.status(status())
        finally:
            terminal.restore()
            self._show_messages()
            selector.close()

    def _take_keyboard(self, selector: selectors.BaseSelector, reading: bool) -> bool:
        """At the start, and again when we come to the foreground (`fg`)."""
        if self.launch.detached or reading or self.terminal.gone or not self.terminal.go_raw():
            return reading
        selector.register(0, selectors.EVENT_READ)
        return True

    def _from_keyboard(self, selector: selectors.BaseSelector) -> bool:
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            selector.unregister(0)
            return False
        if b"\x03" in data:
            self.on_interrupt("Ctrl-C")
        self._send(b"I", data)
        return True

    def _send(self, kind: bytes, payload: bytes) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the keeper's end is read where we wait for it
                protocol.send_frame(self._socket, kind, payload)

    def _from_keeper(self) -> dict[str, Any] | None:
        """The exit record when it is over, an empty one when the keeper vanished, None to go on."""
        assert self._socket is not None
        try:
            kind, payload = protocol.receive_frame(self._socket)
        except (EOFError, OSError):
            return {}
        if kind == b"T":
            self.terminal.pty_output(payload)
            return None
        if kind in (b"O", b"E"):
            if kind not in self._closed and not self.terminal.stream_output(
                1 if kind == b"O" else 2, payload
            ):
                self._closed.add(kind)  # told once: nobody reads it any more, the job shall see a closed pipe
                self._send(b"C", kind)
            return None
        news: dict[str, Any] = json.loads(payload)
        if "leftovers" in news:
            names = ", ".join(sorted(set(news["leftovers"]))[:4])
            wait = f"ending them in {news['wait']:.0f} s (Ctrl-C: now)" if news["wait"] else "ending them"
            count = len(news["leftovers"])
            self.terminal.message(
                f"oomproof: the command ended but left {count} of its processes behind ({names}): {wait}"
            )
        found: dict[str, Any] | None = news.get("exit")
        return found

    def _on_signal(self, number: int) -> None:
        if number in FORWARDED:
            self.on_interrupt(signal.Signals(number).name)
            self._send(b"S", bytes([number]))
        elif number == signal.SIGWINCH:
            self._send(b"W", pack_size(*self.terminal.size()))
        elif number == signal.SIGHUP:
            self.terminal.hang_up()

    def _show_messages(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.terminal.message(self._messages.get_nowait())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.keeper_pid, 0)


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
