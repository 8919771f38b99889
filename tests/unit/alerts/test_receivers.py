"""Who is told is checked when it is given, and an address never shows whole."""

from __future__ import annotations

from typing import Any

import pytest

from oomproof.alerts.receivers import AlertSettings, addresses, command_line, shown, webhooks
from oomproof.errors import OomproofError

SLACK = "https://hooks.slack" + ".com/services/T0/B0/abcdef"


@pytest.mark.parametrize(
    ("word", "made"),
    [
        (SLACK, f"slack:{SLACK}"),
        ("https://discord.com/api/webhooks/1/x", "discord:https://discord.com/api/webhooks/1/x"),
        (
            "https://ptb.discordapp.com/api/webhooks/1/x",
            "discord:https://ptb.discordapp.com/api/webhooks/1/x",
        ),
        ("https://notdiscord.com/api/webhooks/1/x", "json:https://notdiscord.com/api/webhooks/1/x"),
        ("https://ntfy.sh/topic", "ntfy:https://ntfy.sh/topic"),
        ("https://ntfy.example.org:8080/topic", "ntfy:https://ntfy.example.org:8080/topic"),
        ("https://example.org/hook?x=1", "json:https://example.org/hook?x=1"),
        ("slack:https://chat.example.org/hooks/abc", "slack:https://chat.example.org/hooks/abc"),
        ("http://[::1]:8080/x", "json:http://[::1]:8080/x"),
    ],
)
def test_the_kind_is_named_or_known_by_the_address(word: str, made: str) -> None:
    assert webhooks(word) == [made]


def test_several_as_words_or_as_a_list() -> None:
    both = ["json:http://a/1", "ntfy:http://b/2"]
    assert webhooks("http://a/1  ntfy:http://b/2") == both == webhooks(["http://a/1", "ntfy:http://b/2"])


@pytest.mark.parametrize(
    "word",
    [
        "ftp://a/secret",
        "hooks.slack.com/secret",
        "slack:secret",
        "https:///secret",
        "http://a b/secret",
        "ntfy:https://ntfy.sh/",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(word: str) -> None:
    with pytest.raises(OomproofError) as error:
        webhooks([word])
    assert error.value.status == 2 and "secret" not in str(error.value).replace("may be secret", "")


def test_only_the_host_is_shown() -> None:
    assert shown(f"slack:{SLACK}") == "slack (hooks.slack.com)"
    assert shown("json:https://user:password@host:99/path?token=x") == "json (host:99)"


@pytest.mark.parametrize("value", ["me@example.org", "me@example.org,root", ["me@example.org", "root"]])
def test_addresses(value: Any) -> None:
    assert addresses(value)[0] == "me@example.org"


@pytest.mark.parametrize("value", ["-oQ/tmp", "me@", "a\nBcc: b@c", "", "<me@example.org>"])
def test_no_address(value: str) -> None:
    with pytest.raises(OomproofError):
        addresses([value] if value else value)


@pytest.mark.parametrize("value", ["", "  ", 3, ["echo"], "a\0b"])
def test_no_command(value: Any) -> None:
    with pytest.raises(OomproofError):
        command_line(value)


def test_nothing_named_is_empty() -> None:
    assert AlertSettings().is_empty and not AlertSettings(on_end="true").is_empty
