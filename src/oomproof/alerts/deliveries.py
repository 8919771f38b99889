"""How a receiver gets a message: a command, a webhook, mail, the desktop. Each bounded in time; used in the sending process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.alerts.alert import END, message, subject
from oomproof.alerts.receivers import OFF, shown

HTTP_SECONDS = 10.0  # for each step of a request
MAIL_SECONDS, DESKTOP_SECONDS = 30.0, 5.0
COMMAND_SECONDS, END_SECONDS = 60.0, 600.0  # an --on-end command may copy a result away
_LONGEST_WAIT = 30.0  # seconds, of those that a busy receiver asks us to wait
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_NOTIFICATIONS = ("org.freedesktop.Notifications", "/org/freedesktop/Notifications")


class NotDelivered(Exception):
    """In words, without the address. ``again``: whether another try may help, after ``wait`` seconds."""

    def __init__(self, text: str, again: bool = False, wait: float = 0.0) -> None:
        super().__init__(text)
        self.again, self.wait = again, wait


class Receiver:
    name = ""  # may be printed

    def deliver(self, alert: dict[str, Any]) -> None:
        raise NotImplementedError


# --- a command ----------------------------------------------------------------------------------------------


class Command(Receiver):
    """``sh -c LINE``, in a process group of its own; the facts in OOMPROOF_ALERT_* and as JSON on its standard input."""

    def __init__(self, flag: str, line: str) -> None:
        self.name, self._line = flag, line

    def deliver(self, alert: dict[str, Any]) -> None:
        seconds = END_SECONDS if alert["kind"] == END else COMMAND_SECONDS
        text = json.dumps({**alert, "message": message(alert)}) + "\n"
        run(["/bin/sh", "-c", self._line], text.encode(), seconds, {**os.environ, **variables(alert)})


def variables(alert: dict[str, Any]) -> dict[str, str]:
    """OOMPROOF_ALERT_KIND, _JOB, _TEXT…: each fact that is known. No NUL may stand in one."""
    facts = {**alert, "subject": subject(alert), "message": message(alert)}
    told = {
        f"OOMPROOF_ALERT_{name.upper()}": ("" if value is None else str(value)).replace("\0", "")
        for name, value in facts.items()
    }
    return {**told, OFF: "1"}


def run(
    argv: Sequence[str], text: bytes, seconds: float, environment: Mapping[str, str] | None = None
) -> str:
    """Its last words; raises when it fails or takes too long. It ends by itself: what it left in the background stays."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NotDelivered(f"{os.path.basename(argv[0])} could not be started: {error.strerror}") from error
    assert process.stdin is not None and process.stdout is not None
    deadline, last = time.monotonic() + seconds, b""
    with process.stdout, selectors.DefaultSelector() as selector:
        os.set_blocking(process.stdin.fileno(), False)
        # it does not want to read; more than a pipe takes, 64 KiB, is never sent
        with contextlib.suppress(OSError):
            process.stdin.write(text)
            process.stdin.close()
        selector.register(process.stdout, selectors.EVENT_READ)
        is_open = True
        while process.poll() is None and time.monotonic() < deadline:
            wait = min(0.05, deadline - time.monotonic())
            if not is_open:
                time.sleep(max(0.0, wait))
            elif selector.select(max(0.0, wait)):
                chunk = os.read(process.stdout.fileno(), 65536)
                last, is_open = (last + chunk)[-2000:], bool(chunk)
                if not is_open:
                    selector.unregister(process.stdout)
        if is_open and selector.select(0):
            last = (last + os.read(process.stdout.fileno(), 65536))[-2000:]
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise NotDelivered(f"took longer than {seconds:g} s and was killed")
    words = " ".join(last.decode("utf-8", "replace").split())[-300:]
    if process.returncode:
        how = (
            f"exited with code {process.returncode}"
            if process.returncode > 0
            else f"ended by signal {-process.returncode}"
        )
        raise NotDelivered(f"{how}{': ' if words else ''}{words}")
    return words


# --- a webhook ----------------------------------------------------------------------------------------------


class Webhook(Receiver):
    """One POST. Redirects are not followed: the address is the receiver's secret, and no other's."""

    def __init__(self, webhook: str) -> None:
        import urllib.request  # at the start, not when memory is short

        class Refuse(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        self._kind, _, self._url = webhook.partition(":")
        self.name = shown(webhook)
        self._opener = urllib.request.build_opener(Refuse())

    def deliver(self, alert: dict[str, Any]) -> None:
        import urllib.error
        import urllib.request

        url, headers = without_user(self._url)
        if self._kind == "ntfy":
            url = url.rpartition("/")[0] + "/"
        request = urllib.request.Request(
            url,
            json.dumps(body(self._kind, alert, self._url)).encode(),
            {**headers, "Content-Type": "application/json", "User-Agent": "oomproof"},
        )
        try:
            with self._opener.open(request, timeout=HTTP_SECONDS) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            with error:
                again = error.code in (408, 429) or error.code >= 500
                asked = error.headers.get("Retry-After", "")
                wait = min(_LONGEST_WAIT, float(asked)) if asked.isdecimal() else 0.0
                raise NotDelivered(f"answered {error.code}", again, wait) from None
        except TimeoutError:
            raise NotDelivered(f"did not answer within {HTTP_SECONDS:g} s", again=True) from None
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, TimeoutError):
                raise NotDelivered(f"did not answer within {HTTP_SECONDS:g} s", again=True) from None
            text = getattr(reason, "strerror", None) or type(reason).__name__
            raise NotDelivered(f"could not be reached: {text}", again=True) from None
        except (
            Exception
        ) as error:  # what else a strange server makes http.client raise; its text may name the address
            raise NotDelivered(f"gave no proper answer ({type(error).__name__})", again=True) from None


def without_user(url: str) -> tuple[str, dict[str, str]]:
    """``https://USER:PASSWORD@HOST/…`` as the address without them, and the header that says them."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    if not at:
        return url, {}
    from base64 import b64encode
    from urllib.parse import unquote_to_bytes

    word = unquote_to_bytes(user if ":" in user else f"{user}:")
    return f"{scheme}://{host}{slash}{path}", {"Authorization": f"Basic {b64encode(word).decode()}"}


def body(kind: str, alert: dict[str, Any], url: str) -> dict[str, Any]:
    title, text = subject(alert), message(alert)
    if kind == "slack":
        return {"text": _escaped(f"*{title}*\n{text}")}
    if kind == "discord":  # nobody is mentioned, whatever a job is called
        return {"content": f"**{title}**\n{text}"[:2000], "allowed_mentions": {"parse": []}}
    if kind == "ntfy":
        topic = url.rstrip("/").rpartition("/")[2].partition("?")[0]
        pressing = alert["level"] == "alert"
        return {"topic": topic, "title": title, "message": text, "priority": 4 if pressing else 3,
                "tags": ["warning" if pressing else "information_source"]}  # fmt: skip
    return {**alert, "subject": title, "message": text}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- mail ---------------------------------------------------------------------------------------------------


class Mail(Receiver):
    def __init__(self, addresses: Sequence[str]) -> None:
        from email.message import EmailMessage  # at the start, not when memory is short

        self.name, self._to, self._empty = "mail", list(addresses), EmailMessage

    def deliver(self, alert: dict[str, Any]) -> None:
        program = shutil.which("sendmail") or next(
            (path for path in _SENDMAIL if os.access(path, os.X_OK)), None
        )
        if program is None:
            raise NotDelivered("there is no sendmail here (install one, such as msmtp-mta or postfix)")
        letter = self._empty()
        letter["To"], letter["Subject"] = (
            ", ".join(self._to),
            " ".join(f"[oomproof] {subject(alert)}".split()),
        )
        letter["Auto-Submitted"] = "auto-generated"  # nobody's holiday note answers it
        letter.set_content(f"{message(alert)}\n")
        run([program, "-i", "-t"], letter.as_bytes(), MAIL_SECONDS)


# --- the desktop --------------------------------------------------------------------------------------------


class Desktop(Receiver):
    """A freedesktop notification, by whichever program is here; without a session's D-Bus there is no desktop to tell."""

    name = "desktop"

    def deliver(self, alert: dict[str, Any]) -> None:
        folder = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        bus = os.path.join(folder, "bus")
        environment = dict(os.environ)
        if not environment.get("DBUS_SESSION_BUS_ADDRESS"):
            if not os.path.exists(bus):
                raise NotDelivered("there is no desktop session here (no D-Bus)")
            environment["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}"
        title, text, pressing = subject(alert), _escaped(message(alert)), alert["level"] == "alert"
        for program, words in notifiers(title, text, pressing):
            if (path := shutil.which(program)) is not None:
                run([path, *words], b"", DESKTOP_SECONDS, environment)
                return
        raise NotDelivered("no program for notifications is here (notify-send, gdbus or busctl)")


def notifiers(title: str, text: str, pressing: bool) -> list[tuple[str, list[str]]]:
    """(program, arguments), the best first. An urgent one stays on the screen until somebody has seen it."""
    urgency, shown_for = (2, 0) if pressing else (1, -1)
    service, path = _NOTIFICATIONS
    return [
        ("notify-send", ["--app-name=oomproof", f"--urgency={'critical' if pressing else 'normal'}", "--", title, text]),
        ("busctl", ["--user", "call", service, path, service, "Notify", "susssasa{sv}i", "--",
                    "oomproof", "0", "", title, text, "0", "1", "urgency", "y", str(urgency), str(shown_for)]),
        ("gdbus", ["call", "--session", "--dest", service, "--object-path", path, "--method", f"{service}.Notify", "--",
                   "oomproof", "0", "", _variant(title), _variant(text), "[]", f"{{'urgency': <byte {urgency}>}}", str(shown_for)]),
    ]  # fmt: skip


def _variant(text: str) -> str:
    """As GVariant writes a string: a text that looks like a number or begins with a quote stays what it is."""
    return json.dumps(text, ensure_ascii=False)
