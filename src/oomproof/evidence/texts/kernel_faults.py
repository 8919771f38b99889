"""Single kernel lines that tell of a fault or of trouble that is no OOM kill: segfault, GPF, Xid, panic, notices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

# whoever shows the line to others may have left the pid out: nbody[...], nbody[PID]
_NAME = r"(?P<name>[^\[\]:,()][^\[\]]{0,62}|[^\s\[\]])\[(?:(?P<pid>\d{1,10})|\.{2,3}|…|[xX*#]{1,8}|<?(?:pid|PID)>?)\]"
_WHERE = re.compile(r"error:? ?\d+ in (?P<library>[^\[\s]{1,256})")
_SEGFAULT = re.compile(_NAME + r":? segfault (?:\(11\) )?at (?P<address>\(null\)|(?:0x)?[0-9a-fA-F]{1,16})\b")
# arm64, riscv, powerpc, s390 say the signal's number
_UNHANDLED = re.compile(
    _NAME + r": (?:unhandled (?:[\w ]{0,48}?\((?P<arm>7|11)\)|signal (?P<number>\d{1,2}))"
    r"|bus error \((?P<bus>7)\)|(?P<trap>trap) \(5\)|illegal instruction \((?P<ill>4)\))"
)
_UNEXPECTED = re.compile(  # print-fatal-signals
    r"(?P<name>[^\s\[\]:/][^\[\]:/]{0,62}?)[\[/](?P<pid>\d{1,10})\]?: potentially unexpected fatal signal (?P<number>\d{1,2})\b"
)
_UNHANDLED_ARM = re.compile(r"^(?P<name>[^\s:\[\]]{1,16}): unhandled page fault \((?P<number>7|11)\) at ")
_USER_FAULT = re.compile(
    r"User process fault: interruption code (?:0x)?[0-9A-Fa-f]{2,8}\b(?:.{0,40}? in (?P<library>[^\[\s]{1,256})\[)?"
)
_SENDING = re.compile(r"sending SIGSEGV to (?P<name>\S{1,64}) for invalid")  # mips, alpha
_TRAPS = re.compile(
    r"(?:traps: )?"
    + _NAME
    + r":? (?:trap )?(?P<what>general protection(?: fault)?|invalid opcode|int3|divide error"
    r"|stack segment|alignment check|bounds|overflow)[ :,]{1,2}(?:r?ip|sp|fault)"
)
# Linux 2.4, and the page faults of early 2.6: no sizes, a pid on arm and powerpc only
_VM_KILLING = re.compile(r"\bVM: killing process (?P<name>\S.{0,63}?)(?: ?\((?P<pid>\d{1,10})\)\.?)?$")
_KERNEL_GPF = re.compile(
    r"\bgeneral protection fault(?:, (?:probably|maybe) for [\w -]{0,40}address [0-9a-fx]+)?: [0-9a-f]{4} \["
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[^)]{1,32})\):? (?P<xid>\d{1,4})(?:, (?P<rest>.*))?")
_XID_PID = re.compile(r"\bpid='?(?P<pid>\d{1,10})")
_XID_NAME = re.compile(r"\bname=(?P<name>[^,<][^,]{0,63})")  # not <unknown>
_OFF_THE_BUS = re.compile(r"NVRM: .{0,200}fallen off the bus|GPU .{0,60}has fallen off the bus")
_AUDIT = re.compile(
    r'type=(?:1701|ANOM_ABEND)\b.{0,200}? pid=(?P<pid>\d+) comm="?(?P<name>[^"\s]{1,64})"?.{0,300}? sig=(?P<sig>\d+)'
)
_POISON = re.compile(
    r"(?:Memory failure: 0x[0-9a-f]+: |MCE 0x[0-9a-f]+: )?(?:Killing|Sending SIGBUS to) "
    r"(?P<name>.{1,64}):(?P<pid>\d+) due to hardware memory corruption"
)
_PANIC = re.compile(r"Kernel panic - not syncing:? (?P<why>.{1,200})")
_PANIC_MEMORY = re.compile(r"[Oo]ut of memory|panic_on_oom|deadlocked on memory", re.IGNORECASE)
_OOPS = re.compile(
    r"BUG: (?:unable to handle (?:kernel )?\w+|kernel NULL pointer)|Oops: [0-9a-f]{4}|kernel BUG at "
)
_COMM = re.compile(
    r"(?:P(?:ID|id): (?P<pid>\d+),? [Cc]omm: (?P<name>.{1,16}?)(?: (?:Tainted|Not tainted|Kdump)|$)|Process (?P<old>.{1,16}) \(pid: (?P<old_pid>\d+),)"
)

_NOTICES = (
    ("hung-task", re.compile(r"task (?P<name>.{1,64}):(?P<pid>\d+) blocked (?:on \w+ )?for more than \d+ seconds"),
     "a task waited too long for a disk or a lock; nothing was killed"),
    ("page-allocation-failure", re.compile(r"(?P<name>.{1,64}?): page allocation (?:failure|stalls)"),
     "one allocation inside the kernel failed; nothing was killed"),
    ("soft-lockup", re.compile(r"soft lockup - CPU#?\d+ stuck for \d+s!(?: \[(?P<name>.{1,64}):(?P<pid>\d+)\])?"),
     "a CPU did not schedule for a while; nothing was killed"),
    ("hard-lockup", re.compile(r"(?:hard LOCKUP|NMI watchdog: Watchdog detected hard)"),
     "a CPU took no interrupts for a while"),
    ("rcu-stall", re.compile(r"rcu\w*(?:: INFO:| detected| self-detected).{0,40}stall|detected stalls? on CPU"),
     "a CPU was stuck inside the kernel; nothing was killed"),
    ("machine-check", re.compile(r"\[Hardware Error\]|Machine check events logged|Memory failure: 0x[0-9a-f]+: recovery"),
     "the hardware reported an error; no memory ran short"),
    ("gpu-page-fault", re.compile(r"amdgpu.{0,60} page fault \(src_id|\[drm\].{0,40}GPU (?:HANG|reset)"),
     "the GPU's own memory management faulted"),
)  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class Fault:
    """What one line says; ``KernelParser`` adds where it stands."""

    cause: str
    says: str
    strength: float
    pid: int | None = None
    name: str | None = None
    details: dict[str, str] = field(default_factory=dict)


def read_fault(message: str) -> Fault | None:
    """The fault a kernel line tells of, if any. Order: the program's own faults, then the machine's."""
    message = message.strip().removeprefix("traps: ")
    if "segfault" in message and (match := _SEGFAULT.search(message)):
        return _segfault(message, match)
    if ("unhandled" in message or "(" in message) and (match := _UNHANDLED.search(message)):
        return _unhandled(match)
    if "potentially" in message and (match := _UNEXPECTED.search(message)):
        return _signal(int(match["number"]), match["name"].strip(), _pid(match), 0.9)
    if match := _UNHANDLED_ARM.search(message):
        fault = _signal(int(match["number"]), match["name"], None, 0.9)
        return replace(fault, details={"named_later": "yes"})
    if match := _TRAPS.search(message):
        return _trap(message, match)
    if match := _VM_KILLING.search(message):
        name, pid = match["name"].strip(), _pid(match)
        said = f"the kernel ran out of memory and killed {_who(name, pid)}"
        return Fault("oom-kill-global", said, 0.9, pid, name)
    if _KERNEL_GPF.search(message):
        return Fault(
            "gpf", "the kernel itself hit a general protection fault", 0.7, details={"kernel": "yes"}
        )
    if "Xid" in message and (match := _XID.search(message)):
        return _xid(match)
    if _OFF_THE_BUS.search(message):  # some drivers say it without a number
        return Fault(
            "xid", "the NVIDIA driver lost the GPU: it has fallen off the bus", 0.9, details={"xid": "79"}
        )
    if "sig=" in message and (match := _AUDIT.search(message)):
        return _audit(match)
    if match := _POISON.search(message):
        name, pid = match["name"].strip(), int(match["pid"])
        said = f"{name} (pid {pid}) was killed with a bus error because of faulty memory hardware"
        return Fault("bus-error", said, 0.9, pid, name)
    if match := _USER_FAULT.search(message):
        library = match["library"]
        details = {"library": library} if library else {}
        said = f"a program faulted{' in ' + library if library else ''}"
        return Fault("segfault", said, 0.7, details={**details, "named_later": "yes"})
    if match := _SENDING.search(message):
        return Fault(
            "segfault", f"{match['name']} read or wrote an invalid address", 0.9, None, match["name"]
        )
    if match := _PANIC.search(message):
        return _panic(match["why"].rstrip("- []"))
    if match := _OOPS.search(message):
        return Fault(
            "other-error",
            f"the kernel itself failed: {message.strip()[:120]}",
            0.6,
            details={"kernel": "yes"},
        )
    return _notice(message)


def comm_of(message: str) -> tuple[int, str] | None:
    """Who was running when the kernel printed a stack: "CPU: 4 PID: 1 Comm: x Not tainted"."""
    match = _COMM.search(message)
    if match is None:
        return None
    return int(match["pid"] or match["old_pid"]), match["name"] or match["old"]


def _library(message: str) -> str | None:
    match = _WHERE.search(message)
    return match["library"] if match else None


def _segfault(message: str, match: re.Match[str]) -> Fault:
    name, pid, library = match["name"].strip(), _pid(match), _library(message)
    address = match["address"]
    null = address == "(null)" or int(address, 16) < 4096
    said = f"{_who(name, pid)} died of a segmentation fault{' in ' + library if library else ''}"
    said += ": it followed a null pointer" if null else ""
    details = {"address": address, "null": "yes" if null else "no"}
    if library:
        details["library"] = library
    return Fault("segfault", said, 1.0, pid, _short(name), details)


def _unhandled(match: re.Match[str]) -> Fault:
    name, pid = match["name"].strip(), _pid(match)
    number = int(match["arm"] or match["number"] or match["bus"] or match["ill"] or 5)
    return _signal(number, name, pid, 1.0)


def _pid(match: re.Match[str]) -> int | None:
    return int(match["pid"]) if match["pid"] else None


def _who(name: str, pid: int | None) -> str:
    return f"{name} (pid {pid})" if pid is not None else name


def _signal(number: int, name: str, pid: int | None, strength: float) -> Fault:
    cause, what = {
        11: ("segfault", "a segmentation fault"),
        7: ("bus-error", "a bus error"),
        6: ("abort", "its own abort()"),
    }.get(number, ("other-error", f"signal {number}"))
    return Fault(cause, f"{_who(name, pid)} died of {what}", strength, pid, _short(name))


def _trap(message: str, match: re.Match[str]) -> Fault:
    name, pid, what, library = match["name"].strip(), _pid(match), match["what"], _library(message)
    cause = "gpf" if what.startswith("general") else "other-error"
    details = {"trap": what, **({"library": library} if library else {})}
    said = f"{_who(name, pid)} died of a trap: {what}{' in ' + library if library else ''}"
    return Fault(cause, said, 1.0 if cause == "gpf" else 0.85, pid, _short(name), details)


def _xid(match: re.Match[str]) -> Fault:
    number, rest = int(match["xid"]), match["rest"] or ""
    pid, name = _XID_PID.search(rest), _XID_NAME.search(rest)
    meaning = XID_MEANING.get(number, "see NVIDIA's list of Xid errors")
    strength = 0.4 if number in _XID_NOTES else 0.6 if number in _XID_AFTERMATH else 0.95
    return Fault(
        "xid",
        f"the NVIDIA driver reported Xid {number} on {match['bus']}: {meaning}",
        strength,
        int(pid["pid"]) if pid else None,
        name["name"].strip() if name else None,
        {"xid": str(number), "bus": match["bus"]},
    )


def _audit(match: re.Match[str]) -> Fault | None:
    number = int(match["sig"])
    if number not in (4, 5, 6, 7, 8, 11):
        return None
    return _signal(number, match["name"], int(match["pid"]), 0.8)


def _panic(why: str) -> Fault:
    if _PANIC_MEMORY.search(why):
        said = "the machine ran out of memory and the kernel stopped itself instead of killing"
        return Fault("oom-kill-global", said, 0.9, details={"panic": why})
    return Fault(
        "other-error", f"the kernel stopped itself: {why}", 0.8, details={"panic": why, "kernel": "yes"}
    )


def _notice(message: str) -> Fault | None:
    for kind, pattern, said in _NOTICES:
        if match := pattern.search(message):
            named = {key: value.strip() for key, value in match.groupdict().items() if value}
            return Fault("not-a-crash", said, 0.2, details={"notice": kind, **named})
    return None


def _short(name: str | None) -> str | None:
    return name.strip()[:64] if name else None
