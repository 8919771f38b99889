"""What a runtime prints when a signal ends it: Paddle, R, Julia, Java, Go and MATLAB."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said
from oomproof.evidence.texts.failures.signals import by_signal

ANCHORS = ("is detected by the operating system", "caught segfault", "caught bus error", "caught illegal operation", "signal (", "] signal ",
           "at pc=0x", "[signal SIG", "violation detected", "ACCESS_VIOLATION")  # fmt: skip

_NUMBERS = {
    "segmentation fault": 11, "segfault": 11, "SIGSEGV": 11, "EXCEPTION_ACCESS_VIOLATION": 11, "Segmentation violation": 11,
    "access to an undefined portion of a memory object": 7, "bus error": 7, "SIGBUS": 7, "process abort signal": 6, "SIGABRT": 6,
    "erroneous arithmetic operation": 8, "SIGFPE": 8, "illegal instruction": 4, "illegal operation": 4, "SIGILL": 4,
    "termination signal": 15,
}  # fmt: skip
_REPORTS = (
    # Paddle: "FatalError: `Segmentation fault` is detected by the operating system."; 1.8 said "A serious error (…)"
    re.compile(r"^(?:\w{0,20}Error: )?(?:`|A serious error \()(?P<word>[A-Z][\w ]{3,60})[`)] is detected by the operating system"),
    re.compile(r"^\*\*\* caught (?P<word>segfault|bus error|illegal operation) \*\*\*"),  # R
    # Julia: "signal (11): Segmentation fault", since 1.9 "[4242] signal 11 (1): Segmentation fault"
    re.compile(r"^(?:\[(?P<pid>\d{2,9})\] )?signal \(?(?P<number>\d{1,2})(?:\.\d+)?\)?(?: \(-?\d+\))?: [A-Z]"),
    # Java: "#  SIGSEGV (0xb) at pc=0x00007f, pid=4242, tid=4243"
    re.compile(r"^#?\s*(?P<word>SIG[A-Z]{2,4}|EXCEPTION_ACCESS_VIOLATION) \(0x[0-9a-f]+\) at pc=0x[0-9a-f]+, pid=(?P<pid>\d{1,9})"),
    re.compile(r"^\[signal (?P<word>SIG[A-Z]{2,4}): [a-z ]+ code="),  # Go
    re.compile(r"^\W{0,4}(?P<word>Segmentation violation) detected"),  # MATLAB
)  # fmt: skip


def recognise(said: Said) -> Hit | None:
    text = said.text.strip()
    for pattern in _REPORTS:
        if report := pattern.search(text):
            return _told(report.groupdict())
    return None


def _told(report: dict[str, str | None]) -> Hit | None:
    word = report.get("word") or ""
    number = _NUMBERS.get(word) or _NUMBERS.get(word.lower()) or int(report.get("number") or 0)
    pid = report.get("pid")
    return by_signal(number, 0.93, "failure", (int(pid),) if pid else ()) if number else None
