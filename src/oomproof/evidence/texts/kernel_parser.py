"""Kernel log lines in, OOM kills and faults out: a stream of any size, cut, mixed and re-ordered as it may be."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice

from oomproof.evidence.texts.finding import Finding, Sizes
from oomproof.evidence.texts.kernel_faults import ANCHORS as FAULT_ANCHORS
from oomproof.evidence.texts.kernel_faults import Fault, comm_of, read_fault
from oomproof.evidence.texts.kernel_report import (
    Constraint,
    Kill,
    Report,
    breaks_off,
    is_invoked,
    only_of_a_report,
    read_announcement,
    read_constraint,
    read_killed,
    read_reaped,
)
from oomproof.evidence.texts.line_prefixes import Stamped, goes_back, strip
from oomproof.evidence.texts.quoted_source import only_mentions
from oomproof.records import replace

# Strings one of which stands in every line that matters; `grep -F` finds them in a log of any size.
ANCHORS = (
    "oom-kill", "oom_reaper: ", "illed process ", "ill process ", "total_vm ", "memory: usage ",
    "Memory cgroup ", "Task in /", "mem_cgroup_o", "ut of memory", *FAULT_ANCHORS,
)  # fmt: skip
# a call trace alone, as in a text that was cut: not worth a search of a whole log
CUT_ANCHORS = (*ANCHORS, "oom_kill_process")
REPORT_STARTS = ("invoked oom-killer", "total_vm ")  # behind these, the lines up to the kill matter too
REPORT_END = "illed process "

_SPAN = 6000  # lines: a task table of a big machine has thousands of rows
_KILLS = 10_000  # kept: the newest
_FAULTS = 5_000
_CONTEXTS = 64  # hosts and printing threads told apart
_PENDING = 256
_XID_ERROR = 400  # lines within which the driver's messages belong to one error
_OOPS = 30  # lines within which a kernel's own failure says who ran
_WRAPPED = 5  # lines a mail program may have broken one into
# a line that begins like this, unstamped, is the rest of the one before
_REST = {
    "killed": re.compile(
        r"\s*(?:\(|total-vm|vsz|anon-rss|file-rss|shmem-rss|vm:|rss:|process \d|UID|pgtables|oom_score_adj|\d*kB|B, |[a-z-]{0,10}:\d+kB)"
    ),
    "constraint": re.compile(
        r"\s*[\w./@:\\()-]*[,=]\S*\s*$|\s*[\w./@:\\-]+\s*$"
        r"|\s*(?:nodemask|cpuset|mems_allowed|global_oom|oom_memcg|task_memcg|task|pid|uid)[=,]"
    ),
    "fault": re.compile(r"\s*\S"),
    "segfault": re.compile(r"\s*(?:error|r?ip|r?sp|in|at)\b"),
}
_KILLED_WHOLE = re.compile(r"oom_score_adj:|file-rss:\d+kB\s*$|shmem-rss:\d+kB")
_UID = re.compile(r", ?uid=")
_FAULT_BROKEN_OFF = re.compile(
    r"(?:Killing|Sending SIGBUS to|due to|hardware memory|interruption code [0-9a-fx]{2,8}(?: ilc:\d)?(?: in)?)$"
)
_FOLLOWS_SEGFAULT = re.compile(r"\berror:? ?\d+\b")
# a patch or a manual shows what a report looks like
_EXAMPLE = re.compile(
    r"(?i)\b(?:for example|an? example|example (?:of|output)|looks? like this|e\.g\.|the output (?:includes|shows|is similar)|for this output|on this page)"
)
_LEAD_IN = 3  # lines


def marked(line: str) -> bool:
    # plain searches took a tenth of the time of one compiled alternation
    for anchor in CUT_ANCHORS:  # noqa: SIM110  # and any() twice that of this loop
        if anchor in line:
            return True
    return False


class KernelParser:
    """Feed it every line of one text, then ask once for what it found, oldest first."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._reports: dict[tuple[str | None, str | None], Report] = {}
        self._constraints: dict[int, Constraint] = {}
        self._kills: deque[Kill] = deque(maxlen=_KILLS)
        self._faults: deque[tuple[int, Finding]] = deque(maxlen=_FAULTS)
        self._reaped: deque[tuple[int, Stamped, str, int, str]] = deque(maxlen=_PENDING)
        self._unfinished: deque[Report] = deque(maxlen=_PENDING)
        self._key: tuple[str | None, str | None] = (None, None)
        self._until = 0  # lines up to this one are read for a report
        self._open: tuple[str, int, Stamped, str, int] | None = None  # a line that may go on in the next
        self._oops: Fault | None = None
        self._last: float | None = None
        self._falls = self._rises = 0
        self._lead_in: deque[str] = deque(maxlen=_LEAD_IN)  # the last lines that were not the kernel's

    def feed(self, number: int, line: str) -> None:
        if self._open is not None:
            self._continue(number, line)
        anchored = marked(line)
        if number > self._until and not anchored:
            self._lead_in.append(line)
            return
        stamp = strip(line)
        for part in stamp.message.split("\n") if "\n" in stamp.message else (stamp.message,):
            self._read(number, stamp, part, anchored)

    def reading(self, number: int) -> bool:
        """Whether it wants the line of that number even if no anchor stands in it."""
        return self._open is not None or number <= self._until

    def finish(self) -> list[Finding]:
        self._close()
        self._leftovers()
        numbered = [(kill.line, kill.finding(self._source)) for kill in self._kills]
        numbered += self._faults
        numbered.sort(key=lambda entry: entry[0])
        if self._falls > self._rises:  # `journalctl -r` prints the newest first
            numbered.reverse()
        return [finding for _, finding in numbered]

    # one line

    def _read(self, number: int, stamp: Stamped, message: str, anchored: bool) -> None:
        self._direction(stamp)
        if not stamp.bare:
            self._key = (stamp.host, stamp.caller)
        elif anchored and only_mentions(message):
            return  # a program or a table that quotes the kernel
        if ("illed process " in message or "emory: Process " in message) and (
            kill := read_killed(number, stamp, message)
        ):
            self._hold("killed", number, stamp, message, whole=_KILLED_WHOLE.search(message) is not None)
            if self._open is None:
                self._killed(kill)
            return
        if "illed" in message and breaks_off(message):
            self._hold("killed", number, stamp, message, whole=False)
            return
        if "oom-kill:" in message and (constraint := read_constraint(number, stamp, message)):
            self._hold("constraint", number, stamp, message, whole=_UID.search(message) is not None)
            if self._open is None:
                self._constrained(constraint)
            return
        report = self._report(number)
        if "ill process " in message and (announced := read_announcement(number, stamp, message)):
            if not self._shown():
                report.announced = announced
        elif "invoked oom-killer" in message and is_invoked(message):
            if report.invoked is not None or report.used:
                report = self._renew(number)
            report.invoked = (number, stamp, message[:600])
            self._until = number + _SPAN
        elif "oom_reaper" in message:
            if reaped := read_reaped(message):
                self._reaped.append((number, stamp, message[:600], *reaped))
        else:
            before = report.table.columns
            told = report.read(message)
            begins = report.table.columns is not before
            if begins:
                self._until = max(self._until, number + _SPAN)
            if report.begun is None and told and (begins or only_of_a_report(message)) and not self._shown():
                report.begun = (number, stamp, message[:600])
            if not told and (anchored or self._oops is not None):
                self._fault(number, stamp, message)

    def _shown(self) -> bool:
        return any(_EXAMPLE.search(line[:400]) for line in self._lead_in)

    def _direction(self, stamp: Stamped) -> None:
        if stamp.order is None:
            return
        if self._last is not None and stamp.order != self._last:
            if goes_back(self._last, stamp):
                self._falls += 1
            else:
                self._rises += 1
        self._last = stamp.order

    # lines that go on in the next one

    def _hold(self, kind: str, number: int, stamp: Stamped, message: str, whole: bool) -> None:
        self._close()
        if not whole:
            self._open = (kind, number, stamp, message, _WRAPPED)

    def _continue(self, number: int, line: str) -> None:
        assert self._open is not None
        kind, first, stamp, text, left = self._open
        rest = strip(line)
        if left and rest.bare and rest.message and _REST[kind].match(rest.message) and len(text) < 2000:
            glue = "" if text.endswith("-") or (kind == "constraint" and not text.endswith(" ")) else " "
            glue = "\n" if kind == "killed" and glue else glue  # read both ways once it is whole
            self._open = (kind, first, stamp, text + glue + rest.message.strip(), left - 1)
        else:
            self._close()

    def _close(self) -> None:
        if self._open is None:
            return
        kind, number, stamp, text, _ = self._open
        self._open = None
        if kind == "killed" and (kill := _fuller(number, stamp, text)):
            self._killed(kill)
        elif kind == "constraint" and (constraint := read_constraint(number, stamp, text)):
            self._constrained(constraint)
        elif kind in ("segfault", "fault") and (fault := read_fault(text)):
            self._keep_fault(number, stamp, text, fault)

    # reports

    def _report(self, number: int) -> Report:
        """The report that lines of this host and thread belong to."""
        report = self._reports.get(self._key)
        if report is None:
            if len(self._reports) >= _CONTEXTS:
                self._set_aside(self._reports.pop(next(iter(self._reports))))
            report = self._reports[self._key] = Report()
        elif report.heard and number - report.heard > _SPAN:
            report = self._renew(number)
        report.heard = number
        return report

    def _renew(self, number: int) -> Report:
        old = self._reports.get(self._key)
        if old is not None:
            self._set_aside(old)
        report = self._reports[self._key] = Report(heard=number)
        return report

    def _set_aside(self, report: Report) -> None:
        if report.invoked is not None or report.announced is not None or report.begun is not None:
            self._unfinished.append(report)

    def _constrained(self, constraint: Constraint) -> None:
        if constraint.pid is None:  # cut off before the pid: it belongs to the kill that follows
            self._constraints[-1] = constraint
            return
        for kill in islice(reversed(self._kills), 20):  # re-ordered: the kill came first
            if constraint.line - kill.line > 50:
                break
            if kill.sizes.pid == constraint.pid and kill.constraint is None:
                kill.merge_constraint(constraint)
                return
        if len(self._constraints) >= _PENDING:
            self._constraints.pop(next(iter(self._constraints)))
        self._constraints[constraint.pid] = constraint

    def _killed(self, kill: Kill) -> None:
        if self._known(kill):
            return
        report = self._reports.get(self._key) or Report()
        if report.heard and kill.line - report.heard > _SPAN:
            report = self._renew(kill.line)
        constraint = self._constraints.pop(kill.sizes.pid or -2, None)
        cut = self._constraints.pop(-1, None)
        if constraint is None and cut is not None and kill.line - cut.line < 50:
            constraint = cut
        report.complete(kill, constraint)
        self._kills.append(kill)
        # the next "Killed process" of an old kernel has its own announcement; a group kill shares the report
        report.announced = None
        report.invoked = None
        report.used = True
        if not any(other_report.invoked for other_report in self._reports.values()):
            self._until = min(self._until, kill.line)

    def _known(self, kill: Kill) -> bool:
        """The same kill told twice, by dmesg and journal, or by a kernel that prints one line per thread."""
        for back, old in enumerate(islice(reversed(self._kills), 20), 1):
            if old.sizes.pid != kill.sizes.pid or old.sizes.name != kill.sizes.name:
                continue
            if old.sizes == kill.sizes and (kill.sizes.total_vm is not None or kill.line - old.line < 50):
                if kill.line - old.line < 50 and back > 1:
                    # a group's kill begins with the one chosen and comes back to it
                    del self._kills[-back]
                    old.line = kill.line
                    self._kills.append(old)
                return True
        return False

    def _leftovers(self) -> None:
        """Kills whose "Killed process" line is missing: cut texts, and greps that kept other lines."""
        killed = {kill.sizes.pid for kill in self._kills}
        for pid, constraint in self._constraints.items():
            if pid in killed:
                continue
            sizes, strength = Sizes(constraint.pid, constraint.name), 0.75 if constraint.pid is None else 0.95
            kill = Kill(constraint.line, constraint.stamp, constraint.text, sizes, strength=strength)
            report = (
                next((other_report for other_report in self._reports.values() if other_report.invoked), None)
                or Report()
            )
            report.complete(kill, constraint)
            report.invoked = report.announced = None
            self._kills.append(kill)
            killed.add(pid)
        self._without_victim(killed)
        if not self._kills:
            for number, stamp, text, pid, name in self._reaped:
                self._kills.append(Kill(number, stamp, text, Sizes(pid, name), strength=0.7))

    def _without_victim(self, killed: set[int | None]) -> None:
        whole = bool(self._kills)
        for report in (*self._unfinished, *self._reports.values()):
            announced = report.announced
            if announced is not None and announced.pid not in killed:
                sizes = Sizes(announced.pid, announced.name)
                kill = Kill(
                    announced.line, announced.stamp, announced.text, sizes, announced.why, strength=0.85
                )
                report.complete(kill, None)
                self._kills.append(kill)
            elif announced is None and (head := report.invoked or (None if whole else report.begun)):
                number, stamp, text = head
                # among whole kills this one may have ended without a victim; alone it still tells of a shortage
                if whole and any(abs(number - kill.line) < _SPAN for kill in self._kills):
                    continue
                kill = Kill(number, stamp, text, Sizes(), strength=0.5 if whole else 0.65)
                report.complete(kill, None)
                kill.strength = 0.5 if whole else 0.65
                self._kills.append(kill)
        self._kills = deque(sorted(self._kills, key=lambda kill: kill.line), maxlen=_KILLS)

    # faults

    def _fault(self, number: int, stamp: Stamped, message: str) -> None:
        if self._oops is not None and (who := comm_of(message)):
            at, finding = self._faults.pop()
            self._faults.append((at, _with_victim(finding, *who)))
            self._oops = None
            return
        if "\\d" in message or ".*" in message or "%s" in message:
            return  # a watcher's pattern or a kernel's source, not its words
        if _FAULT_BROKEN_OFF.search(message):
            self._hold("fault", number, stamp, message, whole=False)
            return
        fault = read_fault(message)
        if fault is None:
            return
        if fault.cause == "segfault" and not _FOLLOWS_SEGFAULT.search(message):
            self._hold("segfault", number, stamp, message, whole=False)
            return
        self._keep_fault(number, stamp, message, fault)

    def _keep_fault(self, number: int, stamp: Stamped, message: str, fault: Fault) -> None:
        if fault.facts.notice and self._faults:
            at, last = self._faults[-1]  # a hardware error is told in a dozen lines: one finding
            if last.kernel.notice == fault.facts.notice and number - at < 50:
                return
        if fault.cause == "xid":
            fault = self._whose(number, fault)
            self._name_those_before(number, fault)
        known = fault.pid is not None or fault.name is not None
        finding = Finding(
            fault.cause, self._source, number, message[:600], fault.says, fault.strength, stamp.time, stamp.seconds,
            Sizes(fault.pid, fault.name) if known else None,
            pids=(fault.pid,) if fault.pid is not None else (), kernel=fault.facts,
        )  # fmt: skip
        self._faults.append((number, finding))
        self._oops = fault if fault.named_later else None
        if self._oops is not None:
            self._until = max(self._until, number + _OOPS)

    def _name_those_before(self, number: int, fault: Fault) -> None:
        """… or only in the last: Xid 13 on a card, then 43 with the process that it met."""
        if fault.pid is None or fault.name is None:
            return
        for index in range(len(self._faults) - 1, -1, -1):
            at, old = self._faults[index]
            if number - at > _XID_ERROR or old.cause != "xid":
                return
            if old.victim is None and old.kernel.bus == fault.facts.bus:
                self._faults[index] = (at, _with_victim(old, fault.pid, fault.name))

    def _whose(self, number: int, fault: Fault) -> Fault:
        """The driver names the process in the first line of an error, and often not in those that follow."""
        bus = fault.facts.bus
        if fault.pid is not None and fault.name is not None:
            return fault
        for at, old in islice(reversed(self._faults), 50):
            if number - at > _XID_ERROR:
                break
            if old.cause != "xid" or old.victim is None or old.victim.pid is None:
                continue
            same_card = bus is None or bus == old.kernel.bus
            if fault.pid == old.victim.pid or (fault.pid is None and same_card):
                return replace(fault, pid=old.victim.pid, name=fault.name or old.victim.name)
        return fault


def _with_victim(finding: Finding, pid: int, name: str) -> Finding:
    says = f"{finding.says}, while {name} (pid {pid}) ran"
    return replace(finding, says=says, victim=Sizes(pid, name), pids=(pid,))


def _fuller(number: int, stamp: Stamped, text: str) -> Kill | None:
    """A broken line put together: between words a blank was lost, inside a word nothing; the more sizes are right."""
    kills = [read_killed(number, stamp, text.replace("\n", glue)) for glue in (" ", "")]
    return max((kill for kill in kills if kill is not None), key=_sizes_told, default=None)


def _sizes_told(kill: Kill) -> int:
    victim = kill.sizes
    sizes = (victim.total_vm, victim.anon_rss, victim.file_rss, victim.shmem_rss)
    return sum(size is not None for size in sizes)
