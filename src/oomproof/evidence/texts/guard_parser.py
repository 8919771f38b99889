"""Guards and engines other than the kernel: their lines in, one finding per death out, oldest first."""

from __future__ import annotations

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.guard_containers import Containers
from oomproof.evidence.texts.guard_daemons import Earlyoom, Nohang
from oomproof.evidence.texts.guard_macos import MacOS
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.guard_systemd import SystemdOomd, SystemdUnits
from oomproof.evidence.texts.guard_table import TABLES, TableReader
from oomproof.evidence.texts.line_prefixes import Stamped, strip
from oomproof.evidence.texts.quoted_source import only_mentions


def _readers(source: str) -> list[GuardReader]:
    tables = [TableReader(source, rows) for rows in TABLES]
    daemons = [SystemdOomd(source), SystemdUnits(source), Earlyoom(source), Nohang(source)]
    return [*daemons, *tables, Containers(source), MacOS(source)]


ANCHORS = tuple(dict.fromkeys(anchor for reader in _readers("") for anchor in reader.anchors))
_SHORT = shortest(ANCHORS)


def _marked(line: str) -> bool:
    for anchor in _SHORT:  # noqa: SIM110  # any() took twice the time of this loop
        if anchor in line:
            return True
    return False


class GuardParser:
    """The interface of ``KernelParser``: feed every line, then ask once."""

    def __init__(self, source: str) -> None:
        self._readers = _readers(source)
        self._macos = self._readers[-1]

    def reading(self) -> bool:
        """Whether it wants the next line even if no anchor stands in it."""
        return isinstance(self._macos, MacOS) and self._macos.collecting()

    def feed(self, number: int, line: str) -> None:
        if self.reading():
            self._macos.feed(number, Stamped(None, None, line.strip()))
            return
        if not _marked(line) or only_mentions(line):
            return
        stamp = strip(line)
        for message in stamp.message.split("\n") if "\n" in stamp.message else (stamp.message,):
            part = stamp._replace(message=message.strip())  # a journal's JSON keeps blanks
            for reader in self._readers:
                if any(anchor in line for anchor in reader.anchors) or isinstance(reader, Nohang):
                    reader.feed(number, part)

    def finish(self) -> list[Finding]:
        findings = [finding for reader in self._readers for finding in reader.finish()]
        findings.sort(key=lambda other_finding: other_finding.line)
        return _without_echoes(findings)


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """systemd-oomd's kill makes systemd report the same unit as "oom-kill" or "status=9/KILL"."""
    oomd = [finding for finding in findings if finding.cause == "systemd-oomd"]
    kept = []
    for finding in findings:
        unit = finding.guard.unit
        echo = finding.guard.by.startswith("systemd") and any(
            unit and unit == kill.guard.unit and abs(finding.line - kill.line) < 100 for kill in oomd
        )
        if not echo:
            kept.append(finding)
    return kept
