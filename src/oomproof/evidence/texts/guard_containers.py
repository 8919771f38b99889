"""Kubernetes, Docker and other engines of containers: what they say of one that died of memory."""

from __future__ import annotations

import re

from oomproof.evidence.texts.finding import Finding, GuardFacts, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.line_prefixes import Stamped
from oomproof.evidence.texts.quoted_source import only_mentions
from oomproof.records import replace

_AGES = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Containers(GuardReader):
    """A container's limit is a memory cgroup's. Exit 137 alone says only that somebody sent SIGKILL."""

    anchors = ("OOMKilled", "OOM Killed", "xit code", "xit Code", "xitCode", "xit_code", "exited with", "exit status", "Exited (",
               "System OOM encountered", "Got sys oom event", "container oom", "TaskOOM", "low on resource: memory",
               " memory limit", "Memory limit of ")  # fmt: skip

    _AGE = re.compile(r"(?:^|\bSystemOOM\s{1,40})(?P<age>(?:\d{1,6}[dhms]){1,2})\s")
    _SYS_EVENT = re.compile(  # the kubelet's own log
        r"Got sys oom event\b.{0,60}?\bPid:(?P<pid>\d{1,10}) ProcessName:(?P<name>.{1,64}?) TimeOfDeath"
        r".{0,600}?(?:Constraint:CONSTRAINT_(?P<why>\w+)|$)"
    )
    _OOM = re.compile(
        r"""(?:[Rr]eason["']?\s*[:=]\s*["']?OOM ?Killed\b|OOMKilled["']?\s*[:=]\s*["']?true\b"""
        r"""|\s\d+/\d+\s+(?:Init:)?OOMKilled\s|terminated[ (:]{1,3}OOMKilled\b|\bcontainer oom [0-9a-f]{12}|\btype="?containerd\.events\.TaskOOM\b|msg="TaskOOM event """
        # YARN, HTCondor, Cloud Run
        r"""|is running beyond (?:physical|virtual) memory limits\..{0,400}Killing container|\bJob has gone over (?:\w+ )?memory limit of \d"""
        r"""|\bMemory limit of [\d.]+ ?[KMG]i?B? exceeded with [\d.]+)"""
    )
    _SYSTEM = re.compile(
        r"(?:\bSystemOOM\b.{0,200}?)?System OOM encountered, victim process: (?P<name>.{1,64}?), pid: (?P<pid>\d{1,10})"
        r"|\bSystemOOM\b.{0,200}System OOM encountered"  # the event's reason: the words alone stand in sources too
    )
    _EVICTED = re.compile(r"The node was low on resource: memory")
    _CODE = re.compile(
        r"""(?:[Ee]xit[ _]?[Cc]ode["']?\s*[:=]?\s*["']?|exited with (?:code|status) |exit (?:code|status) """
        r"""|returned exit code |Exited \()137\b(?!/\d)(?!\W{1,3}(?:means|indicates|denotes|usually)\b)"""
    )

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if only_mentions(message):
            return  # a program or a table that speaks of exit codes
        if self._OOM.search(message):
            last = self.last("killed-unknown")
            if last is not None and number - last.line < 20:
                self.found.pop()
            last = self.last("oom-kill-memcg")
            if last is None or number - last.line >= 20:
                said = "the container was killed at its memory limit (OOMKilled)"
                self.add("oom-kill-memcg", number, stamp, said, 0.85, facts=GuardFacts("container"))
        elif match := self._SYSTEM.search(message):
            self._system(number, stamp, match["name"], int(match["pid"]) if match["pid"] else None)
        elif match := self._SYS_EVENT.search(message):
            self._system(number, stamp, match["name"], int(match["pid"]), match["why"] == "MEMCG")
        elif self._EVICTED.search(message):
            said = "the kubelet evicted the pod because its node ran low on memory"
            self.add("killed-unknown", number, stamp, said, 0.7, facts=GuardFacts("kubelet", why="evicted"))
        elif self._CODE.search(message) and not self.last("oom-kill-memcg"):
            if (last := self.last("killed-unknown")) and number - last.line < 20:
                return
            said = "exit code 137: somebody sent SIGKILL; this line does not say who"
            self.add("killed-unknown", number, stamp, said, 0.5, facts=GuardFacts("exit-code"))

    def _system(
        self, number: int, stamp: Stamped, name: str | None, pid: int | None, limit: bool = False
    ) -> None:
        if pid is None:  # before Kubernetes 1.16 the event names nobody
            said = "the kubelet saw the kernel's OOM killer at work: the node was out of memory"
            self.add("oom-kill-global", number, stamp, said, 0.7, facts=GuardFacts("kubelet"))
            return
        cause, why = (
            ("oom-kill-memcg", "it was at its limit")
            if limit
            else ("oom-kill-global", "the node was out of memory")
        )
        age = self._AGE.search(stamp.message)
        facts = GuardFacts("kubelet", age=_seconds(age["age"]) if age else None)
        said = f"the kubelet saw the kernel kill {name} (pid {pid}): {why}"
        self.add(cause, number, stamp, said, 0.8, Sizes(pid, name), facts=facts)

    def finish(self) -> list[Finding]:
        """`kubectl get events` sorts by no time: of several kills the youngest is the one to tell of."""
        youngest = min((kill.guard.age for kill in self.found if kill.guard.age is not None), default=0)
        return [
            replace(kill, strength=0.75) if (kill.guard.age or 0) > youngest else kill for kill in self.found
        ]


def _seconds(age: str) -> int:
    """ "2d3h", "53m": as kubectl prints ages."""
    return sum(int(count) * _AGES[unit] for count, unit in re.findall(r"(\d+)([dhms])", age))
