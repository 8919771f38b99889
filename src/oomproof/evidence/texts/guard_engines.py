"""Slurm, Ray, Kubernetes and Docker: what the engine says of a job that died of memory."""

from __future__ import annotations

import re
from dataclasses import replace

from oomproof.evidence.texts.finding import Finding, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.prefixes import Stamped
from oomproof.evidence.texts.sources import only_mentions

_AGES = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNIT = {"B": 1, "KB": 1 << 10, "K": 1 << 10, "MB": 1 << 20, "M": 1 << 20, "GB": 1 << 30, "G": 1 << 30}


class Slurm(GuardReader):
    anchors = ("oom_kill event", "oom-kill event", "Out Of Memory", "memory limit", "OUT_OF_ME", "CANCELLED AT",
               "OOM Killed", "DerivedExitCode=0:125")  # fmt: skip

    _DETECTED = re.compile(
        r"Detected (?P<count>\d+) oom[-_]kill event(?:\(s\)|s)? in (?P<step>(?:StepId=|step )?[\w.+]+)"
    )
    _SRUN = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<task>[\d,-]+): Out Of Memory")
    _EXCEEDED = re.compile(
        r"(?:[Jj]ob|[Ss]tep)(?: \d+(?:\.\w+)?)? exceeded (?:\w+ )?memory limit \((?P<used>\d+) > (?P<limit>\d+)\)"
        r"|Exceeded (?:job|step) memory limit"
    )
    _STATE = re.compile(r"(?:State: |JobState=|\s)(?P<state>OUT_OF_ME(?:MORY|M|\+)?)(?:\s|$|\()")
    _STEP = re.compile(r"\bDerivedExitCode=0:125\b")  # the job may be FAILED while a step was out of memory
    _CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?P<why> DUE TO [A-Z ]+)?")

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if (match := self._DETECTED.search(message)) and int(match["count"]):
            step = match["step"].removeprefix("StepId=").removeprefix("step ").rstrip(".")
            said = (
                f"Slurm counted {match['count']} OOM kill(s) in step {step}: the job was at its memory limit"
            )
            self._once(number, stamp, said, 1.0, {"step": step, "count": match["count"]})
        elif match := self._SRUN.search(message):
            said = f"srun says task {match['task']} on {match['node']} ran out of memory"
            self._once(number, stamp, said, 0.95, {"node": match["node"]})
        elif match := self._EXCEEDED.search(message):
            limit = int(match["limit"]) * 1024 if match["limit"] else None
            self._once(number, stamp, "Slurm killed the job: it exceeded its memory limit", 1.0, {}, limit)
        elif self._STATE.search(message):
            self._once(number, stamp, "Slurm's accounting says OUT_OF_MEMORY", 0.95, {})
        elif self._STEP.search(message):
            said = "Slurm's exit code 0:125 of a step says that the step was out of memory"
            self._once(number, stamp, said, 0.85, {})
        elif match := self._CANCELLED.search(message):
            why = (match["why"] or "").strip().lower()
            said = f"Slurm cancelled the job{' ' + why if why else ''}"
            self.add("interrupted", number, stamp, said, 0.9, details={"by": "slurm", "why": why})

    def _once(
        self,
        number: int,
        stamp: Stamped,
        said: str,
        strength: float,
        details: dict[str, str],
        limit: int | None = None,
    ) -> None:
        last = self.last("slurm-oom")
        if last is not None and number - last.line < 50:
            last.details.update(details)
            return
        self.add("slurm-oom", number, stamp, said, strength, limit=limit, details=details)


class Ray(GuardReader):
    anchors = ("memory pressure (OOM)", "OutOfMemoryError", "running low on memory", "memory usage threshold",
               "Ray killed this worker")  # fmt: skip

    _WORKERS = re.compile(r"(?P<count>\d+) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)")
    _RAISED = re.compile(
        r"ray\.exceptions\.OutOfMemoryError|\bRayOutOfMemoryError\b|(?:Task|Actor|worker)\b.{0,80} killed due to "
        r"the node running low on memory"
    )
    _NODE = re.compile(
        r"Memory on the node .{0,400}? was (?P<used>[\d.]+)(?P<unit>GB|MB) / (?P<total>[\d.]+)(?:GB|MB)"
        r" \((?P<share>[\d.]+)\), which exceeds the memory usage threshold"
    )
    _PID = re.compile(r"(?:\bname=(?P<name>[^,()]{1,64}), )?\b(?:pid|Worker PID)[=:]\s?(?P<pid>\d{1,10})")

    def feed(self, number: int, stamp: Stamped) -> None:
        message = stamp.message
        if match := self._WORKERS.search(message):
            if int(match["count"]):
                said = f"Ray's memory monitor killed {match['count']} worker(s): the node was out of memory"
                self._once(number, stamp, said, {"workers": match["count"]})
        elif match := self._NODE.search(message):
            used = f"{match['used']} of {match['total']} {match['unit']}"
            self._once(number, stamp, f"Ray killed a worker: the node used {used}", {"share": match["share"]})
        elif self._RAISED.search(message):
            self._once(number, stamp, "Ray killed a task because its node ran low on memory", {})

    def _once(self, number: int, stamp: Stamped, said: str, details: dict[str, str]) -> None:
        pid = self._PID.search(stamp.message)
        victim = Sizes(int(pid["pid"]), pid["name"]) if pid else None
        last = self.last("ray-oom")
        if last is not None and number - last.line < 30:
            last.details.update(details)
            if last.victim is None and victim is not None:
                self.amend(victim=victim)
            return
        self.add("ray-oom", number, stamp, said, 1.0, victim, details=details)


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
    _FINE = re.compile(r"""OOMKilled["']?\s*[:=]\s*["']?false\b""")
    _SYSTEM = re.compile(
        r"(?:\bSystemOOM\b.{0,200}?)?System OOM encountered, victim process: (?P<name>.{1,64}?), pid: (?P<pid>\d{1,10})"
        r"|\bSystemOOM\b.{0,200}System OOM encountered"  # the event's reason: the words alone stand in sources too
    )
    _EVICTED = re.compile(r"The node was low on resource: memory")
    _CODE = re.compile(
        r"""(?:[Ee]xit[ _]?[Cc]ode["']?\s*[:=]?\s*["']?|exited with (?:code|status) |exit (?:code|status) """
        r"""|returned exit code |Exited \()137\b(?!\W{1,3}(?:means|indicates|denotes|usually)\b)"""
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
                self.add("oom-kill-memcg", number, stamp, said, 0.85, details={"by": "container"})
        elif match := self._SYSTEM.search(message):
            self._system(number, stamp, match["name"], int(match["pid"]) if match["pid"] else None)
        elif match := self._SYS_EVENT.search(message):
            self._system(number, stamp, match["name"], int(match["pid"]), match["why"] == "MEMCG")
        elif self._EVICTED.search(message):
            said = "the kubelet evicted the pod because its node ran low on memory"
            self.add("killed-unknown", number, stamp, said, 0.7, details={"by": "kubelet", "why": "evicted"})
        elif self._CODE.search(message) and not self.last("oom-kill-memcg"):
            if (last := self.last("killed-unknown")) and number - last.line < 20:
                return
            said = "exit code 137: somebody sent SIGKILL; this line does not say who"
            self.add("killed-unknown", number, stamp, said, 0.5, details={"by": "exit-code"})
        elif self._FINE.search(message):
            pass  # written beside every container, dead or alive

    def _system(
        self, number: int, stamp: Stamped, name: str | None, pid: int | None, limit: bool = False
    ) -> None:
        if pid is None:  # before Kubernetes 1.16 the event names nobody
            said = "the kubelet saw the kernel's OOM killer at work: the node was out of memory"
            self.add("oom-kill-global", number, stamp, said, 0.7, details={"by": "kubelet"})
            return
        cause, why = (
            ("oom-kill-memcg", "it was at its limit")
            if limit
            else ("oom-kill-global", "the node was out of memory")
        )
        age = self._AGE.search(stamp.message)
        details = {"by": "kubelet", **({"age": age["age"]} if age else {})}
        said = f"the kubelet saw the kernel kill {name} (pid {pid}): {why}"
        self.add(cause, number, stamp, said, 0.8, Sizes(pid, name), details=details)

    def finish(self) -> list[Finding]:
        """`kubectl get events` sorts by no time: of several kills the youngest is the one to tell of."""
        ages = [_seconds(each.details["age"]) for each in self.found if "age" in each.details]
        return [
            replace(each, strength=0.75)
            if "age" in each.details and _seconds(each.details["age"]) > min(ages)
            else each
            for each in self.found
        ]


def _seconds(age: str) -> int:
    """ "2d3h", "53m": as kubectl prints ages."""
    return sum(int(count) * _AGES[unit] for count, unit in re.findall(r"(\d+)([dhms])", age))
