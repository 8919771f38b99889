"""Single kernel lines that tell of a fault or of trouble that is no OOM kill: a table, and how its rows are read."""

from __future__ import annotations

import re
from typing import NamedTuple

from oomproof.evidence.texts.finding import KernelFacts
from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """What one line says; ``KernelParser`` adds where it stands."""

    cause: str
    says: str
    strength: float
    pid: int | None = None
    name: str | None = None
    facts: KernelFacts = KernelFacts()  # frozen
    named_later: bool = False  # a line below says who ran: "Comm: python3"


class FaultRow(NamedTuple):
    """A kind of line. The groups ``name``, ``pid``, ``number`` (a signal's), ``address``, ``library``, ``xid``, ``bus`` and
    ``why`` of ``pattern`` become the finding's fields; ``says`` takes {who}, {inside}, {what}, {why}, {message} and {meaning}."""

    anchors: tuple[str, ...]  # one of them stands in every such line
    pattern: re.Pattern[str]
    cause: str  # "" where the signal's number gives it
    says: str
    strength: float
    example: str
    notice: str | None = None
    named_later: bool = False


# whoever shows the line to others may have left the pid out: nbody[...], nbody[PID]
_NAME = r"(?P<name>[^\[\]:,()][^\[\]]{0,62}|[^\s\[\]])\[(?:(?P<pid>\d{1,10})|\.{2,3}|…|[xX*#]{1,8}|<?(?:pid|PID)>?)\]"
_DIED = "{who} died of {what}"
_TRAP = "{who} died of a trap: {what}{inside}"

# Order: the program's own faults, then the machine's. The first row that fits wins.
FAULTS: tuple[FaultRow, ...] = (
    FaultRow(("segfault",), re.compile(_NAME + r":? segfault (?:\(11\) )?at (?P<address>\(null\)|(?:0x)?[0-9a-fA-F]{1,16})\b"),
             "segfault", "{who} died of a segmentation fault{inside}", 1.0,
             "python[4242]: segfault at 8 ip 00007f sp 00007f error 4 in libtorch_cpu.so[7f00+1000]"),
    # arm64, riscv, powerpc, s390 say the signal's number
    FaultRow(("unhandled ", " trap "), re.compile(
        _NAME + r": (?:unhandled (?:[\w ]{0,48}?\((?P<arm>7|11)\)|signal (?P<number>\d{1,2}))|bus error \((?P<bus_error>7)\)|trap \((?P<trap>5)\)|illegal instruction \((?P<ill>4)\))"),
             "", _DIED, 1.0, "python3[4242]: unhandled level 2 translation fault (11) at 0x00000010, esr 0x92000006"),
    # print-fatal-signals
    FaultRow(("potentially unexpected",), re.compile(
        r"(?P<name>[^\s\[\]:/][^\[\]:/]{0,62}?)[\[/](?P<pid>\d{1,10})\]?: potentially unexpected fatal signal (?P<number>\d{1,2})\b"),
             "", _DIED, 0.9, "python3[4242]: potentially unexpected fatal signal 7."),
    FaultRow(("general protection", "traps: ", " trap "), re.compile(
        _NAME + r":? (?:trap )?(?P<what>general protection(?: fault)?)[ :,]{1,2}(?:r?ip|sp|fault)"),
             "gpf", _TRAP, 1.0, "traps: python3[4242] general protection fault ip:7f12 sp:7ffd error:0 in libc.so.6[7f00+195000]"),
    FaultRow((" trap ",), re.compile(
        _NAME + r":? (?:trap )?(?P<what>invalid opcode|int3|divide error|stack segment|alignment check|bounds|overflow)[ :,]{1,2}(?:r?ip|sp|fault)"),
             "other-error", _TRAP, 0.85, "traps: python3[4242] trap invalid opcode ip:7f12 sp:7ffd error:0 in libtorch_cpu.so[7f00+1000]"),
    # page faults of Linux 2.4 and early 2.6: no sizes, a pid on arm and powerpc only
    FaultRow(("VM: killing process ",), re.compile(r"\bVM: killing process (?P<name>\S.{0,63}?)(?: ?\((?P<pid>\d{1,10})\)\.?)?$"),
             "oom-kill-global", "the kernel ran out of memory and killed {who}", 0.9, "VM: killing process httpd"),
    FaultRow(("general protection",), re.compile(
        r"\bgeneral protection fault(?:, (?:probably|maybe) for [\w -]{0,40}address [0-9a-fx]+)?: [0-9a-f]{4} \["),
             "gpf", "the kernel itself hit a general protection fault", 0.7, "general protection fault: 0000 [#1] SMP", named_later=True),
    FaultRow(("NVRM: Xid",), re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[^)]{1,32})\):? (?P<xid>\d{1,4})"
             r"(?=(?:.*?\bpid='?(?P<pid>\d{1,10}))?)(?=(?:.*?\bname=(?P<name>[^,<][^,]{0,63}))?)"),
             "xid", "the NVIDIA driver reported Xid {xid} on {bus}: {meaning}", 0.95,
             "NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python3, Ch 00000008, intr 10000000. MMU Fault"),
    # some drivers say it without a number
    FaultRow(("fallen off the bus",), re.compile(r"NVRM: .{0,200}(?P<off>fallen off the bus)|GPU .{0,60}has fallen off the bus"),
             "xid", "the NVIDIA driver lost the GPU: it has fallen off the bus", 0.9, "NVRM: GPU at 0000:3b:00.0 has fallen off the bus."),
    FaultRow(("type=1701", "ANOM_ABEND"), re.compile(
        r'type=(?:1701|ANOM_ABEND)\b.{0,200}? pid=(?P<pid>\d+) comm="?(?P<name>[^"\s]{1,64})"?.{0,300}? sig=(?P<number>[45678]|11)\b'),
             "", _DIED, 0.8, 'audit: type=1701 audit(1.2:3): auid=1000 uid=1000 ses=2 pid=4242 comm="python3" exe="/usr/bin/python3" sig=6 res=1'),
    FaultRow(("hardware memory corruption",), re.compile(
        r"(?:Memory failure: 0x[0-9a-f]+: )?(?:Killing|Sending SIGBUS to) (?P<name>.{1,64}):(?P<pid>\d+) due to hardware memory corruption"),
             "bus-error", "{who} was killed with a bus error because of faulty memory hardware", 0.9,
             "Memory failure: 0x12af3: Sending SIGBUS to python3:4242 due to hardware memory corruption"),
    FaultRow(("User process fault",), re.compile(  # s390
        r"User process fault: interruption code (?:0x)?[0-9A-Fa-f]{2,8}\b(?:.{0,40}? in (?P<library>[^\[\s]{1,256})\[)?"),
             "segfault", "a program faulted{inside}", 0.7, "User process fault: interruption code 003b ilc:3 in libc.so.6[3ff+1000]", named_later=True),
    FaultRow(("Kernel panic",), re.compile(
        r"Kernel panic - not syncing:? (?=.{0,200}(?i:out of memory|panic_on_oom|deadlocked on memory)).{1,200}"),
             "oom-kill-global", "the machine ran out of memory and the kernel stopped itself instead of killing", 0.9,
             "Kernel panic - not syncing: Out of memory: system-wide panic_on_oom is enabled"),
    FaultRow(("Kernel panic",), re.compile(r"Kernel panic - not syncing:? (?P<why>.{1,200})"),
             "other-error", "the kernel stopped itself: {why}", 0.8, "Kernel panic - not syncing: Fatal machine check"),
    FaultRow(("BUG: unable to handle", "BUG: kernel NULL", "Oops: ", "kernel BUG at"), re.compile(
        r"BUG: (?:unable to handle (?:kernel )?\w+|kernel NULL pointer)|Oops: [0-9a-f]{4}|kernel BUG at "),
             "other-error", "the kernel itself failed: {message}", 0.6, "BUG: kernel NULL pointer dereference, address: 0000000000000008", named_later=True),
    FaultRow(("blocked for more than",), re.compile(r"task .{1,64}:\d+ blocked (?:on \w+ )?for more than \d+ seconds"),
             "not-a-crash", "a task waited too long for a disk or a lock; nothing was killed", 0.2,
             "INFO: task python3:4242 blocked for more than 120 seconds.", "hung-task"),
    FaultRow(("page allocation ",), re.compile(r".{1,64}?: page allocation (?:failure|stalls)"),
             "not-a-crash", "one allocation inside the kernel failed; nothing was killed", 0.2,
             "python3: page allocation failure: order:4, mode:0x40dc0", "page-allocation-failure"),
    FaultRow(("soft lockup",), re.compile(r"soft lockup - CPU#?\d+ stuck for \d+s!"),
             "not-a-crash", "a CPU did not schedule for a while; nothing was killed", 0.2,
             "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]", "soft-lockup"),
    FaultRow(("hard LOCKUP",), re.compile(r"hard LOCKUP|NMI watchdog: Watchdog detected hard"),
             "not-a-crash", "a CPU took no interrupts for a while", 0.2, "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard-lockup"),
    FaultRow(("detected stall",), re.compile(r"rcu\w*(?:: INFO:| detected| self-detected).{0,40}stall|detected stalls? on CPU"),
             "not-a-crash", "a CPU was stuck inside the kernel; nothing was killed", 0.2,
             "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu-stall"),
    FaultRow(("[Hardware Error]", "Machine check", "Memory failure:"), re.compile(
        r"\[Hardware Error\]|Machine check events logged|Memory failure: 0x[0-9a-f]+: recovery"),
             "not-a-crash", "the hardware reported an error; no memory ran short", 0.2,
             "mce: [Hardware Error]: Machine check events logged", "machine-check"),
    FaultRow(("] page fault (src_id",), re.compile(r"amdgpu.{0,60} page fault \(src_id|\[drm\].{0,40}GPU (?:HANG|reset)"),
             "not-a-crash", "the GPU's own memory management faulted", 0.2,
             "amdgpu 0000:03:00.0: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:3 pasid:32770)", "gpu-page-fault"),
)  # fmt: skip
ANCHORS = tuple(dict.fromkeys(anchor for row in FAULTS for anchor in row.anchors))

_SIGNALS = {
    11: ("segfault", "a segmentation fault"),
    7: ("bus-error", "a bus error"),
    6: ("abort", "its own abort()"),
}
_WHERE = re.compile(r"error:? ?\d+ in (?P<library>[^\[\s]{1,256})")
_COMM = re.compile(
    r"(?:P(?:ID|id): (?P<pid>\d+),? [Cc]omm: (?P<name>.{1,16}?)(?: (?:Tainted|Not tainted|Kdump)|$)|Process (?P<old>.{1,16}) \(pid: (?P<old_pid>\d+),)"
)
# NVIDIA's list of Xid errors: those that are notes about the card, not about a program's death
_XID_NOTES = {63, 64, 92, 93}
_XID_AFTERMATH = {43, 45}  # the driver cleans up after a program that already failed
XID_MEANING = {
    13: "graphics engine exception, as from an access out of bounds",
    31: "GPU memory page fault: an illegal address in a kernel of the program",
    32: "corrupted push buffer",
    43: "the GPU stopped processing for this program",
    45: "cleanup after an earlier error of the program",
    48: "double-bit ECC error: faulty GPU memory",
    61: "internal micro-controller halt",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
}


def read_fault(message: str) -> Fault | None:
    """The fault a kernel line tells of, if any."""
    message = message.strip().removeprefix("traps: ")
    for row in FAULTS:
        if match := row.pattern.search(message):
            return _fault(row, message, match.groupdict())
    return None


def _fault(row: FaultRow, message: str, groups: dict[str, str | None]) -> Fault:
    name = (groups.get("name") or "").strip()[:64] or None
    pid = int(groups["pid"] or 0) if groups.get("pid") else None
    number = next((int(told) for key in _NUMBERS if (told := groups.get(key))), 0)
    cause, what = _SIGNALS.get(number, ("other-error", f"signal {number}"))
    library = groups.get("library") or ((where := _WHERE.search(message)) and where["library"]) or None
    address = groups.get("address")
    null = address is not None and (address == "(null)" or int(address, 16) < 4096)
    xid = int(groups["xid"] or 0) if groups.get("xid") else 79 if groups.get("off") else None
    says = row.says.format(
        who=f"{name} (pid {pid})" if pid is not None else name,
        inside=f" in {library}" if library else "",
        what=groups.get("what") or what,
        why=(groups.get("why") or "").rstrip("- []"),
        message=message[:120],
        meaning=XID_MEANING.get(xid or 0, "see NVIDIA's list of Xid errors"),
        xid=xid,
        bus=groups.get("bus"),
    )
    strength = 0.4 if xid in _XID_NOTES else 0.6 if xid in _XID_AFTERMATH else row.strength
    facts = KernelFacts(library=library, null=null, xid=xid, bus=groups.get("bus"), notice=row.notice)
    says += ": it followed a null pointer" if null else ""
    return Fault(row.cause or cause, says, strength, pid, name, facts, row.named_later)


_NUMBERS = ("number", "arm", "bus_error", "trap", "ill")


def comm_of(message: str) -> tuple[int, str] | None:
    """Who was running when the kernel printed a stack: "CPU: 4 PID: 1 Comm: x Not tainted"."""
    match = _COMM.search(message)
    if match is None:
        return None
    return int(match["pid"] or match["old_pid"]), match["name"] or match["old"]
