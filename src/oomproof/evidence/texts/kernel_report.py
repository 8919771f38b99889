"""One OOM report of the kernel, Linux 2.6 to 6.x: its lines in any order in, one kill out."""

from __future__ import annotations

import re

from oomproof.causes import cause_of, kernel_kill
from oomproof.evidence.texts.finding import Finding, KernelFacts, MachineMemory, Sizes
from oomproof.evidence.texts.kernel_table import TaskTable, page_size
from oomproof.evidence.texts.line_prefixes import Stamped
from oomproof.evidence.texts.task_jobs import jobs_of
from oomproof.records import dataclass, field, replace
from oomproof.units import format_size

# a page that was translated and back says "Process stopped 4242 (python)"
_KILLED = re.compile(
    r"(?:[Kk]illed process|(?<=ut of memory: )Process (?:stopped|killed|terminated)) (?P<pid>\d{1,10})(?:,? ?UID:? ?\d+,)?[ ,]*"
)
_NAME_END = re.compile(r"\)[,. ]*(?:$|UID\b|(?:total-vm|vsz|anon-rss)\b)|\)[.,]? (?=\()")
_BROKEN_OFF = re.compile(
    r"(?:ut of [Mm]emory\b.{0,60}\b[Kk]illed|\b[Kk]illed process)(?: process)?(?: \d+)?$"
)
# a paste may have commas in it, or a screen's width of blanks
_SIZE = re.compile(r"\b(?P<key>total-vm|vsz|anon-rss|file-rss|shmem-rss): ?(?P<kb>\d[\d,]{0,25}) {0,400}kB")
_WHY = re.compile(
    r"(?P<memcg>Memory cgroup out of memory|Out of memory in UB)|(?P<cpuset>No available memory in cpuset)"
    r"|(?P<mempolicy>No available memory \(MPOL_BIND\))|(?P<all>Out of [Mm]emory)"
)
_ANNOUNCED = re.compile(r"[Kk]ill process (?P<pid>\d{1,10}) \((?P<name>.{0,64})\) score ")
_CONSTRAINT = re.compile(r"constraint=CONSTRAINT_(?P<constraint>\w+)")
# people who copy the line by hand put blanks behind its commas
_TASK = re.compile(r"\btask=(?P<name>.{0,64}), ?pid= ?(?P<pid>\d{1,10}) ?(?:, ?\w{1,12}=|$)")
_OOM_MEMCG = re.compile(r"oom_memcg=(?P<path>.+?)(?:, ?task_memcg=|, ?task=|$)")
_TASK_MEMCG = re.compile(r"task_memcg=(?P<path>.+?)(?:, ?task=|$)")
_TASK_IN = re.compile(r"Task in (?P<task>\S+) killed as a result of limit of (?P<limit>\S+)")
_USAGE = re.compile(r"\bmemory: usage (?P<usage>\d+)kB, limit (?P<limit>\d+)kB")
_STATS = re.compile(r"Memory cgroup stats for (?P<path>[^\s:]+(?::[^\s:]+)*?):?(?:\s|$)")
_INVOKED = re.compile(r"(?P<name>\S.{0,63}?) invoked oom-killer:(?: |$)(?:.*?\border=(?P<order>\d{1,2})\b)?")
_SENTENCE = re.compile(r"(?:\b[a-z]{2,12}[ ,.:]{1,2}){4}")
# Mem-Info: swap in kB, the rest in pages; zones repeat "free:4480kB" with a unit, which is left alone
_MACHINE = re.compile(
    r"(?P<swap>Free|Total) swap\s*[=:]\s*(?P<kb>\d{1,15})kB|(?P<pages>\d{1,15}) (?:pages (?:of )?(?P<of>RAM|reserved)|reserved pages)\b"
)
_COUNT = re.compile(
    r"\b(?P<key>free|active_anon|inactive_anon|isolated_anon|unevictable|mapped):(?P<pages>\d{1,15})(?![\dk])"
)
_REAPED = re.compile(
    r"oom_reaper: (?:reaped|unable to reap) (?:process|pid:) ?(?P<pid>\d+) \((?P<name>.{0,64}?)\)"
)

# the call trace of a kill; arm prints "oom_kill_process from out_of_memory+0x218/0x34c"
_TRACE = re.compile(
    r"\boom_kill_process(?:\.\w+)?(?:\+0x[0-9a-f]| from out_of_memory)|\bmem_cgroup_out_of_memory\+0x[0-9a-f]"
)

# before 3.13 the killer was called from where the page was charged
_CHARGE = re.compile(r"\b__mem_cgroup_try_charge\+0x")
_UNLIMITED = 1 << 60  # the kernel prints "no limit" as 9007199254740988kB
_TEXT = 600


@dataclass(slots=True)
class Kill:
    """One victim while its lines are still coming in."""

    line: int
    stamp: Stamped
    text: str
    sizes: Sizes
    why: str | None = None  # memcg, cpuset, mempolicy, all: the words before "Kill(ed) process"
    constraint: str | None = None
    oom_memcg: str | None = None
    task_memcg: str | None = None
    limit: int | None = None
    strength: float = 1.0
    more: str = ""  # a second line worth quoting
    pids: tuple[int, ...] = ()
    facts: KernelFacts = KernelFacts()  # frozen

    @property
    def cause(self) -> str:
        # 5.0 printed CONSTRAINT_NONE for cgroup kills and BPF policies print names of their own:
        # a cgroup named as the one that ran out settles it
        if self.why == "memcg" or self.oom_memcg or self.constraint == "MEMCG":
            return "oom-kill-memcg"
        if (named := kernel_kill(f"CONSTRAINT_{self.constraint}")) is not None:
            return named
        if self.why in ("cpuset", "mempolicy"):
            return f"oom-kill-{self.why}"
        return "oom-kill-global"

    def merge_constraint(self, other: Constraint) -> None:
        self.constraint = other.constraint or self.constraint
        self.oom_memcg = other.oom_memcg or self.oom_memcg
        self.task_memcg = other.task_memcg or self.task_memcg
        self.more = self.more or other.text
        if self.sizes.name is None and other.name and other.pid in (None, self.sizes.pid):
            self.sizes = replace(self.sizes, name=other.name)

    def finding(self, source: str) -> Finding:
        victim, cause = self.sizes, self.cause
        who = f"{victim.name or 'a process'}{f' (pid {victim.pid})' if victim.pid is not None else ''}"
        said = f"the kernel's OOM killer ended {who}: {cause_of(cause).reason}"
        if cause == "oom-kill-memcg" and self.limit is not None:
            said += f" of {format_size(self.limit)}"
        if victim.anon_rss is not None:
            said += f"; it held {format_size(victim.anon_rss + (victim.shmem_rss or 0))}"
            said += f", and {format_size(victim.file_rss)} of files" if victim.file_rss else ""
        elif self.facts.table_rss is not None:
            said += f"; by the task table it held {format_size(self.facts.table_rss)}"
        text = self.text
        if self.more and self.more not in text and len(text) + len(self.more) + 1 <= _TEXT:
            text = f"{self.more}\n{text}"
        constraint = f"CONSTRAINT_{self.constraint}" if self.constraint else None
        return Finding(
            cause, source, self.line, text[:_TEXT], said, self.strength, self.stamp.time, self.stamp.seconds, victim,
            cgroup=self.oom_memcg or (self.task_memcg if cause == "oom-kill-memcg" else None),
            limit=self.limit if cause == "oom-kill-memcg" else None,
            pids=self.pids or ((victim.pid,) if victim.pid is not None else ()),
            kernel=replace(self.facts, constraint=constraint, task_memcg=self.task_memcg),
        )  # fmt: skip


@dataclass(slots=True)
class Constraint:
    """The ``oom-kill:`` line (4.19 on), which names the victim before it is killed."""

    line: int
    stamp: Stamped
    text: str
    constraint: str | None
    pid: int | None
    name: str | None
    oom_memcg: str | None
    task_memcg: str | None


@dataclass(slots=True)
class Announcement:
    """ "Kill process N (x) score S or sacrifice child": before 5.1; the one killed may be its child."""

    line: int
    stamp: Stamped
    text: str
    why: str | None
    pid: int
    name: str


@dataclass(slots=True)
class Report:
    """What has been read of a report whose victim is not yet known."""

    invoked: tuple[int, Stamped, str] | None = None
    begun: tuple[int, Stamped, str] | None = None  # the first line that only an OOM report prints
    memcg: bool = False  # some line speaks of a memory cgroup
    table: TaskTable = field(default_factory=TaskTable)
    mem_info: dict[str, int] = field(default_factory=dict)  # "Free", "Total" swap in bytes; the rest in pages
    announced: Announcement | None = None
    task_in: tuple[str, str] | None = None
    limit: int | None = None
    limits: dict[str, int] = field(default_factory=dict)  # by cgroup
    heard: int = 0  # the line this report was last added to
    used: bool = False  # a kill took it; a storm's later kills may come without a report of their own

    def read(self, message: str) -> bool:
        """Any line of a report but those that name a victim; whether it was one."""
        if message.startswith("[") and (self.table.row(message) or self.table.begin(message)):
            return True
        if "total_vm" in message and self.table.begin(message):
            return True
        if "cgroup" in message or "memory: usage" in message or "Task in" in message:
            return self._cgroup(message)
        if "oom_kill_process" in message and _TRACE.search(message):
            return True
        if ("swap" in message or "pages" in message) and (match := _MACHINE.search(message)):
            key = match["swap"] or match["of"] or "reserved"
            self.mem_info[key] = int(match["kb"]) * 1024 if match["kb"] else int(match["pages"])
            return True
        counts = {match["key"]: int(match["pages"]) for match in _COUNT.finditer(message)}
        self.mem_info.update(counts)
        return bool(counts)

    def _machine(self, page: int) -> MachineMemory:
        info = self.mem_info
        ram = info["RAM"] - info.get("reserved", 0) if "RAM" in info else None
        return MachineMemory(
            ram * page if ram is not None and ram > 0 else None,
            info["free"] * page if "free" in info else None,
            info.get("Total"),
            info.get("Free"),
        )

    def _in_use(self, page: int) -> int | None:
        """Pages of programs, each once; of a cgroup all that it was charged for."""
        if "cgroup" in self.mem_info:
            return self.mem_info["cgroup"] // page
        keys = ("active_anon", "inactive_anon", "isolated_anon", "unevictable", "mapped")
        return sum(self.mem_info.get(key, 0) for key in keys) if "inactive_anon" in self.mem_info else None

    def _cgroup(self, message: str) -> bool:
        if match := _USAGE.search(message):
            self.memcg = True
            limit = int(match["limit"]) * 1024
            self.limit = limit if limit < _UNLIMITED else None
            self.mem_info["cgroup"] = int(match["usage"]) * 1024
            if self.task_in is not None and self.limit is not None:
                self._limit_of(self.task_in[1], self.limit)
        elif match := _STATS.search(message):
            self.memcg = True
            if self.limit is not None:
                self._limit_of(match["path"], self.limit)
        elif match := _TASK_IN.search(message):
            self.memcg = True
            self.task_in = (match["task"], match["limit"])
        elif "mem_cgroup_out_of_memory" in message or "mem_cgroup_oom" in message or _CHARGE.search(message):
            self.memcg = True  # the call trace of a cgroup's shortage
        else:
            return False
        return True

    def _limit_of(self, path: str, limit: int) -> None:
        if len(self.limits) < 64:
            self.limits.setdefault(path, limit)

    def complete(self, kill: Kill, constraint: Constraint | None) -> None:
        """Give a kill all that this report and its ``oom-kill:`` line know."""
        if constraint is not None:
            kill.merge_constraint(constraint)
        announced = self.announced
        if announced is not None:
            kill.why = kill.why or announced.why
            if announced.pid != kill.sizes.pid and kill.sizes.pid is not None:
                kill.pids = (kill.sizes.pid, announced.pid)
            kill.more = kill.more or announced.text
        if kill.why is None and kill.constraint is None:
            kill.why = "memcg" if self.memcg else None
            kill.strength = min(kill.strength, 0.95 if self.memcg or self.invoked else 0.85)
        if kill.cause == "oom-kill-memcg":
            if self.task_in is not None:
                kill.task_memcg = kill.task_memcg or self.task_in[0]
                kill.oom_memcg = kill.oom_memcg or self.task_in[1]
            known = self.limits.get(kill.oom_memcg) if kill.oom_memcg else None
            alone = len(self.limits) < 2 and not self.used
            kill.limit = known or (self.limit if alone else None)
        if not self.used or kill.sizes.pid in self.table.tasks:
            self._from_table(kill)

    def _from_table(self, kill: Kill) -> None:
        """What the table adds, kept apart from what the Killed line printed."""
        table = self.table
        if not table.tasks and not self.mem_info:
            return
        asked = _INVOKED.search(self.invoked[2]) if self.invoked is not None else None
        task = table.tasks.get(kill.sizes.pid) if kill.sizes.pid is not None else None
        if task is not None and kill.sizes.name is None and task.name:
            kill.sizes = replace(kill.sizes, name=task.name)
        size = page_size(task, kill.sizes.total_vm) if task else None
        page = size or 4096
        kill.facts = KernelFacts(
            jobs=jobs_of(
                table.tasks.values(), page, self._in_use(page), kill.sizes.pid, holds_one_job(kill.oom_memcg)
            ),
            machine=self._machine(page),
            asked_by=asked["name"] if asked else None,
            asked=page << int(asked["order"]) if asked and asked["order"] else None,
            table_rss=task.rss * page if task and task.rss is not None else None,
            page_size=size,
        )


def holds_one_job(cgroup: str | None) -> bool:
    """A limit's own cgroup: slices and sessions hold many jobs, a service, a scope or a container holds one."""
    name = (cgroup or "/").rpartition("/")[2]
    return (
        bool(name) and not name.endswith(".slice") and not name.startswith(("session-", "user@", "kubepods"))
    )


def why_of(text: str) -> str | None:
    match = _WHY.search(text)
    return match.lastgroup if match else None


def read_killed(line: int, stamp: Stamped, message: str) -> Kill | None:
    match = _KILLED.search(message)
    if match is None:
        return None
    rest = message[match.end() :]
    name = None
    if rest.startswith("("):
        end = _NAME_END.search(rest)
        cut = end.start() if end else rest.find(")")  # other words follow, as in OpenVZ
        name = rest[1:cut] if cut > 0 else rest[1:65].rstrip(".…") or None
    elif not rest.startswith(("total-vm", "vsz", "UID", "anon-rss")) and rest.strip():
        return None  # prose: "a killed process 12 times"
    sizes = {size["key"]: int(size["kb"].replace(",", "")) * 1024 for size in _SIZE.finditer(rest)}
    total = sizes.get("total-vm", sizes.get("vsz"))
    victim = Sizes(
        int(match["pid"]), name, total, sizes.get("anon-rss"), sizes.get("file-rss"), sizes.get("shmem-rss")
    )
    why = why_of(message[: match.start()])
    # "(": the text ends right there
    nameless = name is None and victim.total_vm is None and rest.strip() != "("
    if nameless and (why is None or (rest.strip() and victim.anon_rss is None)):
        return None
    return Kill(line, stamp, message[:_TEXT], victim, why)


def breaks_off(message: str) -> bool:
    """A Killed line that a mail program broke before it said whom."""
    return _BROKEN_OFF.search(message) is not None


def read_constraint(line: int, stamp: Stamped, message: str) -> Constraint | None:
    if "oom-kill:" not in message or not (match := _CONSTRAINT.search(message)):
        return None
    memcg, lived, task = _OOM_MEMCG.search(message), _TASK_MEMCG.search(message), _TASK.search(message)
    return Constraint(
        line,
        stamp,
        message[:_TEXT],
        match["constraint"],
        int(task["pid"]) if task else None,
        task["name"] if task else None,
        memcg["path"].rstrip(".…") if memcg else None,
        lived["path"].rstrip(".…") if lived else None,
    )


def read_announcement(line: int, stamp: Stamped, message: str) -> Announcement | None:
    match = _ANNOUNCED.search(message)
    if match is None:
        return None
    why = why_of(message[: match.start()])
    return Announcement(line, stamp, message[:_TEXT], why, int(match["pid"]), match["name"])


def only_of_a_report(message: str) -> bool:
    """A line that the kernel prints nowhere else, though it names no victim."""
    return "cgroup stats for" in message or "Task in" in message or _TRACE.search(message) is not None


def is_invoked(message: str) -> bool:
    """A manual's sentence may name the line: "you may get results like app invoked oom-killer: …"."""
    match = _INVOKED.search(message)
    return match is not None and _SENTENCE.search(message[: match.start("name") + 40]) is None


def read_reaped(message: str) -> tuple[int, str] | None:
    match = _REAPED.search(message)
    return (int(match["pid"]), match["name"]) if match else None
