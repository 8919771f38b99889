"""What stands before a log line's own words: stamps of dmesg, syslog, journals, kmsg and containers."""

from __future__ import annotations

import html
import json
import re
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Stamped(NamedTuple):
    """``seconds`` is since the epoch where ``wall``, else since boot. A stamp without a zone is local time, as the
    programs that print it have it. ``order`` only compares lines of one file, so it is known for a syslog stamp
    without a year too; ``date_without_year`` gives that one its year."""

    time: str | None  # as printed
    seconds: float | None
    message: str
    host: str | None = None
    tag: str | None = None  # kernel, systemd[1], earlyoom[454]
    caller: str | None = None  # T9185, C3: the thread or CPU that printed (CONFIG_PRINTK_CALLER)
    wall: bool = False
    order: float | None = None

    @property
    def bare(self) -> bool:
        return self.time is None and self.tag is None


_QUOTE = re.compile(r"(?:[\s>|]|\* )*")  # mails and issue threads quote with "> ", comments begin with "* "
_KMSG = re.compile(r"\d{1,4},\d+,(?P<usec>\d+),[^;]{0,80};")
_LEVEL = re.compile(r"<\d{1,3}>|(?:kern|user|daemon|syslog) {0,4}:\w{3,6} {0,3}: ")  # dmesg -r, dmesg -x
_BOOT = re.compile(r"\[\s{0,12}(?P<seconds>\d{1,12}\.\d{3,9})s?\]")
_DELTA = re.compile(r"\[\s{0,12}[+<]\s{0,12}\d{1,12}\.\d{3,9}>?\]")  # dmesg -d, -H
_CALLER = re.compile(r"\[\s{0,10}(?P<caller>[TC]\d{1,8})\]|\[pid:\d+,cpu\d+,[^\]]{0,32}\]")
_HUMAN = re.compile(r"\[?(?P<month>[A-Z][a-z]{2})\s?(?P<day>\d{1,2}) (?P<hour>\d\d):(?P<minute>\d\d)\]")
_CTIME = re.compile(
    r"\[?(?:[A-Z][a-z]{2} )(?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) (?:(?P<zone>[A-Z]{3,5}|[+-]\d\d(?:\d\d)?) )?(?P<year>\d{4})\]?"
)
_ISO = re.compile(  # with a weekday it is journalctl's short-full, which ends in a zone's name
    r"\[?(?P<weekday>[A-Z][a-z]{2} )?(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d))?(?(weekday)(?: (?P<named>[A-Z]{3,5}|[+-]\d\d)(?=[\s\]]))?)\]?"
)
# journalctl prints months in the reader's language: "avril 16", "апр 28", "5月 29"
_SYSLOG = re.compile(
    r"(?P<month>[^\W\d_]{2,12}\.?|\d{1,2}月) {1,2}(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:\.\d{1,9})?)"
)
_EPOCH = re.compile(r"\[?(?P<seconds>1\d{9}\.\d{1,9})\]?(?=\s)")
_CLOCK = re.compile(r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d{1,9})?)(?=\s)")
# the kernel itself writes "python[12]: segfault at", which is no program's tag
_NOT_TAG = r"(?!\s*(?:segfault|unhandled|potentially|bad frame|trap\s|bus error|illegal instr))"
_TAG = re.compile(r"(?P<tag>[\w.@/\\:+-]{1,80}\[\d{1,10}\]|kernel|-kernel):" + _NOT_TAG + r"\s?")
_KNOWN = re.compile(
    r"(?P<tag>kernel|systemd|systemd-oomd|earlyoom|nohang|nohang-desktop|oomd):" + _NOT_TAG + r"\s?"
)
_HOST_TAG = re.compile(
    r"(?P<host>[\w.:@-]{1,255}) (?P<tag>[\w.@/\\:+()-]{1,80}(?:\[\d{1,10}\])?):" + _NOT_TAG + r"(?:\s|$)"
)
_HOST_KERNEL = re.compile(
    r"(?P<host>[\w.:@-]{1,255}) (?P<tag>kernel|[\w.@/\\:+()-]{1,80}\[\d{1,10}\]):" + _NOT_TAG + r"(?:\s|$)"
)
# as `locale` abbreviates them in English, German, French, Spanish, Italian, Portuguese and Russian
_MONTHS = {
    name: number
    for number, names in enumerate((
        "jan janv ene gen янв", "feb févr fev фев", "mar mär mars мар", "apr avril abr апр", "may mai mag мая май",
        "jun juin giu июн", "jul juil lug июл", "aug août ago авг", "sep sept set сен", "oct okt ott out окт",
        "nov ноя", "dec dez déc dic дек",
    ), 1)
    for name in names.split()
}  # fmt: skip
# Names that mean one thing to everybody come first; any other is this machine's own zone if it has that name.
_ZONES = {"Z": 0.0, "UTC": 0.0, "GMT": 0.0}
_ELSEWHERE = {
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "WEST": 1, "CET": 1,
    "CEST": 2, "BST": 1, "EET": 2, "EEST": 3, "MSK": 3, "IST": 5.5, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11,
}  # fmt: skip
_DAY = 86400.0
_HALF_A_YEAR = 183 * _DAY
# "In(05) vcpu-5 - Guest: <6>[39291577.009360] ": a console's own words, then the kernel's stamp
_FORWARDED = re.compile(r"[^\[\]]{1,80}?(?=(?:<\d{1,3}>)?\[\s{0,12}\d{1,12}\.\d{6}\] )")
_STAMPS = 4  # a forwarded line carries the forwarder's stamp before its own


def strip(line: str) -> Stamped:
    """Never fails: a line without any stamp comes back whole."""
    if "&" in line and ";" in line:  # out of a web page's source
        line = html.unescape(line)
    at = _QUOTE.match(line).end()  # type: ignore[union-attr]  # matches the empty string
    if line.startswith("{", at) and (stamped := _from_json(line[at:])) is not None:
        return stamped
    time: str | None = None
    seconds: float | None = None
    order: float | None = None
    wall = False
    host = tag = caller = None
    if match := _KMSG.match(line, at):
        time, seconds, at = match["usec"], int(match["usec"]) / 1e6, match.end()
    for _ in range(_STAMPS):
        begun = at
        while line[at : at + 1] == " ":
            at += 1
        if match := _LEVEL.match(line, at):
            at = match.end()
        stamp = _stamp(line, at)
        if stamp is not None:
            at, text, when, of_day, is_wall = stamp
            time = text if time is None else time
            # the first clock that says a year wins; a boot stamp behind it adds nothing
            if seconds is None and when is not None:
                seconds, wall = when, is_wall
            order = of_day if order is None else order
            continue
        if match := _CALLER.match(line, at):
            caller, at = match["caller"] or caller, match.end()
            continue
        if tag is None:
            match = _TAG.match(line, at) or _KNOWN.match(line, at)
            if match is None and time is not None:
                # behind "[1.2]" stands the message, so there only a tag beyond doubt counts
                sure = line[:at].rstrip().endswith("]")
                match = (_HOST_KERNEL if sure else _HOST_TAG).match(line, at)
                host = match["host"] if match else None
            if match is not None:
                tag, at = match["tag"], match.end()
                continue
            if match := _FORWARDED.match(line, at):
                at = match.end()
                continue
        at = begun
        break
    return Stamped(
        time, seconds, line[at:].strip(), host, tag, caller, wall, order if order is not None else seconds
    )


def _stamp(line: str, at: int) -> tuple[int, str, float | None, float | None, bool] | None:
    """(end, as printed, seconds, order, wall) of the stamp that begins at ``at``."""
    first = line[at : at + 1]
    if first == "[":
        if match := _BOOT.match(line, at):
            value = float(match["seconds"])
            if value > 1e9:  # dmesg --time-format=… and short-unix print the epoch
                return match.end(), match[0], value, value, True
            return match.end(), match["seconds"], value, value, False
        if match := _DELTA.match(line, at):
            return match.end(), match[0], None, None, False
    if not first or (first not in "[0123456789" and not first.isalpha()):
        return None
    if match := _CTIME.match(line, at):
        when = _epoch(int(match["year"]), match, match["zone"])
        return match.end(), match[0].strip("[]"), when, when, when is not None
    if match := _ISO.match(line, at):
        when = _iso(match)
        return match.end(), match[0].strip("[]"), when, when, when is not None
    if match := _SYSLOG.match(line, at):
        year = match["year"]
        if year:
            when = _epoch(int(year), match)
            return match.end(), match[0], when, when, when is not None
        return match.end(), match[0], None, _in_order(match), False
    if match := _HUMAN.match(line, at):
        return match.end(), match[0].strip("[]"), None, _in_order(match), False
    if match := _EPOCH.match(line, at):
        value = float(match["seconds"])
        return match.end(), match["seconds"], value, value, True
    if match := _CLOCK.match(line, at):
        of_day = (
            int(match["hour"]) * 3600 + int(match["minute"]) * 60 + float(match["second"].replace(",", "."))
        )
        return match.end(), match[0], None, of_day, False
    return None


def date_without_year(printed: str | None, latest: float) -> float | None:
    """Epoch seconds of "Nov  3 04:12:07", in local time: of all years the newest that does not lie after ``latest``.
    None for a stamp of another kind. A day later is let pass: the log may come from a zone ahead of this one."""
    if printed is None or not printed[:1].isalnum():
        return None
    match = _SYSLOG.match(printed) or _HUMAN.match(f"{printed}]")
    if match is None or match.groupdict().get("year"):
        return None
    year = datetime.fromtimestamp(latest + _DAY).year
    for back in range(9):  # 29 February comes every four years, and not in 2100
        when = _epoch(year - back, match)
        if when is not None and when <= latest + _DAY:
            return when
    return None


def goes_back(before: float, after: Stamped) -> bool:
    """Whether a line is older than the one before it. Without a year, January behind December is the next one."""
    assert after.order is not None
    back = after.order < before
    return back if after.wall or abs(after.order - before) < _HALF_A_YEAR else not back


def _in_order(match: re.Match[str]) -> float | None:
    return _epoch(2000, match, "UTC")  # a leap year, and hours that are never set back


def _epoch(year: int, match: re.Match[str], zone: str | None = None) -> float | None:
    name = match["month"].lower().rstrip(".")
    month = int(name[:-1]) if name.endswith("月") else _MONTHS.get(name, 0)
    second = float(match.groupdict().get("second") or 0)
    try:
        day = datetime(year, month, int(match["day"]), int(match["hour"]), int(match["minute"]))
    except ValueError:
        return None
    when = _at(day, zone)
    return when + second if when is not None else None


def _iso(match: re.Match[str]) -> float | None:
    part = (match["part"] or "0")[:6]
    try:
        moment = datetime.fromisoformat(f"{match['date']}T{match['clock']}.{part:0<6}")
    except ValueError:
        return None
    return _at(moment, match["zone"] or match["named"])


def _at(moment: datetime, zone: str | None) -> float | None:
    """A clock's reading as epoch seconds: by its zone, else as this machine's own clock shows it."""
    hours = None
    if zone is not None and zone[0] in "+-":
        hours = int(zone[1:3]) + int(zone[3:].strip(":") or 0) / 60
        hours = -hours if zone[0] == "-" else hours
    elif zone in _ZONES:
        hours = _ZONES[zone]
    elif zone in _ELSEWHERE and zone not in time.tzname:
        hours = _ELSEWHERE[zone]
    try:
        if hours is None:
            return moment.timestamp()
        return moment.replace(tzinfo=UTC).timestamp() - hours * 3600
    except (ValueError, OverflowError, OSError):  # the first and the last years of a calendar
        return None


def _from_json(line: str) -> Stamped | None:
    """An object of ``journalctl -o json``, or a line of docker's json-file driver."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("log"), str):
        inner = strip(record["log"]) if not record["log"].startswith("{") else None
        time = record.get("time")
        outer = _ISO.match(time) if isinstance(time, str) else None
        when = _iso(outer) if outer else None
        message = inner.message if inner else record["log"].rstrip()
        tag = inner.tag if inner else None
        return Stamped(str(time) if time else None, when, message, None, tag, None, when is not None, when)
    if "MESSAGE" not in record:
        return None
    seconds = _microseconds(record.get("__REALTIME_TIMESTAMP") or record.get("_SOURCE_REALTIME_TIMESTAMP"))
    tag = record.get("SYSLOG_IDENTIFIER") or record.get("_COMM")
    pid = record.get("_PID") or record.get("SYSLOG_PID")
    if record.get("_TRANSPORT") == "kernel":
        tag = "kernel"
    elif isinstance(tag, str) and isinstance(pid, str):
        tag = f"{tag}[{pid}]"
    host = record.get("_HOSTNAME")
    time = None
    if seconds is not None:
        time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    inner = strip(_message(record["MESSAGE"])) if tag == "kernel" else None
    return Stamped(
        time,
        seconds,
        inner.message if inner else _message(record["MESSAGE"]),
        host if isinstance(host, str) else None,
        tag if isinstance(tag, str) else None,
        inner.caller if inner else None,
        seconds is not None,
        seconds,
    )


def _message(value: Any) -> str:
    """Journald writes what is not UTF-8 as a list of bytes."""
    if isinstance(value, list):
        numbers = [element for element in value if isinstance(element, int) and 0 <= element < 256]
        return bytes(numbers).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _microseconds(value: Any) -> float | None:
    try:
        seconds = int(value) / 1e6
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 1e11 else None
