"""The journal's lines about kills since a moment, streamed within a deadline; or why it cannot be read."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import IO

from oomproof.evidence.case_file import Missing

DEADLINE = 20.0  # seconds; a journal of a busy year on a slow disk
_LINES = 3_000_000
_WHO = ("earlyoom", "nohang", "nohang-desktop", "systemd-oomd", "oomd", "systemd", "slurmstepd", "slurmd")
_FIELDS = "MESSAGE,SYSLOG_IDENTIFIER,SYSLOG_PID,_PID,_COMM,_TRANSPORT,_HOSTNAME"
HOW_TO_GRANT = "sudo usermod -aG adm,systemd-journal $USER, then log in again"


def feed_journal(
    since: float, feed: Callable[[int, str], None], *, command: str = "journalctl", deadline: float = DEADLINE
) -> Missing | None:
    """Gives each line of the kernel and of the known guards to ``feed`` as a JSON object, oldest first."""
    matches = ["_TRANSPORT=kernel"]
    for name in _WHO:
        matches += ["+", f"SYSLOG_IDENTIFIER={name}"]
    argv = [
        command,
        "-o",
        "json",
        f"--output-fields={_FIELDS}",
        "--no-pager",
        f"--since=@{int(since)}",
        *matches,
    ]
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            return Missing("journal", f"{command} cannot be run: {error.strerror}", "")
        late = threading.Event()
        timer = threading.Timer(deadline, _end, (process, late))
        timer.start()
        try:
            assert process.stdout is not None
            lines = _pass_on(process.stdout, feed)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        complaints.seek(0)
        told = complaints.read(4096).decode("utf-8", "replace").strip().splitlines()
    if late.is_set():
        return Missing("journal", f"cut short after {deadline:.0f} s", "ask for less: --since '2 hours ago'")
    hidden = next((line for line in told if "not seeing messages" in line), None)
    if hidden is not None:  # only this user's own lines came, and those of the kernel are not among them
        return Missing("journal", hidden.removeprefix("Hint: "), HOW_TO_GRANT)
    if lines == 0:
        # a journal we may not read answers with nothing at all and status 0: silence is no proof of absence
        reason = told[0] if told else "it shows no lines of the kernel or of a guard to this user"
        return Missing("journal", reason, HOW_TO_GRANT if os.geteuid() else "")
    return None


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _pass_on(stream: IO[bytes], feed: Callable[[int, str], None]) -> int:
    count = 0
    for line in stream:
        if not line.startswith(b"{"):  # "-- No entries --"
            continue
        count += 1
        feed(count, line[:65536].decode("utf-8", "replace"))
        if count >= _LINES:
            break
    return count
