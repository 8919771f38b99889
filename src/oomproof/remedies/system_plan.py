"""What to change on this machine for the jobs this user ran: facts and peaks in, a plan out. Nothing is read or done here."""

from __future__ import annotations

from collections.abc import Iterator

from oomproof.ledger.budget import default_margin
from oomproof.ledger.job_history import JobHistory
from oomproof.ledger.risks import add_swap_file, first_size, free_path
from oomproof.machine import swap
from oomproof.machine.kernel_settings import SYSRQ_SIGNALS
from oomproof.remedies.system_advice import advice, notes
from oomproof.remedies.system_facts import (
    DELEGATION_FILE,
    Change,
    Delegate,
    Fine,
    Plan,
    SwapFile,
    Sysctl,
    SystemFacts,
    sysctl_command,
)
from oomproof.units import GIB, MIB, format_size

DISK_KEPT = 10  # percent of the disk that a swap file leaves free
_BEFORE_ZRAM = 200
_STEP = 64 * MIB
_SWAP_FILES_WORK = ("ext4", "ext3", "xfs")


def plan(facts: SystemFacts, jobs: JobHistory) -> Plan:
    if facts.macos:
        return Plan(blocked="macOS makes its own swap and has no such settings")
    rules = (_swappiness, _overcommit, _victim, _sysrq, _delegation, advice)
    findings = [*_swap(facts, jobs), *(finding for rule in rules for finding in rule(facts))]
    return Plan(
        tuple(finding for finding in findings if isinstance(finding, Change)),
        tuple(finding for finding in findings if isinstance(finding, Fine)),
        notes(facts),
        _blocked(facts),
    )


def _blocked(facts: SystemFacts) -> str:
    if facts.host.place.container:
        return (
            "this is a container: swap, kernel settings and systemd are the host's; type the commands there"
        )
    if facts.host.place.wsl:
        return (
            "this is WSL2: swap is set in Windows' .wslconfig, and kernel settings are lost with each restart"
        )
    return ""


# --- swap ---------------------------------------------------------------------------------------------------


def _swap(facts: SystemFacts, jobs: JobHistory) -> Iterator[Change | Fine]:
    on_disk, _ = swap.disk(facts.host.swaps)
    ram = facts.host.here.total if facts.host.place.container else facts.host.memory.total
    wanted, why = swap_wanted(ram, on_disk, jobs)
    if not wanted:
        yield Fine("swap", why)
        return
    size, cut = _fitted(wanted, facts)
    if facts.host.place.wsl:
        line = f"in Windows' .wslconfig, under [wsl2]: swap={-(-(on_disk + wanted) // GIB)}GB; then: wsl.exe --shutdown"
        yield _swap_change(wanted, why, (line,), None)
    elif facts.host.place.container:
        yield _swap_change(
            wanted,
            why,
            (_on_host(facts, wanted), "docker run --memory-swap=-1 …   # lets the job use it"),
            None,
        )
    elif not size:
        yield _swap_change(wanted, f"{why}; {cut}", ("sudo du -xh / --max-depth=2 | sort -h | tail",), None)
    else:
        filesystem = facts.host.place.root_filesystem
        before = _BEFORE_ZRAM if _zram_is_useless(facts) else None
        step = SwapFile(size, before) if facts.systemd and filesystem in _SWAP_FILES_WORK else None
        yield _swap_change(
            size, f"{why}{'; ' + cut if cut else ''}", _swap_commands(facts, size, before), step
        )


def swap_wanted(ram: int, on_disk: int, jobs: JobHistory) -> tuple[int, str]:
    """(bytes to add, the sum in one sentence). Never more than RAM: beyond that a job lives on the disk."""
    margin = default_margin(ram)
    short = jobs.use + margin - ram - on_disk
    if jobs.use and short > 0:
        minus = f" − {format_size(on_disk)} of swap" if on_disk else ""
        total = (
            f"{job_sizes(jobs)} + margin {format_size(margin)} − {format_size(ram)} RAM{minus}"
            f" = {format_size(short)} short"
        )
        if short > ram:
            return _rounded(ram), f"{total}; more than RAM is never added: make the job smaller"
        return _rounded(short), total
    if not on_disk:
        return first_size(
            ram
        ), "no swap on a disk: a paused job cannot leave RAM, and it is seconds from fine to killed"
    enough = f"{format_size(on_disk)} of swap on disk"
    return 0, f"{enough}, enough for {job_sizes(jobs)}" if jobs.use else enough


def job_sizes(jobs: JobHistory) -> str:
    """``train 19.0 GiB + loader 20.0 GiB``."""
    return " + ".join(f"{job.name} {format_size(job.use)}".strip() for job in jobs.together)


def _rounded(size: int) -> int:
    step = GIB if size > GIB else _STEP
    return -(-size // step) * step


def _fitted(wanted: int, facts: SystemFacts) -> tuple[int, str]:
    """(size, what was cut and why): a tenth of the disk stays free."""
    if facts.disk is None:
        return wanted, ""
    spare = facts.disk.free - facts.disk.total * DISK_KEPT // 100
    if wanted <= spare:
        return wanted, ""
    step = GIB if spare > GIB else _STEP
    size = max(0, spare) // step * step
    return size, f"only {format_size(size)} fit: {DISK_KEPT} % of the disk stay free"


def _zram_is_useless(facts: SystemFacts) -> bool:
    """Its pages stay in RAM; where they do not compress, a disk is the better place for them."""
    sampled = facts.sampled.pages if facts.sampled else None
    zram = any(area.zram for area in facts.host.swaps)
    return zram and sampled is not None and sampled.share > 0.9


def _by_hand(facts: SystemFacts, size: int, priority: int | None = None) -> str:
    path = free_path(facts.host.swaps)
    return add_swap_file(path, size, facts.host.place.root_filesystem, priority)


def _on_host(facts: SystemFacts, size: int) -> str:
    """The container's own root file system says nothing about the host's."""
    return f"on the host: {add_swap_file(free_path(facts.host.swaps), size, 'ext4')}"


def _swap_commands(facts: SystemFacts, size: int, priority: int | None) -> tuple[str, ...]:
    filesystem = facts.host.place.root_filesystem
    # a subvolume with an active swap file cannot be in a snapshot: it gets one of its own
    if filesystem == "btrfs":
        path = "/swap_oomproof"
        return (f"sudo btrfs subvolume create {path}", add_swap_file(f"{path}/file", size, "btrfs", priority))
    if filesystem not in _SWAP_FILES_WORK:
        return (f"add a swap partition: a swap file does not work on {filesystem or 'this file system'}",)
    return (f"{_by_hand(facts, size, priority)}   # until the next boot",)


def _swap_change(size: int, why: str, commands: tuple[str, ...], step: SwapFile | None) -> Change:
    return Change(
        "swap",
        f"add {format_size(size)} of swap on disk",
        why,
        "idle pages and paused jobs move there, and what is in use has the RAM",
        "make memory fast: a job that uses all its pages in each step runs at the disk's speed",
        commands,
        step,
    )


# --- kernel settings ----------------------------------------------------------------------------------------


def _sysctl_change(name: str, setting: Sysctl, why: str, does: str, does_not: str) -> Change:
    title = f"set {setting.key} = {setting.value}"
    return Change(name, title, why, does, does_not, (sysctl_command(setting),), setting)


def _swappiness(facts: SystemFacts) -> Iterator[Change | Fine]:
    value = facts.kernel.swappiness
    if value is None:
        return
    if value:  # 1 is enough: of a paused job's 200 MiB it freed all, 0 freed nothing (bench/system.py)
        yield Fine("swappiness", f"swappiness {value}")
        return
    yield _sysctl_change(
        "swappiness",
        Sysctl("vm.swappiness", 60),
        "it is 0: no idle page moves to swap until RAM is full, and a paused job cannot be pushed out",
        "idle pages leave RAM early, and a paused job frees its RAM",
        "add memory, or slow a job whose pages are in use",
    )


def _overcommit(facts: SystemFacts) -> Iterator[Change | Fine]:
    now = facts.host.overcommit
    if now is None:
        return
    if now.mode == 0:
        yield Fine("overcommit", "overcommit 0")
        return
    why = (
        "it is 1: the kernel grants every request and protects nothing; the job is killed later"
        if now.mode == 1
        else f"it is 2: {format_size(max(0, now.limit - now.committed))} can still be committed; "
        "CUDA and fork fail while RAM is free"
    )
    yield _sysctl_change(
        "overcommit",
        Sysctl("vm.overcommit_memory", 0),
        why,
        "a request larger than RAM and swap together gets MemoryError at once",
        "limit what jobs really use: no value of it does, --limit does",
    )


def _victim(facts: SystemFacts) -> Iterator[Change | Fine]:
    value = facts.kernel.oom_kill_allocating_task
    if value == 0:
        yield Fine("victim", "oom_kill_allocating_task 0")
    elif value is not None:
        yield _sysctl_change(
            "victim",
            Sysctl("vm.oom_kill_allocating_task", 0),
            "it is 1: the kernel kills whoever asks for memory next, a shell or the desktop, not who has it",
            "the kernel kills the largest process again",
            "prevent a kill",
        )


def _sysrq(facts: SystemFacts) -> Iterator[Change | Fine]:
    may_kill, value = facts.kernel.sysrq_may_kill, facts.kernel.sysrq
    if may_kill:
        yield Fine("sysrq", "Alt+SysRq+f ends the largest process when the desktop hangs")
    elif may_kill is False and value is not None and not facts.host.place.container:
        yield _sysctl_change(
            "sysrq",
            Sysctl("kernel.sysrq", value | SYSRQ_SIGNALS),
            f"it is {value}: when the desktop hangs, a hard reboot is the only way out",
            "Alt+SysRq+f at the keyboard lets the kernel end the largest process",
            "choose well (the largest is your training), or ask who presses it: SysRq+e and +i end everything",
        )


def _delegation(facts: SystemFacts) -> Iterator[Change | Fine]:
    given = facts.delegation.has_memory
    if given:
        yield Fine("delegation", f"memory controller given to {facts.user.name}")
    if given is not False or not facts.systemd or facts.user.is_root:
        return
    folder = DELEGATION_FILE.rpartition("/")[0]
    write = f"printf '[Service]\\nDelegate=pids memory cpu\\n' | sudo tee {folder}/50-local.conf"
    yield Change(
        "delegation",
        "give the memory controller to every user's systemd manager",
        f"user@{facts.user.uid}.service has only {' '.join(facts.delegation.controllers or ()) or 'none'}",
        f"limits of {facts.user.name}'s runs are enforced by the kernel",
        "reach a manager that runs: log out of every session, and in again",
        (f"sudo mkdir -p {folder} && {write} && sudo systemctl daemon-reload",),
        Delegate(),
    )
