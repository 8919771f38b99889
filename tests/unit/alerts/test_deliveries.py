"""Each way to a receiver, against a real one: HTTP on loopback, a shell, a sendmail, a notification service on a real D-Bus."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default as modern
from pathlib import Path
from typing import Any

import pytest
from helpers_alerts import listening, until

from oomproof.alerts import deliveries
from oomproof.alerts.alert import QUIET, Alert, message, subject
from oomproof.alerts.deliveries import Command, Desktop, Mail, NotDelivered, Webhook, body, run

PAUSED = Alert(
    "pause", "big <1>", "243 MiB of RAM available & falling", run="20260101-000000-abc", held=44 << 20,
    seconds_left=725.0, next="resumes when 317 MiB are available, at the latest 17:44", command="oomproof resume big",
).as_json("gpubox", 1_790_000_000.0)  # fmt: skip


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_one_message_says_job_figure_time_left_what_comes_and_the_command() -> None:
    assert subject(PAUSED) == "big <1> on gpubox: paused"
    assert message(PAUSED).splitlines() == [
        "243 MiB of RAM available & falling",
        "time left: about 12 min",
        "next: resumes when 317 MiB are available, at the latest 17:44",
        "to change it: oomproof resume big",
        "resume everything: oomproof resume --all; a run without any guard: OOMPROOF_DISABLE=1",
    ]
    summed = message({**PAUSED, "repeated": 7, "seconds_left": None})
    assert "(7 more like this were summed up)" in summed and "time left" not in summed
    assert "time left" not in message({**PAUSED, "text": "full in about 12 min"}), "said once"
    assert len(message({**PAUSED, "text": "x" * 10_000, "next": "y" * 10_000})) < 2000


# --- webhooks -----------------------------------------------------------------------------------------------


def test_a_plain_webhook_gets_every_fact_as_json() -> None:
    with listening() as receiver:
        Webhook(f"json:{receiver.url}/hook?a=b").deliver(PAUSED)
    [(path, headers, content)] = receiver.posts
    assert path == "/hook?a=b" and headers["Content-Type"] == "application/json"
    assert content == {**PAUSED, "subject": subject(PAUSED), "message": message(PAUSED)}
    assert content["schema"] == 1 and content["held_bytes"] == 44 << 20


def test_each_service_gets_its_own_shape() -> None:
    with listening() as receiver:
        for kind in ("slack", "discord", "ntfy"):
            Webhook(f"{kind}:{receiver.url}/topic").deliver(PAUSED)
    (_, _, slack), (_, _, discord), (path, _, ntfy) = receiver.posts
    assert slack["text"].startswith(
        "*big &lt;1&gt; on gpubox: paused*\n243 MiB of RAM available &amp; falling"
    )
    assert discord["content"].startswith("**big <1> on") and discord["allowed_mentions"] == {"parse": []}
    assert path == "/" and ntfy["topic"] == "topic" and ntfy["priority"] == 4
    assert ntfy["title"] == subject(PAUSED) and ntfy["message"] == message(PAUSED)
    assert body("ntfy", {**PAUSED, "level": QUIET}, "http://a/b")["priority"] == 3


def test_a_password_in_the_address_goes_into_its_header() -> None:
    with listening() as receiver:
        Webhook(f"ntfy:{receiver.url.replace('//', '//:tk_abc@')}/topic").deliver(PAUSED)
    assert receiver.posts[0][1]["Authorization"] == "Basic OnRrX2FiYw=="


@pytest.mark.parametrize(("code", "again"), [(500, True), (429, True), (404, False), (302, False)])
def test_a_refusal_is_told_without_the_address(code: int, again: bool) -> None:
    with listening(code) as receiver, pytest.raises(NotDelivered) as failure:
        Webhook(f"json:{receiver.url}/secret").deliver(PAUSED)
    assert str(failure.value) == f"answered {code}" and failure.value.again is again
    assert len(receiver.posts) == 1, "no redirect is followed"


def test_one_that_hangs_and_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "HTTP_SECONDS", 0.2)
    with listening() as receiver:
        receiver.go.clear()
        with pytest.raises(NotDelivered, match=r"did not answer within 0\.2 s"):
            Webhook(f"json:{receiver.url}/secret").deliver(PAUSED)
        url = receiver.url
    with pytest.raises(NotDelivered, match="could not be reached: Connection refused") as failure:
        Webhook(f"json:{url}/secret").deliver(PAUSED)
    assert "secret" not in str(failure.value) and failure.value.again


# --- commands -----------------------------------------------------------------------------------------------


def test_a_command_gets_the_facts_twice(tmp_path: Path) -> None:
    line = f'cat > {tmp_path}/stdin; printf %s "$OOMPROOF_ALERT_KIND|$OOMPROOF_ALERT_JOB|$OOMPROOF_ALERT_HELD_BYTES|$OOMPROOF_NO_ALERTS" > {tmp_path}/env'
    Command("--on-alert", line).deliver(PAUSED)
    assert json.loads((tmp_path / "stdin").read_text()) == {**PAUSED, "message": message(PAUSED)}
    assert (tmp_path / "env").read_text() == f"pause|big <1>|{44 << 20}|1"


def test_a_job_called_like_a_command_is_only_a_word(tmp_path: Path) -> None:
    odd = {**PAUSED, "job": f"$(touch {tmp_path}/bad); `touch {tmp_path}/bad`\0"}
    Command("--on-alert", 'echo "$OOMPROOF_ALERT_JOB" > /dev/null').deliver(odd)
    assert not (tmp_path / "bad").exists()


def test_a_command_that_fails_says_its_last_words() -> None:
    with pytest.raises(NotDelivered, match=r"exited with code 7: .*no such receiver"):
        Command("--on-alert", "yes filling | head -c 3000000; echo no such receiver >&2; exit 7").deliver(
            PAUSED
        )


def test_a_command_that_hangs_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "COMMAND_SECONDS", 0.5)
    with pytest.raises(NotDelivered, match=r"took longer than 0\.5 s"):
        Command("--on-alert", f"sleep 1000 & echo $! > {tmp_path}/pid; wait").deliver(PAUSED)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _runs(pid), "the child to be gone")


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    Command("--on-alert", f"sleep 1000 & echo $! > {tmp_path}/pid").deliver(PAUSED)
    pid = int((tmp_path / "pid").read_text())
    assert _runs(pid)
    os.kill(pid, 9)


def test_a_program_that_reads_nothing() -> None:
    assert run(["/bin/sh", "-c", "exec <&-; echo fine"], b"x" * 60_000, 30.0) == "fine"
    with pytest.raises(NotDelivered, match="could not be started"):
        run(["/nowhere/program"], b"", 1.0)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# --- mail ---------------------------------------------------------------------------------------------------


def test_mail_by_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "sendmail", f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/letter')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Mail(["me@example.org", "root"]).deliver({**PAUSED, "job": "größe\nBcc: x@y"})
    assert (tmp_path / "arguments").read_text() == "-i -t\n"
    letter = message_from_bytes((tmp_path / "letter").read_bytes(), policy=modern)
    assert letter["To"] == "me@example.org, root" and letter["Bcc"] is None
    assert letter["Subject"] == "[oomproof] größe Bcc: x@y on gpubox: paused"
    assert "oomproof resume big" in letter.get_content()  # type: ignore[attr-defined]


def test_without_sendmail_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(deliveries, "_SENDMAIL", (str(tmp_path / "none"),))
    with pytest.raises(NotDelivered, match="no sendmail"):
        Mail(["root"]).deliver(PAUSED)


# --- the desktop --------------------------------------------------------------------------------------------

SERVICE = """
import json, sys, dbus, dbus.service
from dbus.mainloop.glib import DBusGMainLoop
from gi.repository import GLib
DBusGMainLoop(set_as_default=True)
bus = dbus.SessionBus()
name = dbus.service.BusName("org.freedesktop.Notifications", bus)
class Notifications(dbus.service.Object):
    @dbus.service.method("org.freedesktop.Notifications", in_signature="susssasa{sv}i", out_signature="u")
    def Notify(self, app, replaces, icon, summary, body, actions, hints, timeout):
        print(json.dumps([app, summary, body, int(hints["urgency"]), int(timeout)]), flush=True)
        return 1
Notifications(bus, "/org/freedesktop/Notifications")
print("ready", flush=True)
GLib.MainLoop().run()
"""


@pytest.fixture
def notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A session bus of our own with a notification service on it, as a desktop has one."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import dbus, gi"], capture_output=True).returncode:
        pytest.skip("no python3-dbus and python3-gi for a notification service")
    address = f"unix:path={tmp_path}/bus"
    try:
        daemon = subprocess.Popen(
            ["dbus-daemon", "--session", "--nofork", f"--address={address}", "--print-address=1"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no dbus-daemon")
    assert daemon.stdout is not None and daemon.stdout.readline()
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
    service = subprocess.Popen([python, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None and service.stdout.readline() == "ready\n"
    yield service
    for process in (service, daemon):
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("program", ["busctl", "gdbus", "notify-send"])
def test_a_notification_arrives_on_a_real_bus(
    notifications: subprocess.Popen[str], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deliveries.shutil.which(program)
    if found is None:
        pytest.skip(f"no {program}")
    monkeypatch.setattr(deliveries.shutil, "which", lambda name: found if name == program else None)
    Desktop().deliver({**PAUSED, "job": "'big'\"1\""})
    assert notifications.stdout is not None
    app, summary, text, urgency, timeout = json.loads(notifications.stdout.readline())
    assert (app, summary, urgency) == ("oomproof", "'big'\"1\" on gpubox: paused", 2)
    assert text.startswith("243 MiB of RAM available &amp; falling\ntime left") and timeout in (0, -1)


def test_a_notification_by_notify_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a script of that name: what it is given."""
    script(tmp_path, "notify-send", f'for word in "$@"; do echo "$word"; done > {tmp_path}/arguments')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/somewhere")
    Desktop().deliver({**PAUSED, "job": "-rf"})
    words = (tmp_path / "arguments").read_text().splitlines()
    assert words[:4] == ["--app-name=oomproof", "--urgency=critical", "--", "-rf on gpubox: paused"]


def test_without_a_desktop_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(NotDelivered, match="no desktop session here"):
        Desktop().deliver(PAUSED)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/somewhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotDelivered, match="no program for notifications"):
        Desktop().deliver(PAUSED)


def test_notifiers_take_any_text(tmp_path: Path) -> None:
    names: list[Any] = [program for program, _ in deliveries.notifiers("a", "b", False)]
    assert names == ["notify-send", "busctl", "gdbus"]
