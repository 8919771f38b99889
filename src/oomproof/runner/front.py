"""The front's side of a run: has the job started, relays the terminal, takes the keeper's place if it must, waits for the end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from oomproof.printable import one_line
from oomproof.records import dataclass, field
from oomproof.runner import keeper, limit_backends
from oomproof.runner.followed_file import Followed
from oomproof.runner.job_launch import IGNORED, Launch, Launcher
from oomproof.runner.job_streams import Streams
from oomproof.runner.keeper_frames import receive_frame, send_frame
from oomproof.runner.output_log import Output
from oomproof.runner.takeover import TakenOver
from oomproof.runner.terminal import Terminal

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_STATUS_SECONDS = 0.5
_STATUS_WAIT, _STATUS_WAIT_CALM = 1.0, 4.0  # between two looks at what the status line should say


@dataclass
class Front:
    launch: Launch
    terminal: Terminal
    backend: limit_backends.LimitBackend = field(
        default_factory=lambda: limit_backends.LimitBackend(limit_backends.WATCH)
    )
    keeper_pid: int = 0

    def __post_init__(self) -> None:
        self._messages: deque[str] = deque()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        # before there is a job that could be left for want of it
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._socket: socket.socket | None = None
        self._handlers: dict[int, Any] = {}
        self._spec: dict[str, Any] = {}
        self._held: dict[
            str, int
        ] = {}  # what the keeper shares: streams by letter, the pty's other end, its lock
        self._files: list[Followed] = []  # those of them that are files, which the job writes to itself
        self._streams: Streams | None = None
        self._kept: TakenOver | None = None  # the keeper's part, once the keeper is gone
        self._stand_in: socket.socket | None = None  # closed by our death: somebody else keeps the job then
        self._record: dict[str, Any] | None = None  # how it ended
        self._status: dict[str, Any] = {}  # the leader's end as the keeper told it
        self._reading = False  # the keyboard
        self._recorded_errors: set[str] = set()
        self._next_keep = self._next_status = 0.0
        self._status_text, self._status_wait = "", _STATUS_WAIT
        self._drained = False
        self._over_since: float | None = None
        self.started: dict[str, Any] = {}  # what started.json says
        self.on_interrupt: Callable[[str], None] = lambda _: None
        self.on_output_lost: Callable[[OSError], None] = lambda _: None
        self.on_output_full: Callable[[], None] = lambda: None
        self.was_ended: Callable[[], bool] = lambda: False  # by the guard
        self.on_takeover: Callable[[str], None] = lambda _: None

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
        for number in IGNORED:
            before[number] = signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def release_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._wake_read = self._wake_write = -1

    # --- starting ------------------------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """started.json of the job, which runs from now on. A start that fails leaves no cgroup behind."""
        launcher = Launcher(self.launch, self.terminal, self.say)
        self.started = launcher.start()
        self.backend, self.keeper_pid = launcher.backend, launcher.keeper_pid
        self._socket, self._spec, self._held = launcher.socket, launcher.spec, launcher.held
        self._files = launcher.files
        return self.started

    # --- while it runs --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """From any thread: a line on the user's terminal."""
        self._messages.append(text)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it wakes all the same; or released
            os.write(self._wake_write, b"\0")

    def relay(
        self, status: Callable[[], str] | None, tick: Callable[[], float | None] = lambda: None
    ) -> dict[str, Any]:
        """Passes everything on until the job has ended; its exit record.

        ``tick`` is called between; it says after how many seconds again, None when that does not matter.
        """
        terminal = self.terminal
        self._streams = Streams(
            self._selector,
            self._held,
            terminal,
            Output(self._spec["folder"], self._spec["output_cap"]),
            shown=not self.launch.detached,
            on_closed=self._output_lost,
            files=self._files,
            on_full=lambda: self.on_output_full(),
        )
        if self._socket is not None:
            self._selector.register(self._socket, selectors.EVENT_READ)
        self._take_keyboard()
        try:
            while self._record is None or not self._drained:
                try:
                    self._round(status, tick)
                except (
                    Exception
                ) as error:  # no descriptor, no memory, a bug of ours: the job must not pay for it
                    self._record_error(error)
        finally:
            terminal.restore()
            self._show_messages()
            self._selector.close()
        return self._record

    def _round(self, status: Callable[[], str] | None, tick: Callable[[], float | None]) -> None:
        assert self._streams is not None
        served = False
        for key, mask in self._selector.select(self._patience(status is not None, tick())):
            if key.fileobj is self._socket:
                self._from_keeper()
            elif key.fd == self._wake_read:
                for caught in os.read(self._wake_read, 4096):
                    self._on_signal(caught)
                self._take_keyboard()
            elif key.fd == 0:
                self._from_keyboard()
            else:
                served = True
                self._streams.serve(key.fd, mask)
        if self._kept is not None and (self._kept.ended or time.monotonic() >= self._next_keep):
            self._next_keep = time.monotonic() + 1.0
            self._keep(self._kept)
        if self._over_since is not None and not self._drained:
            self._drain(self._over_since)
        self._streams.follow()
        if not served:  # a moment without output: what waits for the log has its turn
            self._streams.log.settle(all_of_it=True)
        self._show_messages()
        if status is not None and time.monotonic() >= self._next_status:  # not for each piece of output
            self._next_status = time.monotonic() + _STATUS_SECONDS
            before, self._status_text = self._status_text, status()
            unchanged = self._status_text == before and self.terminal.status_shown
            self._status_wait = min(_STATUS_WAIT_CALM, 2 * self._status_wait) if unchanged else _STATUS_WAIT
            self.terminal.status(self._status_text)

    def _record_error(self, error: Exception) -> None:
        """Told once for each kind; the next round may go better."""
        text = f"{type(error).__name__}: {error}"
        if text not in self._recorded_errors:
            self._recorded_errors.add(text)
            with contextlib.suppress(Exception):
                self.terminal.message(f"oomproof: an internal error, it continues ({text})")
        time.sleep(0.02)

    def _patience(self, shows_status: bool, ticks: float | None) -> float | None:
        if self._over_since is not None or (self._kept is not None and self._kept.ended):
            return 0.05
        wanted = [1.0] if self._kept is not None else []
        if shows_status:
            wanted.append(self._status_wait)
        if self._streams is not None and self._streams.log.holds_back:
            wanted.append(0.2)
        if self._streams is not None and self._streams.follow_in is not None:
            wanted.append(self._streams.follow_in)
        return min([*wanted, ticks] if ticks is not None else wanted, default=None)

    def _take_keyboard(self) -> None:
        """At the start, and again when we come to the foreground (`fg`)."""
        if self.launch.detached or self._reading or self.terminal.gone or not self.terminal.go_raw():
            return
        self._selector.register(0, selectors.EVENT_READ)
        self._reading = True

    def _from_keyboard(self) -> None:
        assert self._streams is not None
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(0)
            self._reading = False
            return
        if b"\x03" in data:
            self.on_interrupt("Ctrl-C")
        self._streams.type(data)

    def makes_signals_of_keys(self) -> bool:
        """Not where the job reads Ctrl-C as a key, as an editor does."""
        return self._streams is None or self._streams.makes_signals_of_keys()

    def _send(self, kind: bytes, payload: bytes) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the keeper's end is read where we wait for it
                send_frame(self._socket, kind, payload)

    def _from_keeper(self) -> None:
        assert self._socket is not None
        try:
            _, payload = receive_frame(self._socket)
        except (EOFError, OSError):
            self._on_keeper_lost()
            return
        news: dict[str, Any] = json.loads(payload)
        if "leftovers" in news:
            self._tell_leftovers(news)
        if "ended" in news:
            self._status = news
            self._close_slave()
        if "over" in news:
            self._over_since = time.monotonic()
        if "exit" in news:
            self._record = news["exit"]
            self._over_since = self._over_since or time.monotonic()

    def _tell_leftovers(self, news: dict[str, Any]) -> None:
        if self.was_ended():  # all of it, and that was said
            return
        names = one_line(", ".join(sorted(set(news["leftovers"]))[:4]))
        wait = f"ending them in {news['wait']:.0f} s (Ctrl-C: now)" if news["wait"] else "ending them"
        count = len(news["leftovers"])
        self.terminal.message(
            f"oomproof: the command ended but left {count} of its processes behind ({names}): {wait}"
        )

    def _close_slave(self) -> None:
        """With the leader dead, the end of its terminal is the end of the last one who has it open."""
        if "slave" in self._held:
            os.close(self._held.pop("slave"))

    def _output_lost(self, letter: bytes, error: OSError) -> None:
        """As after `| head`: the job meets a closed pipe, and the verdict shall know whose. Nobody sent it a signal."""
        self._send(b"C", letter)
        self.on_output_lost(error)

    def _drain(self, since: float) -> None:
        """What the dead left in the pipes; a slow reader of ours is waited for, an unrelated process with an open end is not."""
        assert self._streams is not None
        streams = self._streams
        streams.finish_files()
        if streams.blocked:
            self._over_since = time.monotonic()
        elif not streams.open or time.monotonic() - since > keeper.LAST_OUTPUT:
            self._drained = True
            streams.log.close()
            self._send(b"D", (streams.trouble or "").encode())

    # --- when the keeper was killed ---------------------------------------------------------------------------------

    def _on_keeper_lost(self) -> None:
        """Somebody killed it, or it has ended as it should. In the first case its part is ours from now on."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        if self._record is not None:
            return
        how = self._wait_for_keeper()
        kept = TakenOver(self._spec, self.started, self._status, self._held.get("lock"))
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes us
        kept.on_news = self._on_own_news
        self._kept = kept
        self.say(
            f"oomproof: the keeper of the job (pid {self.keeper_pid}) was {how}; the job continues, "
            "and this process has taken over"
        )
        self.on_takeover(f"the keeper was {how}; the front keeps the job from now on")
        try:
            from oomproof.runner.stand_in import stand_by  # brings subprocess along: only for this case

            self._stand_in = stand_by(self.launch.attempt.run_folder, self._held)
            if "ended" in self._status:
                self._tell_stand_in(json.dumps(self._status).encode())
        except OSError as error:
            self.say(
                f"oomproof: no process stands by: if this one is killed, the job ends too ({error.strerror})"
            )

    def _wait_for_keeper(self) -> str:
        """After this the job is our child: the kernel hands it over before its parent can be waited for."""
        for _ in range(200):
            try:
                pid, status = os.waitpid(self.keeper_pid, os.WNOHANG)
            except ChildProcessError:
                return "lost"
            if pid:
                number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                return f"killed ({signal.Signals(number).name})" if number else "lost"
            time.sleep(0.01)
        with contextlib.suppress(OSError):  # it hung up on us and hangs: two must not keep one job
            os.kill(self.keeper_pid, signal.SIGKILL)
            os.waitpid(self.keeper_pid, 0)
        return "lost"

    def _tell_stand_in(self, data: bytes) -> None:
        if self._stand_in is not None:
            with contextlib.suppress(OSError):
                self._stand_in.send(data)

    def _on_own_news(self, news: dict[str, Any]) -> None:
        if "ended" in news:
            self._close_slave()
            # it reads what is left in the pipes, should we be killed
            self._tell_stand_in(json.dumps(news).encode())
        if "leftovers" in news:
            self._tell_leftovers(news)

    def _keep(self, kept: TakenOver) -> None:
        """The keeper's part of one round."""
        kept.reap()
        if not kept.ended or not kept.end_leftovers():
            return
        self._over_since = self._over_since or time.monotonic()
        if self._drained and self._record is None:
            kept.trouble = self._streams.trouble if self._streams is not None else None
            kept.finish()
            self._record = kept.record
            if self._stand_in is not None:
                self._tell_stand_in(b"D")
                self._stand_in.close()

    def _on_signal(self, number: int) -> None:
        if number in FORWARDED:
            self.on_interrupt(signal.Signals(number).name)
            if self._kept is not None:
                self._kept.forward_signal(number)
            else:
                self._send(b"S", bytes([number]))
        elif number == signal.SIGWINCH and self._streams is not None:
            self._streams.resize(*self.terminal.size())
        elif number == signal.SIGHUP:
            self.terminal.hang_up()
        elif number == signal.SIGCHLD:
            self._next_keep = 0.0

    def _show_messages(self) -> None:
        while self._messages:
            self.terminal.message(self._messages.popleft())

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held = {}
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.keeper_pid, 0)
