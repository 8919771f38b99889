"""The guard's end and the process that sends, together: never waited for, never lost without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers_alerts import Listener, listening, until

from oomproof.alerts import alert_channel
from oomproof.alerts.alert import END, NEWS, QUIET, Alert
from oomproof.alerts.alert_channel import Alerts
from oomproof.alerts.alert_sender import MOST
from oomproof.alerts.receivers import AlertSettings
from oomproof.machine import processes


def warn(number: int = 0, kind: str = "warn", level: str = "alert") -> Alert:
    return Alert(kind, "big", f"memory is short, {number}", run="id", level=level)


@pytest.fixture
def receiver() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def alerts_to(receiver: Listener, said: list[str] | None = None, **more: str) -> Alerts:
    settings = AlertSettings(webhooks=[f"json:{receiver.url}/secret"], **more)  # type: ignore[arg-type]
    return Alerts(settings, said.append if said is not None else lambda _: None)


def gone(pid: int) -> bool:
    """A zombie is: nobody waits for it once its guard has left."""
    return not processes.is_alive(pid, processes.start_time(pid))


def test_nothing_named_starts_nothing() -> None:
    alerts = Alerts()
    alerts.start()
    alerts.send(warn())
    alerts.close()
    assert not alerts.is_on and alerts._pid == 0


def test_what_is_sent_before_the_start_arrives_after_it(receiver: Listener) -> None:
    alerts = alerts_to(receiver)
    alerts.send(warn(1))
    alerts.start()
    until(lambda: receiver.posts, "the alert")
    alerts.close(wait=30)
    assert [body["text"] for _, _, body in receiver.posts] == ["memory is short, 1"]
    until(lambda: gone(alerts._pid), "the sender to end")


def test_who_hears_what(receiver: Listener, tmp_path: Path) -> None:
    """An alert goes to all, news to the receivers, an end to --on-end whatever it is worth."""
    line = f'echo "$OOMPROOF_ALERT_KIND $OOMPROOF_ALERT_LEVEL" >> {tmp_path}/'
    alerts = alerts_to(receiver, on_alert=f"{line}alert", on_end=f"{line}end")
    alerts.start()
    alerts.send(warn())
    alerts.send(warn(kind="leak", level=NEWS))
    until(lambda: len(receiver.posts) == 2 and (tmp_path / "alert").exists(), "both")
    alerts.send(warn(kind=END, level=QUIET))
    alerts.close(wait=30)
    assert (tmp_path / "alert").read_text() == "warn alert\n"
    assert (tmp_path / "end").read_text() == "end quiet\n"
    assert receiver.kinds == ["warn", "leak"]


def test_a_storm_is_bounded_and_summed_up(receiver: Listener) -> None:
    """10,000 alerts of 40 jobs: a dozen messages, the end among them says how many there were."""
    alerts = alerts_to(receiver)
    alerts.start()
    for number in range(10_000):
        alerts.send(Alert("warn", f"job-{number % 40}", "short", run=str(number % 40)))
    until(lambda: len(receiver.posts) == MOST, "the first of each")
    alerts.send(warn(kind=END))
    alerts.close(wait=30)
    *_, (_, _, end) = receiver.posts
    assert len(receiver.posts) == MOST + 1 and end["kind"] == END
    assert end["repeated"] == 10_000 - MOST and "more like this were summed up" in end["message"]


def test_a_receiver_that_hangs_delays_nobody(receiver: Listener, tmp_path: Path) -> None:
    """Neither who sends, nor another receiver, nor the end; when it answers at last, it is told the end."""
    receiver.go.clear()
    alerts = alerts_to(receiver, on_alert=f'echo "$OOMPROOF_ALERT_KIND" >> {tmp_path}/told')
    alerts.start()
    alerts.send(warn())
    until(lambda: receiver.posts, "the receiver to hang")
    alerts.send(warn(kind="pause"))
    until(lambda: (tmp_path / "told").exists() and "pause" in (tmp_path / "told").read_text(), "the command")
    assert receiver.kinds == ["warn"], "the other still waits for its first answer"
    alerts.send(warn(kind=END))
    began = time.monotonic()
    alerts.close(wait=0.3)
    assert time.monotonic() - began < 10 and not gone(alerts._pid)
    receiver.go.set()
    until(lambda: END in receiver.kinds, "the end to be told after all")
    until(lambda: gone(alerts._pid), "the sender to end")
    assert receiver.kinds == ["warn", END], "what is older than the end is not sent any more"


def test_a_failure_is_tried_again_told_once_and_written_down(tmp_path: Path) -> None:
    said: list[str] = []
    with listening(500, 200) as receiver:
        alerts = alerts_to(receiver, said)
        alerts.start(str(tmp_path / "log"))
        alerts.send(warn())
        until(lambda: len(receiver.posts) == 2, "the second try")
        alerts.close(wait=30)
    assert not said and not (tmp_path / "log").exists(), "it arrived in the end"
    with listening(404) as receiver:
        alerts = alerts_to(receiver, said)
        alerts.start(str(tmp_path / "log"))
        for kind in ("warn", "pause", "kill"):
            alerts.send(warn(kind=kind))
        until(lambda: len(receiver.posts) == 3, "three alerts")
        alerts.close(wait=30)
        port = receiver.url.rpartition(":")[2]
    assert said == [f"alert not delivered: json (127.0.0.1:{port}): answered 404"]
    assert (tmp_path / "log").read_text().rstrip().endswith(said[0]) and "secret" not in said[0]


def test_nothing_secret_leaves(receiver: Listener) -> None:
    token = "hf_" + "abcdefghij0123456789"
    alerts = alerts_to(receiver)
    alerts.start()
    alerts.send(Alert("warn", "big", f"python train.py --token {token}\x1b[2J", next=f"run with {token}"))
    until(lambda: receiver.posts, "the alert")
    alerts.close(wait=30)
    text = json.dumps(receiver.posts)
    assert (
        token not in text
        and "•••" in receiver.posts[0][2]["message"]
        and "\\u001b" not in text.replace("\\\\u", "")
    )


def test_a_sender_that_is_killed_is_started_again(
    receiver: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_channel, "_RESTART_PAUSE", 0.05)
    alerts = alerts_to(receiver)
    alerts.start()
    first = alerts._pid
    os.kill(first, signal.SIGKILL)
    until(lambda: alerts._pid != first, "another sender")
    alerts.send(warn())
    until(lambda: receiver.posts, "the alert")
    alerts.close(wait=30)


def test_a_pipe_behind_us_ends_with_us_not_with_the_last_delivery(receiver: Listener) -> None:
    """`oomproof run | tee`: the sender holds none of our streams."""
    receiver.go.clear()
    code = (
        "from oomproof.alerts.alert_channel import Alerts; from oomproof.alerts.alert import Alert\n"
        "from oomproof.alerts.receivers import AlertSettings\n"
        f"alerts = Alerts(AlertSettings(webhooks=['json:{receiver.url}/']))\n"
        "alerts.start(); alerts.send(Alert('warn', 'big', 'x')); alerts.close(0.1); print(alerts._pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    sender = int(done.stdout)
    until(lambda: receiver.posts, "the alert")
    assert not gone(sender), "it still waits for the receiver, and run() has returned"
    receiver.go.set()
    until(lambda: gone(sender), "the sender to end")


def test_a_guard_that_vanishes_is_told_of_while_its_job_lives(receiver: Listener) -> None:
    job = subprocess.Popen(["sleep", "1000"])
    try:
        for lives in (True, False):
            code = (
                "import os, signal, sys\n"
                "from oomproof.alerts.alert_channel import Alerts; from oomproof.alerts.alert import Alert\n"
                "from oomproof.alerts.receivers import AlertSettings; from oomproof.machine import processes\n"
                f"alerts = Alerts(AlertSettings(webhooks=['json:{receiver.url}/{lives}']))\n"
                f"alerts.start('', Alert('unguarded', 'big', 'x'), ({job.pid}, processes.start_time({job.pid})))\n"
                "sys.stdin.read(); print(alerts._pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
            )
            guard = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            if not lives:
                job.kill()
                job.wait()
            said, _ = guard.communicate(timeout=60)
            until(lambda said=said: gone(int(said)), "the sender to end")  # type: ignore[misc]
    finally:
        job.kill()
        job.wait()
    assert [(path, body["kind"]) for path, _, body in receiver.posts] == [("/True", "unguarded")]


def test_what_an_alerts_own_command_starts_sends_none(
    receiver: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alerts_to(receiver).is_on
    monkeypatch.setenv("OOMPROOF_NO_ALERTS", "1")
    assert not alerts_to(receiver).is_on


def test_no_process_can_be_had(receiver: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        alert_channel.os, "posix_spawn", lambda *_, **__: (_ for _ in ()).throw(OSError(11, "no"))
    )
    alerts = alerts_to(receiver)
    with pytest.raises(OSError):
        alerts.start()
    alerts.send(warn())
    alerts.close()
