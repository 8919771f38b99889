"""How people say since when: "2 hours ago", "30m", "yesterday", "2026-11-15 08:00", in local time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from oomproof.errors import USAGE, OomproofError

_UNITS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "week": 604800, "weeks": 604800,
    "month": 2592000, "months": 2592000,
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?|an?|one)\s*([a-z]+)")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_MOST = 100 * 365 * 86400.0


def parse_since(text: str, now: float) -> float:
    """Epoch seconds. Raises OomproofError with examples for what cannot be understood."""
    words = " ".join(text.lower().replace(",", " ").replace(" and ", " ").split())
    moment = _span(words, now)
    if moment is None:
        moment = _moment(words, now)
    if moment is None:
        raise OomproofError(
            f"cannot read {text!r} as a time",
            'write it as "2 hours ago", 30m, yesterday, 08:00 or "2026-11-15 08:00"',
            USAGE,
        )
    return moment


def _span(words: str, now: float) -> float | None:
    """``30m``, ``1h 30min``, ``2 hours ago``, ``-2h``."""
    body = words.removesuffix("ago").strip().removeprefix("-").removeprefix("last ").strip()
    if not body:
        return None
    seconds, at = 0.0, 0
    for match in _PART.finditer(body):
        if body[at : match.start()].strip() or match[2] not in _UNITS:
            return None
        seconds += (1.0 if match[1] in ("a", "an", "one") else float(match[1])) * _UNITS[match[2]]
        at = match.end()
    if at == 0 or body[at:].strip():
        return None
    return now - min(seconds, _MOST)


def _moment(words: str, now: float) -> float | None:
    if words == "now":
        return now
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    day, clock = today, words
    for name, back in (("today", 0), ("yesterday", 1)):
        if words == name or words.startswith(name + " "):
            day, clock = today - timedelta(days=back), words[len(name) :].strip()
            if not clock:
                return day.timestamp()
    if match := _CLOCK.fullmatch(clock):
        try:
            moment = day.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0))
        except ValueError:
            return None
        # 23:00 said at nine in the morning is last night's
        if day == today and moment.timestamp() > now and not words.startswith("today"):
            moment -= timedelta(days=1)
        return moment.timestamp()
    if words.startswith("@") and words[1:].replace(".", "", 1).isdecimal():
        return float(words[1:])
    try:
        return datetime.fromisoformat(words.upper()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
