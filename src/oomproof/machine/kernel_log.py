"""The kernel's log since a moment: /dev/kmsg, else the journal; or the reason it may not be read."""

from __future__ import annotations

import errno
import os
import re
import time

from oomproof.records import dataclass

_RECORD = 8192  # one read of /dev/kmsg returns one record; the kernel's own limit is below this
_JOURNAL_DEADLINE = 2.0  # a verdict must not wait on a journal that is being rotated or repaired
_SLACK = 2.0
_DRIFT = 1e-4  # of the uptime
_SHORT_MONOTONIC = re.compile(r"\[\s*(\d+\.\d+)\]\s\S+\s[^:\s]+:\s?(.*)")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")

HOW_TO_GRANT = (
    "sudo sysctl kernel.dmesg_restrict=0, or join the groups that read the journal: "
    "sudo usermod -aG adm,systemd-journal $USER"
)


@dataclass(frozen=True, slots=True)
class KernelLine:
    time: float  # CLOCK_BOOTTIME seconds
    text: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    """``reason`` is set when nothing could be read; ``overwritten`` when the ring no longer reaches back to
    ``since``, so that absence of a line proves nothing."""

    source: str
    lines: tuple[KernelLine, ...] = ()
    reason: str | None = None
    how_to_grant: str = ""
    overwritten: bool = False


def suspended_seconds() -> float:
    """What CLOCK_BOOTTIME has over the clock of printk, which stops during suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def drift(boottime: float) -> float:
    """How far a line's time may be off. printk stamps lines with the raw counter, CLOCK_BOOTTIME follows NTP:
    they agreed to 1 ms on a machine ten minutes up, and part by tens of parts per million from there."""
    return _DRIFT * boottime


def parse_record(record: bytes, offset: float = 0.0) -> tuple[int, KernelLine] | None:
    """``prio,seq,usec,flags;text`` and its sequence number; None for what is no such record.
    Lines after the first are ``KEY=value`` fields of the record, not text."""
    head, separator, body = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3:
        return None
    try:
        sequence, microseconds = int(fields[1]), int(fields[2])
    except ValueError:
        return None
    text = body.split(b"\n", 1)[0].decode("utf-8", "replace")
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return sequence, KernelLine(microseconds / 1e6 + offset, text)


def parse_journal(text: str, offset: float = 0.0) -> list[KernelLine]:
    """Lines of ``journalctl -o short-monotonic``: ``[  589.494216] host kernel: text``."""
    lines = []
    for line in text.splitlines():
        match = _SHORT_MONOTONIC.match(line)
        if match:
            lines.append(KernelLine(float(match[1]) + offset, match[2]))
    return lines


def _read_kmsg(path: str, since: float, offset: float) -> KernelLog:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: list[KernelLine] = []
    oldest: KernelLine | None = None
    first_sequence = 0
    try:
        while True:
            try:
                record = os.read(fd, _RECORD)
            except BlockingIOError:  # the end of the ring
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read; the next read goes on
                    continue
                raise
            if not record:  # a plain file in the tests
                break
            # a plain file gives several records at once; a device exactly one
            for piece in record.split(b"\n"):
                parsed = parse_record(piece, offset)
                if parsed is None:
                    continue
                if oldest is None:
                    first_sequence, oldest = parsed
                if parsed[1].time >= since:
                    lines.append(parsed[1])
    finally:
        os.close(fd)
    overwritten = oldest is not None and first_sequence > 0 and oldest.time > since
    return KernelLog("kernel log (/dev/kmsg)", tuple(lines), overwritten=overwritten)


def _read_journal(command: str, since: float, offset: float, boot: str | None) -> KernelLog:
    import subprocess  # only where the ring itself may not be read

    # --since wants wall time, which may have jumped; the boottime filter below decides, this only saves work
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - since
    argv = [command, "-k", "-b", *([boot] if boot else []), "-o", "short-monotonic", "--no-pager"]
    if boot is None:
        argv += ["--since", f"-{int(age) + 60}s"]
    source = "kernel log (journalctl -k)"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_JOURNAL_DEADLINE,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return KernelLog(source, reason=f"journalctl gave no answer within {_JOURNAL_DEADLINE:.0f} s")
    except OSError as error:
        return KernelLog(source, reason=f"journalctl cannot be run: {error.strerror}")
    lines = [
        line for line in parse_journal(done.stdout.decode("utf-8", "replace"), offset) if line.time >= since
    ]
    if lines:
        return KernelLog(source, tuple(lines))
    complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
    # a journal we may not read answers "No entries" and rc 0: its silence is no proof of absence
    return KernelLog(
        source, reason=complaint[0] if complaint else "the journal shows no kernel lines to this user"
    )


def read(
    since: float,
    *,
    kmsg: str = "/dev/kmsg",
    journalctl: str = "journalctl",
    boot: str | None = None,
    offset: float | None = None,
) -> KernelLog:
    """Lines from ``since`` (CLOCK_BOOTTIME) on. ``boot`` names an earlier boot, known only to a journal."""
    since -= _SLACK + drift(since)
    refused = ""
    if boot is not None:
        offset = 0.0
    else:
        offset = suspended_seconds() if offset is None else offset
        try:
            return _read_kmsg(kmsg, since, offset)
        except OSError as error:
            refused = f"{kmsg}: {error.strerror}; "
    log = _read_journal(journalctl, since, offset, boot)
    if log.reason is None:
        return log
    source = "kernel log" if refused else log.source
    return KernelLog(source, reason=refused + log.reason, how_to_grant=HOW_TO_GRANT)
