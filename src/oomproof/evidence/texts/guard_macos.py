"""macOS: memorystatus lines of `log show`, low-swap kills, and JetsamEvent reports (JSON)."""

from __future__ import annotations

import json
import re
from typing import Any

from oomproof.evidence.texts.finding import Finding, GuardFacts, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.line_prefixes import Stamped
from oomproof.units import format_size

# kills that tidy up or guard other things than memory
_HARMLESS = ("idle-exit", "idle_exit", "vnode-limit", "disk-space-shortage", "jetsam-idle", "rf:low idle")
_OSR_IDLE = "9"  # jetsam_reason->osr_code of an idle exit
_MOST = 4 << 20  # characters of a report kept
_PAGE = 16384


class MacOS(GuardReader):
    anchors = ("memorystatus: killing", "low swap: killing", "exceeded mem limit", '"bug_type":"298"',
               '"bug_type" : "298"', "largestProcess", "jetsam_kill")  # fmt: skip

    _TOP = re.compile(
        r"memorystatus: killing[_ ](?P<how>\w+?)(?:_process)?(?: pid (?P<pid>\d{1,10}))? [\[(](?P<name>[^\])]{1,64})[\])]"
        r"(?: \((?P<reason>[\w-]+)[^)]{0,80}\))?(?: (?P<kb>\d+)KB)?(?:.{0,40}osr_code: (?P<code>\d+))?"
    )
    _LARGEST = re.compile(
        r"(?:memorystatus|low swap): killing largest compressed process (?:with pid (?P<pid>\d{1,10}) "
        r"\((?P<name>.{1,64}?)\) and size (?P<mb>\d+) MB|(?P<name2>.{1,64}?) \[(?:(?P<pid2>\d{1,10})|\D{1,5})\] (?P<mb2>\d+) MB)"
    )
    _LOW_SWAP = re.compile(r"low swap: killing pid (?P<pid>\d{1,10}) \((?P<name>.{1,64})\)")
    _LIMIT = re.compile(
        r"(?P<name>\S{1,64}) ?\[(?P<pid>\d{1,10})\] exceeded mem limit: \w+ (?P<mb>\d+) MB \(fatal\)"
    )

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._report: list[str] = []
        self._size = 0
        self._begun: tuple[int, Stamped] | None = None

    def collecting(self) -> bool:
        return self._begun is not None and self._size < _MOST

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if self._begun is not None:
            self._collect(message)
            return
        if '"298"' in message or "largestProcess" in message:
            self._begun = (number, stamp)
            self._collect(message)
        elif match := self._LARGEST.search(message):
            told, name = match["pid"] or match["pid2"], match["name"] or match["name2"]
            pid = int(told) if told else None
            size = int(match["mb"] or match["mb2"]) << 20
            said = f"macOS killed {_who(name, pid)}, the largest in compressed memory ({format_size(size)}): swap was full"
            self._killed(number, stamp, pid, name, said)
        elif match := self._LOW_SWAP.search(message):
            said = f"macOS killed {match['name']} (pid {match['pid']}): swap was full"
            self._killed(number, stamp, int(match["pid"]), match["name"], said)
        elif match := self._LIMIT.search(message):
            said = f"macOS killed {match['name']} (pid {match['pid']}) at its own limit of {match['mb']} MB"
            self._killed(number, stamp, int(match["pid"]), match["name"], said)
        elif match := self._TOP.search(message):
            self._memorystatus(number, stamp, match)

    def _memorystatus(self, number: int, stamp: Stamped, match: re.Match[str]) -> None:
        reason = match["reason"] or ""
        if match["how"].startswith("idle") or reason in _HARMLESS or match["code"] == _OSR_IDLE:
            return
        name, pid = match["name"], int(match["pid"]) if match["pid"] else None
        said = f"macOS killed {_who(name, pid)}: {reason or 'memory ran short'}"
        self._killed(number, stamp, pid, name, said, int(match["kb"]) * 1024 if match["kb"] else None)

    def _killed(
        self, number: int, stamp: Stamped, pid: int | None, name: str, said: str, held: int | None = None
    ) -> None:
        self.add("jetsam", number, stamp, said, 1.0, Sizes(pid, name), facts=GuardFacts(held=held))

    # a JetsamEvent report: the header object on a line of its own, then one object over many lines

    def _collect(self, message: str) -> None:
        if self._size < _MOST:
            self._report.append(message)
            self._size += len(message)

    def finish(self) -> list[Finding]:
        if self._begun is not None:
            number, stamp = self._begun
            self._begun = None
            self._read_report(number, stamp, "\n".join(self._report))
        return self.found

    def _read_report(self, number: int, stamp: Stamped, text: str) -> None:
        processes, page = _processes(text)
        for process in processes:
            reason, name, pid = process.get("reason"), process.get("name"), process.get("pid")
            if not isinstance(reason, str) or reason in _HARMLESS or not isinstance(name, str):
                continue
            pages = process.get("rpages")
            held = pages * page if isinstance(pages, int) else None
            said = f"macOS killed {name}: {reason}" + (
                f"; it held {format_size(held)}" if held is not None else ""
            )
            self._killed(number, stamp, pid if isinstance(pid, int) else None, name, said, held)


def _who(name: str, pid: int | None) -> str:
    return f"{name} (pid {pid})" if pid is not None else name


def _processes(text: str) -> tuple[list[dict[str, Any]], int]:
    """(processes, page size); what a cut report still shows when it is no whole JSON."""
    decoder = json.JSONDecoder()
    at, body = 0, None
    for _ in range(3):
        at = text.find("{", at)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict) and isinstance(value.get("processes"), list):
            body = value
            break
    if body is not None:
        status = body.get("memoryStatus")
        page = body.get("pageSize") or (status.get("pageSize") if isinstance(status, dict) else None)
        processes = [process for process in body["processes"] if isinstance(process, dict)]
        return processes, page if isinstance(page, int) else _PAGE
    return _cut(text)


_PAGE_SIZE = re.compile(r'"pageSize"\s*:\s*(\d{4,6})')
_FIELD = re.compile(r'"(pid|rpages|name|reason)"\s*:\s*(?:(\d{1,12})|"([^"]{0,64})")')


def _cut(text: str) -> tuple[list[dict[str, Any]], int]:
    page = _PAGE_SIZE.search(text)
    processes: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    for piece in re.split(r"[{}]", text):
        for match in _FIELD.finditer(piece):
            current[match[1]] = int(match[2]) if match[2] else match[3]
        if "name" in current and "pid" in current:
            processes.append(current)
            current = {}
    return processes, int(page[1]) if page else _PAGE
