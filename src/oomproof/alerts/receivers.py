"""Who is told: commands, webhooks, mail addresses, the desktop. Checked when they are given; a URL is never shown whole."""

from __future__ import annotations

import re
from typing import Any

from oomproof.errors import USAGE, OomproofError
from oomproof.records import dataclass, field

WEBHOOKS = ("slack", "discord", "ntfy", "json")
# A variable: what is started there sends no alerts. An --on-end that runs something would otherwise never end, and the deaths
# of an experiment are wanted.
OFF = "OOMPROOF_NO_ALERTS"
# compiled when one is given: most runs name no receiver
_NAMED = rf"({'|'.join(WEBHOOKS)}):(?=https?://)"
_URL = r"https?://(?:[^\s/@]*@)?(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:\d{1,5})?(?P<path>/\S*)?"
_MAIL = r"[A-Za-z0-9_.+][A-Za-z0-9_.+%=-]*(?:@[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)?"


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Nothing is started, and nobody is told, unless one of these is given."""

    on_alert: str | None = None
    on_end: str | None = None
    desktop: bool = False
    webhooks: list[str] = field(default_factory=list)  # KIND:URL
    mail: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.on_alert or self.on_end or self.desktop or self.webhooks or self.mail)


def command_line(value: Any) -> str:
    """A line for ``sh -c``."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise OomproofError("a command is a line of shell, in quotes", "such as 'notify-send done'", USAGE)
    return value


def webhooks(value: Any) -> list[str]:
    """``KIND:URL`` each, of words with blanks between them or a list; the kind is known by the URL where it is not named."""
    return [_webhook(word) for word in _words(value)]


def _webhook(word: str) -> str:
    named = re.match(_NAMED, word)
    url = word[named.end() :] if named else word
    parts = re.fullmatch(_URL, url)
    if parts is None:
        raise OomproofError(
            "this is no webhook's address (which is not shown: it may be secret)",
            f"give https://HOST/PATH, or with its kind in front: {', '.join(f'{kind}:https://…' for kind in WEBHOOKS)}",
            USAGE,
        )
    kind = named[1] if named else _kind(parts["host"].lower(), parts["path"] or "")
    if kind == "ntfy" and not (parts["path"] or "").strip("/"):
        raise OomproofError("an ntfy address needs its topic", "https://ntfy.sh/TOPIC", USAGE)
    return f"{kind}:{url}"


def _kind(host: str, path: str) -> str:
    if host == "hooks.slack.com":
        return "slack"
    if re.fullmatch(r"(?:[a-z]+\.)?discord(?:app)?\.com", host) and path.startswith("/api/webhooks/"):
        return "discord"
    return "ntfy" if host == "ntfy.sh" or host.startswith("ntfy.") else "json"


def shown(webhook: str) -> str:
    """``slack (hooks.slack.com)``: who it is, and nothing of what makes it secret."""
    kind, _, url = webhook.partition(":")
    parts = re.fullmatch(_URL, url)
    return f"{kind} ({parts['host']}{parts['port'] or ''})" if parts else kind


def addresses(value: Any) -> list[str]:
    """Mail addresses or local users; none that could be taken for a flag or a second line."""
    words = [word for text in _words(value) for word in text.split(",") if word]
    for word in words:
        if not re.fullmatch(_MAIL, word):
            raise OomproofError(f"{word!r} is not a mail address", "such as me@example.org", USAGE)
    return words


def _words(value: Any) -> list[str]:
    words = [str(word) for word in value] if isinstance(value, list) else str(value).split()
    if not words:
        raise OomproofError("nobody is named", "leave it out, or name a receiver", USAGE)
    return words
