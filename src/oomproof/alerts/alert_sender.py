"""The process that sends: reads alerts from the guard's socket, masks and limits them, hands each receiver its own.

Started before memory is short, in a session of its own. However long a receiver takes, the guard never waits; when the
run has ended it stays until the last message is delivered, or its time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections import OrderedDict, deque
from typing import Any

from oomproof.alerts.alert import ALERT, END, QUIET
from oomproof.alerts.deliveries import END_SECONDS, Command, Desktop, Mail, NotDelivered, Receiver, Webhook
from oomproof.leaf.small_files import append
from oomproof.machine import processes
from oomproof.printable import printable
from oomproof.recording.secrets import mask_text
from oomproof.records import dataclass

WINDOW, LONGEST = 300.0, 3600.0  # seconds in which a kind is told once; doubled while it does not end
MOST, SPAN = 12, 600.0  # messages in so many seconds, of all jobs and kinds together
_KEYS = 1000  # jobs and kinds remembered


@dataclass
class _Window:
    until: float
    seconds: float
    withheld: int = 0
    last: dict[str, Any] | None = None


class AlertLimiter:
    """``take`` what comes; ask for ``due`` ones at ``next_time``."""

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()
        self._sent: deque[float] = deque(maxlen=MOST)

    def take(self, alert: dict[str, Any], now: float) -> dict[str, Any] | None:
        """The alert when it may be told now; None when it will be summed up."""
        key = (str(alert.get("run") or alert.get("job")), str(alert.get("kind")))
        window = self._windows.get(key)
        if window is None or (now >= window.until and not window.withheld):
            window = self._windows[key] = _Window(now, WINDOW)
            self._windows.move_to_end(key)
            if len(self._windows) > _KEYS:
                self._windows.popitem(last=False)
            if self._may_send(now):
                window.until = now + WINDOW
                return alert
            window.until = self._sent[0] + SPAN
        window.withheld += 1
        window.last = alert
        return None

    def due(self, now: float) -> list[dict[str, Any]]:
        """Sums of what was withheld, as far as they may be told now; the next ones wait twice as long."""
        alerts = []
        for window in self._windows.values():
            if window.last is None or now < window.until:
                continue
            if not self._may_send(now):
                window.until = self._sent[0] + SPAN
                continue
            alerts.append({**window.last, "repeated": window.withheld - 1})
            window.seconds = min(LONGEST, 2 * window.seconds)
            window.until, window.withheld, window.last = now + window.seconds, 0, None
        return alerts

    @property
    def next_time(self) -> float | None:
        """When something is due; None: nothing waits."""
        return min(
            (window.until for window in self._windows.values() if window.last is not None), default=None
        )

    def withheld(self) -> int:
        """What nobody was told, for the last message."""
        return sum(window.withheld for window in self._windows.values())

    def _may_send(self, now: float) -> bool:
        if len(self._sent) == MOST and now - self._sent[0] < SPAN:
            return False
        self._sent.append(now)
        return True


TRIES, PAUSES = 3, (1.0, 5.0)  # seconds between them
_QUEUED = 16  # messages for one receiver that hangs; the oldest go first
_SECONDS_AFTER = 60.0  # for receivers, once the run has ended
_TELL_AGAIN = 600.0  # seconds: a receiver that fails is told of so often
_LONGEST_LINE = 1 << 20


class Worker:
    """One receiver's messages, one after the other, in a thread of their own: who hangs holds up nobody else."""

    def __init__(self, receiver: Receiver, report: Any) -> None:
        self._receiver, self._report = receiver, report
        self._alerts: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._last = False
        self._told = -_TELL_AGAIN
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, alert: dict[str, Any]) -> None:
        with self._changed:
            if alert["kind"] == END:
                self._alerts.clear()  # whoever was not reached meanwhile is told how it ended
            self._alerts.append(alert)
            while len(self._alerts) > _QUEUED:
                self._alerts.popleft()
            self._changed.notify()

    def finish(self) -> None:
        with self._changed:
            self._last = True
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._alerts and not self._last:
                    self._changed.wait()
                if not self._alerts:
                    return
                alert = self._alerts.popleft()
            self._deliver(alert)

    def _deliver(self, alert: dict[str, Any]) -> None:
        for tried in range(1, TRIES + 1):
            try:
                self._receiver.deliver(alert)
                self._told = -_TELL_AGAIN
                return
            except NotDelivered as failure:
                with self._changed:
                    newer = self._last and bool(self._alerts)
                if not failure.again or tried == TRIES or newer:
                    self._tell(f"{failure}{f' ({tried} times)' if tried > 1 else ''}")
                    return
                with self._changed:  # the end of the run is worth more than another try
                    self._changed.wait_for(lambda: bool(self._alerts), max(failure.wait, PAUSES[tried - 1]))
            except Exception as error:
                self._tell(f"{type(error).__name__}: {error}")
                return

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_AGAIN:
            self._told = now
            self._report(f"alert not delivered: {self._receiver.name}: {text}")


class Sender:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._limiter = AlertLimiter()
        self._log = ""
        self._on_alert: list[Worker] = []
        self._on_end: list[Worker] = []
        self._others: list[Worker] = []
        self._lost: dict[str, Any] = {}
        self._goodbye, self._dropped = False, 0

    def report(self, text: str) -> None:
        """To the guard, which tells its user, and to the run's own log, which outlives both."""
        text = printable(mask_text(text))
        if self._log:
            append(self._log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps({"tell": text}).encode() + b"\n", socket.MSG_DONTWAIT)

    def run(self) -> None:
        for line in self._lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._obey(json.loads(line))
        if not self._goodbye:
            self._tell_loss()
        self._finish()

    def _lines(self) -> Any:
        """Each line that comes; in between, what was withheld and is due."""
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                due = self._limiter.next_time
                wait = None if due is None else max(0.0, due - time.monotonic())
                if selector.select(wait):
                    chunk = b""
                    # the guard left something of ours unread: as good as its end
                    with contextlib.suppress(OSError):
                        chunk = self._channel.recv(65536)
                    if not chunk:
                        return
                    *lines, data = (data + chunk).split(b"\n")
                    data = data[-_LONGEST_LINE:]
                    yield from lines
                for alert in self._limiter.due(time.monotonic()):
                    self._hand_out(alert)

    def _obey(self, order: dict[str, Any]) -> None:
        self._dropped += int(order.get("dropped") or 0)
        if "receivers" in order:
            self._take_receivers(order["receivers"])
            self._log, self._lost = str(order.get("log") or ""), dict(order.get("lost") or {})
        elif "alert" in order:
            alert = masked(order["alert"])
            if alert["kind"] == END:
                if missed := self._limiter.withheld() + self._dropped:
                    alert["repeated"] = missed
                self._hand_out(alert)
            elif (allowed := self._limiter.take(alert, time.monotonic())) is not None:
                self._hand_out(allowed)
        elif "lost" in order:
            self._log, self._lost = str(order.get("log") or ""), dict(order.get("lost") or {})
        elif "goodbye" in order:
            self._goodbye = True

    def _take_receivers(self, given: dict[str, Any]) -> None:
        """One that cannot be had is told of, and the others work."""
        makers: list[tuple[list[Worker], Any]] = []
        if line := given.get("on_alert"):
            makers.append((self._on_alert, lambda: Command("--on-alert", line)))
        if last_line := given.get("on_end"):
            makers.append((self._on_end, lambda: Command("--on-end", last_line)))
        if given.get("desktop"):
            makers.append((self._others, Desktop))
        makers += [(self._others, lambda url=url: Webhook(url)) for url in given.get("webhooks") or ()]
        if addresses := given.get("mail"):
            makers.append((self._others, lambda: Mail(addresses)))
        for workers, make in makers:
            try:
                workers.append(Worker(make(), self.report))
            except Exception as error:
                self.report(f"a receiver of alerts cannot be used ({type(error).__name__})")

    def _hand_out(self, alert: dict[str, Any]) -> None:
        workers = list(self._on_end) if alert["kind"] == END else []
        if alert["level"] == ALERT:
            workers += self._on_alert
        if alert["level"] != QUIET:
            workers += self._others
        for worker in workers:
            worker.put(alert)

    def _tell_loss(self) -> None:
        """The guard vanished without a goodbye, and what it guarded lives on."""
        alert, pid, start = self._lost.get("alert"), self._lost.get("pid"), self._lost.get("start")
        if isinstance(alert, dict) and isinstance(pid, int) and processes.is_alive(pid, start):
            self._hand_out(masked({**alert, "time": time.time()}))

    def _finish(self) -> None:
        everybody = [*self._on_alert, *self._others, *self._on_end]
        for worker in everybody:
            worker.finish()
        begun = time.monotonic()
        for worker in everybody:
            longest = END_SECONDS + 1 if worker in self._on_end else _SECONDS_AFTER
            worker.wait(begun + longest - time.monotonic())


def masked(alert: dict[str, Any]) -> dict[str, Any]:
    """Without tokens and passwords, and nothing that a terminal obeys."""
    return {
        name: printable(mask_text(value)) if isinstance(value, str) else value
        for name, value in alert.items()
    }


def main(arguments: list[str]) -> int:
    channel = socket.socket(fileno=int(arguments[0]))
    try:
        Sender(channel).run()
    except (OSError, KeyboardInterrupt):
        pass
    # at once: a thread that still hangs in a receiver would be waited for
    os._exit(0)
