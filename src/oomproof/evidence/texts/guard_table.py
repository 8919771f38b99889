"""Guards and engines whose lines stand for themselves: one row per sentence, and the reader of such rows."""

from __future__ import annotations

import re
from typing import NamedTuple

from oomproof.evidence.texts.finding import GuardFacts, Sizes
from oomproof.evidence.texts.guard_reader import GuardReader
from oomproof.evidence.texts.line_prefixes import Stamped


class GuardRow(NamedTuple):
    """A sentence. The groups ``name``, ``pid``, ``anon_kb``, ``cgroup``, ``held``, ``limit_kb`` and ``why`` of ``pattern`` become
    the finding's fields; ``says`` may use all its groups, and {who}."""

    anchor: str  # stands in every such line
    pattern: re.Pattern[str]
    cause: str
    says: str
    strength: float
    example: str
    by: str = ""


_MEMORY_ON_THE_NODE = "the node was out of memory"
_RAY = re.compile(r"(?:\bname=(?P<name>[^,()]{1,64}), )?\b(?:pid|Worker PID)[=:]\s?(?P<pid>\d{1,10})")

SLURM = (
    GuardRow("oom_kill event", re.compile(r"Detected (?P<count>[1-9]\d*) oom_kill event(?:\(s\)|s)? in (?:StepId=|step )?(?P<step>[\w.+]*[\w+])"),
             "slurm-oom", "Slurm counted {count} OOM kill(s) in step {step}: the job was at its memory limit", 1.0,
             "slurmstepd: error: Detected 1 oom_kill event in StepId=4242.batch. Some of the step tasks have been OOM Killed."),
    GuardRow("oom-kill event", re.compile(r"Detected (?P<count>[1-9]\d*) oom-kill event(?:\(s\)|s)? in (?:StepId=|step )?(?P<step>[\w.+]*[\w+])"),
             "slurm-oom", "Slurm counted {count} OOM kill(s) in step {step}: the job was at its memory limit", 1.0,
             "slurmstepd: error: Detected 2 oom-kill event(s) in step 4242.batch cgroup."),
    GuardRow("Out Of Memory", re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<task>[\d,-]+): Out Of Memory"),
             "slurm-oom", "srun says task {task} on {node} ran out of memory", 0.95, "srun: error: node17: task 0: Out Of Memory"),
    GuardRow(" memory limit", re.compile(
        r"(?:[Jj]ob|[Ss]tep)(?: \d+(?:\.\w+)?)? exceeded (?:\w+ )?memory limit \(\d+ > (?P<limit_kb>\d+)\)|Exceeded (?:job|step) memory limit"),
             "slurm-oom", "Slurm killed the job: it exceeded its memory limit", 1.0,
             "slurmstepd: error: Job 4242 exceeded memory limit (8400000 > 8388608), being killed"),
    GuardRow("OUT_OF_ME", re.compile(r"(?:State: |JobState=)OUT_OF_ME|(?=.*\d)\sOUT_OF_ME(?:MORY|M|\+)?(?:\s*$|\s+\d|\s*\()|^\s*OUT_OF_ME(?:MORY|M|\+)?\s*$|^\S{1,40}\s+OUT_OF_ME(?:MORY|M|\+)\s*$"),
             "slurm-oom", "Slurm's accounting says OUT_OF_MEMORY", 0.95, "   JobState=OUT_OF_MEMORY Reason=OutOfMemory"),
    # the job may be FAILED while a step was out of memory
    GuardRow("DerivedExitCode=0:125", re.compile(r"\bDerivedExitCode=0:125\b"),
             "slurm-oom", "Slurm's exit code 0:125 of a step says that the step was out of memory", 0.85, "   DerivedExitCode=0:125"),
    GuardRow("CANCELLED AT", re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ (?P<why>DUE TO [A-Z ]+)"),
             "interrupted", "Slurm cancelled the job {why}", 0.9,
             "slurmstepd: error: *** JOB 4242 ON node17 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***", "slurm"),
    GuardRow("CANCELLED AT", re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+"),
             "interrupted", "Slurm cancelled the job", 0.9,
             "slurmstepd: error: *** STEP 4242.0 ON node17 CANCELLED AT 2024-05-01T10:00:00 ***", "slurm"),
)  # fmt: skip
RAY = (
    GuardRow("memory pressure (OOM)", re.compile(r"(?P<count>[1-9]\d*) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)"),
             "ray-oom", f"Ray's memory monitor killed {{count}} worker(s): {_MEMORY_ON_THE_NODE}", 1.0,
             "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons"),
    GuardRow("memory usage threshold", re.compile(
        r"Memory on the node .{0,400}? was (?P<used>[\d.]+)(?P<unit>GB|MB) / (?P<total>[\d.]+)(?:GB|MB) \([\d.]+\), which exceeds the memory usage threshold"),
             "ray-oom", "Ray killed a worker: the node used {used} of {total} {unit}", 1.0,
             "Memory on the node (IP: 10.0.0.1, ID: ab) where the task (task ID: cd, name=train, pid=4242, memory used=9GB) was running was 30.1GB / 31.0GB (0.97), which exceeds the memory usage threshold of 0.95."),
    GuardRow("OutOfMemoryError", re.compile(r"ray\.exceptions\.OutOfMemoryError|\bRayOutOfMemoryError\b"),
             "ray-oom", "Ray killed a task because its node ran low on memory", 1.0,
             "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    GuardRow("how to address the out of memory issue", re.compile(r"Refer to the documentation on how to address the out of memory issue"),
             "ray-oom", "Ray's memory monitor tells what to do after it has killed a worker", 0.9,
             "(raylet) Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html."),
    GuardRow("running low on memory", re.compile(r"(?:Task|Actor|worker)\b.{0,80} killed due to the node running low on memory"),
             "ray-oom", "Ray killed a task because its node ran low on memory", 1.0,
             "Task was killed due to the node running low on memory."),
)  # fmt: skip
OOMD = (
    GuardRow("oomd kill: ", re.compile(
        r"oomd kill: [\d.]+ [\d.]+ [\d.]+ (?P<cgroup>\S{1,512})\s+(?P<held>\d+)\b(?!.{0,300}(?:\(dry\)|(?i:dry[- ]?run)))"),
             "oomd", "oomd killed the cgroup {cgroup} under memory pressure", 1.0,
             "oomd kill: 45.22 30.10 11.02 system.slice/train.service 8589934592 ruleset:[protect] detectorgroup:[x]"),
)  # fmt: skip
OTHER_KERNELS = (
    GuardRow("send sigkill to ", re.compile(r"\bsend sigkill to (?P<pid>\d{1,10}) \((?P<name>.{1,128}?)\), adj -?\d+, size \d"),
             "oom-kill-global", "Android's low-memory killer ended {who}: the device ran short of memory", 0.85,
             "send sigkill to 4242 (train), adj 8, size 9000"),
    GuardRow("lowmemorykiller", re.compile(
        r"lowmemorykiller\s*(?:\(\s*\d+\))?: Kill(?:ing)? '(?P<name>.{1,128}?)' \((?P<pid>\d{1,10})\)(?:.{0,200}? (?P<anon_kb>\d{1,12})kB anon(?:ymous)? rss\b)?"),
             "oom-kill-global", "Android's low-memory killer ended {who}: the device ran short of memory", 0.85,
             "lowmemorykiller: Killing 'train' (4242), adj 900,"),
    GuardRow("lmkd", re.compile(
        r"lmkd\s*(?:\(\s*\d+\))?: Kill(?:ing)? '(?P<name>.{1,128}?)' \((?P<pid>\d{1,10})\)(?:.{0,200}? (?P<anon_kb>\d{1,12})kB anon(?:ymous)? rss\b)?"),
             "oom-kill-global", "Android's low-memory killer ended {who}: the device ran short of memory", 0.85,
             "lmkd: Kill 'train' (4242), uid 10, oom_score_adj 900 to free 90kB rss"),
    GuardRow("memory.oom.group set", re.compile(r"Tasks in (?P<cgroup>\S{1,512}) are going to be killed due to memory\.oom\.group set"),
             "oom-kill-memcg", "the kernel killed all processes of {cgroup} together (memory.oom.group)", 0.9,
             "Tasks in /kubepods/pod1 are going to be killed due to memory.oom.group set"),
    GuardRow("killed: ", re.compile(
        r"\bpid (?P<pid>\d{1,10}) \((?P<name>.{1,64}?)\),(?: jid \d+,)? uid -?\d+,?(?: was)? killed: "
        r"(?P<why>out of swap(?: space)?|failed to reclaim memory|a thread waited too long to allocate a page)"),
             "oom-kill-global", "FreeBSD's kernel killed {who}: {why}", 0.95,
             "pid 4242 (python3), jid 0, uid 1001, was killed: failed to reclaim memory", "freebsd"),
)  # fmt: skip
TABLES = (SLURM, RAY, OOMD, OTHER_KERNELS)
_SAME_DEATH = {"slurm-oom": 50, "ray-oom": 30}  # lines within which a guard speaks of one death again


class TableReader(GuardReader):
    """The rows of one guard: of several that fit a line, the first counts."""

    def __init__(self, source: str, rows: tuple[GuardRow, ...]) -> None:
        super().__init__(source)
        self.rows = rows
        self.anchors = tuple(row.anchor for row in rows)

    def feed(self, number: int, stamp: Stamped) -> None:
        message = f"{stamp.tag}: {stamp.message}" if stamp.tag else stamp.message
        for row in self.rows:
            if row.anchor in message and (match := row.pattern.search(message)):
                self._found(number, stamp, row, match.groupdict())
                return

    def _found(self, number: int, stamp: Stamped, row: GuardRow, groups: dict[str, str | None]) -> None:
        if row.cause == "ray-oom" and (whose := _RAY.search(stamp.message)):
            groups |= whose.groupdict()

        def count(key: str, unit: int = 1) -> int | None:
            told = groups.get(key)
            return int(told) * unit if told else None

        pid, name, why = count("pid"), groups.get("name"), (groups.get("why") or "").strip()
        why = why.lower() if why.isupper() else why
        victim = Sizes(pid, name, anon_rss=count("anon_kb", 1024)) if pid is not None else None
        last = self.last(row.cause)
        if last is not None and number - last.line < _SAME_DEATH.get(row.cause, 0):
            if last.victim is None and victim is not None:
                self.amend(victim=victim)
            return
        says = row.says.format_map({**groups, "why": why, "who": f"{name} (pid {pid})"})
        facts = GuardFacts(row.by, why=why or None, held=count("held"))
        self.add(
            row.cause, number, stamp, says, row.strength, victim, groups.get("cgroup"), count("limit_kb", 1024), facts
        )  # fmt: skip
