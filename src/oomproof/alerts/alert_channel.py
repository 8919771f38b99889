"""The guard's end of the alerts: ``Alerts(settings).send(Alert(...))`` never waits, never raises, and costs microseconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from oomproof.alerts.alert import END, Alert
from oomproof.alerts.receivers import OFF, AlertSettings
from oomproof.leaf import start_by_path
from oomproof.machine.host_identity import host_name
from oomproof.records import asdict

WAIT_AT_END = 2.0  # seconds: then the process that sends continues alone
_MOST_UNSENT = 256 * 1024  # bytes
_RESTARTS, _RESTART_PAUSE = 3, 5.0
_SENDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "alert_sender.py")
_IGNORED = (signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)


class Alerts:
    """``tell`` gets what went wrong with a receiver, a sentence each, from another thread."""

    def __init__(
        self, settings: AlertSettings | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        settings = settings or AlertSettings()
        self._settings = AlertSettings() if os.environ.get(OFF) else settings
        self.tell = tell
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._unsent, self._dropped = b"", 0
        self._first: dict[str, Any] = {}
        self._pid = 0
        self._reader: threading.Thread | None = None
        self._closing = False

    @property
    def is_on(self) -> bool:
        return not self._settings.is_empty

    @property
    def hears_every_end(self) -> bool:
        return self._settings.on_end is not None

    def start(
        self, log: str = "", lost: Alert | None = None, guarded: tuple[int, int | None] = (0, None)
    ) -> None:
        """``log``: a file for what could not be delivered. ``lost``: told when we vanish while the process ``guarded``, a pid
        and its start, lives on. Raises OSError where no process can be had."""
        if not self.is_on:
            return
        self._first = {"receivers": asdict(self._settings), "log": log}
        if lost is not None:
            alert = lost.as_json(host_name(), time.time())
            self._first["lost"] = {"alert": alert, "pid": guarded[0], "start": guarded[1]}
        if self._socket is not None:  # another attempt: another log, another process to be told of
            self._put({"log": log, "lost": self._first.get("lost")}, always=True)
            return
        self._spawn()
        self._reader = threading.Thread(target=self._read, name="alerts", daemon=True)
        self._reader.start()

    def send(self, alert: Alert) -> None:
        if self.is_on:
            with contextlib.suppress(Exception):  # whatever it is, the guard has more to do
                is_last = alert.kind == END
                self._put({"alert": alert.as_json(host_name(), time.time())}, is_last)

    def close(self, wait: float = WAIT_AT_END) -> None:
        """After the last alert. What is not delivered within ``wait`` seconds is delivered without us."""
        if self._socket is None or self._closing:
            return
        self._closing = True
        with contextlib.suppress(OSError, RuntimeError):
            self._put({"goodbye": True}, always=True)
            with self._lock:
                self._socket.settimeout(wait)
                if self._unsent:
                    self._socket.sendall(self._unsent)
                self._socket.shutdown(socket.SHUT_WR)
        if self._reader is not None:
            self._reader.join(wait)
        with contextlib.suppress(OSError):
            os.waitpid(self._pid, os.WNOHANG)

    # --- the process that sends -------------------------------------------------------------------------------

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            os.set_inheritable(theirs.fileno(), True)
            command = [*start_by_path.command(_SENDER), str(theirs.fileno())]
            # ours are somebody's pipe or terminal: who reads it must not wait for the last delivery
            streams = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
            options: dict[str, Any] = {"file_actions": streams, "setsigdef": _IGNORED}
            try:
                self._pid = os.posix_spawn(command[0], command, os.environ, setsid=True, **options)
            except NotImplementedError:  # an old C library
                self._pid = os.posix_spawn(command[0], command, os.environ, setpgroup=0, **options)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        with self._lock:
            before, self._socket = self._socket, ours
            self._unsent = json.dumps(self._first).encode() + b"\n" + self._unsent
            self._flush()
        if before is not None:
            before.close()

    def _put(self, order: dict[str, Any], always: bool = False) -> None:
        """``always``: also when too much waits to be sent; what is left out is counted."""
        with self._lock:
            if always or len(self._unsent) < _MOST_UNSENT:
                line = json.dumps({**order, "dropped": self._dropped}).encode() + b"\n"
                self._unsent, self._dropped = self._unsent + line, 0
            else:
                self._dropped += 1
            self._flush()

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]
        except OSError:  # full, or the process is gone: kept for the next
            pass

    def _read(self) -> None:
        """What the sender has to tell; a new one when it was killed."""
        for restarts in range(_RESTARTS + 1):
            self._listen()
            if self._closing or restarts == _RESTARTS:
                return
            with contextlib.suppress(OSError):
                os.waitpid(self._pid, 0)
            time.sleep(_RESTART_PAUSE)
            try:
                self._spawn()
            except OSError as error:
                self._say(f"alerts can no longer be delivered ({error.strerror})")
                return

    def _listen(self) -> None:
        channel, data = self._socket, b""
        assert channel is not None
        with contextlib.suppress(OSError):
            while chunk := channel.recv(65536):
                *lines, data = (data + chunk).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):
                        order = json.loads(line)
                        if isinstance(order, dict) and order.get("tell"):
                            self._say(str(order["tell"]))

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):
            self.tell(text)
