"""Puts a job under a limit, by the best backend this machine lets us take, and says why not a better one."""

from __future__ import annotations

import os

from oomproof.machine import cgroups
from oomproof.records import asdict, dataclass, field
from oomproof.units import format_size

USER_SCOPE, SYSTEM_SCOPE = "systemd user scope", "systemd scope"
AS_ASKED = "--watch-only"
CGROUP_V2, CGROUP_V1, WATCH = "cgroup v2", "cgroup v1", "oomproof"


@dataclass
class LimitBackend:
    """Where the job lives. Paths are absolute; the keeper joins, counts and removes by them."""

    name: str
    limit: int | None = None
    version: int = 0
    memory: str | None = None  # directory with the memory controller's files
    procs: str | None = None  # directory whose cgroup.procs lists the job
    kill: str | None = None  # cgroup.kill, where the kernel has it
    freezer: str | None = None  # cgroup.freeze (v2) or freezer.state (v1); None: by signals
    reclaim: str | None = None  # memory.reclaim: pushes a paused job out to swap
    join: list[str] = field(default_factory=list)  # cgroup.procs files the job writes itself into
    remove: list[str] = field(default_factory=list)  # directories to remove at the end
    inode: int | None = None
    note: str = ""  # what it depends on (a user scope without linger)
    why_not_better: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def counters(self, proc: str = "/proc") -> list[list[str]]:
        """What the keeper reads at the start and at the death, as [name, path, key]."""
        wanted = [["vmstat_oom_kill", f"{proc}/vmstat", "oom_kill"]]
        if self.memory and self.version == 2:
            wanted += [
                ["memcg_oom_kill", f"{self.memory}/memory.events", "oom_kill"],
                ["memcg_oom", f"{self.memory}/memory.events", "oom"],
                ["memcg_peak", f"{self.memory}/memory.peak", ""],
                ["memcg_active_file", f"{self.memory}/memory.stat", "active_file"],
                ["memcg_inactive_file", f"{self.memory}/memory.stat", "inactive_file"],
                ["oomd_kill", self.memory, "xattr:user.oomd_kill"],
            ]
        elif self.memory:
            wanted += [
                ["memcg_oom_kill", f"{self.memory}/memory.oom_control", "oom_kill"],
                ["memcg_failcnt", f"{self.memory}/memory.failcnt", ""],
                ["memcg_peak", f"{self.memory}/memory.max_usage_in_bytes", ""],
                ["memcg_active_file", f"{self.memory}/memory.stat", "total_active_file"],
                ["memcg_inactive_file", f"{self.memory}/memory.stat", "total_inactive_file"],
            ]
        return wanted

    def sentence(self, by_user: bool, verbosity: int = 0) -> str:
        """One line for the user: which backend enforces the limit; when verbose, why none better; when quiet, what it depends on."""
        if verbosity < 0:
            return "" if self.note == AS_ASKED else self.note
        if self.name == WATCH and self.note == AS_ASKED:
            return "--watch-only: recorded and warned about, never limited or ended"
        if self.name == WATCH:
            text = "limit enforced by oomproof, not the kernel"
        elif by_user:
            text = f"limit {format_size(self.limit)} enforced by the kernel ({self.name})"
        else:
            why = ", so that the machine keeps its floor" if verbosity > 0 else ""
            text = f"no limit set; capped at {format_size(self.limit)} by the kernel ({self.name}){why}"
        if self.note:
            text += f"; {self.note}"
        if self.why_not_better and verbosity > 0:
            text += f" (no better: {'; '.join(self.why_not_better)})"
        return text


def scope_command(unit: str, user_manager: bool) -> list[str]:
    """Starts the rest of the command line in a scope of its own, whose cgroup we may shape (Delegate)."""
    return [
        "systemd-run",
        *(["--user"] if user_manager else []),
        "--scope",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        "--property=Delegate=yes",
        "--property=OOMPolicy=continue",
        f"--description=oomproof run {unit}",
        "--",
    ]


def _succeeds(command: list[str], timeout: float) -> bool:
    import subprocess  # only on this path: the guard stays small

    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def user_manager_answers(timeout: float = 10.0) -> bool:
    """Whether a systemd user manager is there to ask (an ssh login has one, a bare `su` has not)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if not os.path.exists(f"{runtime}/systemd/private") and not os.path.exists(f"{runtime}/bus"):
        return False
    return _succeeds(["systemctl", "--user", "show", "--property=Version"], timeout)


def attach_to_scope(unit: str, below: str, pid: int, user_manager: bool, timeout: float = 10.0) -> bool:
    """Moves a process into a cgroup of a delegated scope, out of the login session that it was started in.

    Only systemd may: the cgroup above both is not ours to write. A process left in the session would keep the
    session open after the logout, or be killed with it where logind.conf has KillUserProcesses=yes.
    """
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    return _succeeds(
        ["busctl", *(["--user"] if user_manager else []), "call", *manager,
         "AttachProcessesToUnit", "ssau", f"{unit}.scope", below, "1", str(pid)],
        timeout,
    )  # fmt: skip


def _write(path: str, value: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError:
        return False
    return True


def shape_scope(name: str, scope: str, keeper: int, limit: int) -> LimitBackend | None:
    """Inside a delegated scope: the keeper to keeper/, the job to job/ with the limit. None when it cannot be."""
    keeper_dir, job_dir = f"{scope}/keeper", f"{scope}/job"
    try:
        os.mkdir(keeper_dir)
        os.mkdir(job_dir)
    except OSError:
        return None
    if not _write(f"{keeper_dir}/cgroup.procs", str(keeper)) or not _write(
        f"{scope}/cgroup.subtree_control", "+memory"
    ):
        return None
    # systemd removes the scope itself once it is empty
    return _limited_v2(name, job_dir, limit, remove=[job_dir])


def _limited_v2(name: str, directory: str, limit: int, remove: list[str]) -> LimitBackend | None:
    if not _write(f"{directory}/memory.max", str(limit)):
        return None
    # one death is the whole job's: half a training is worth nothing
    _write(f"{directory}/memory.oom.group", "1")
    return LimitBackend(
        name,
        limit=limit,
        version=2,
        memory=directory,
        procs=directory,
        kill=_if_there(f"{directory}/cgroup.kill"),
        freezer=_if_there(f"{directory}/cgroup.freeze"),
        reclaim=_if_there(f"{directory}/memory.reclaim"),
        join=[f"{directory}/cgroup.procs"],
        remove=remove,
        inode=os.stat(directory).st_ino,
    )


def _if_there(path: str) -> str | None:
    return path if os.path.exists(path) else None


def make_v2(name: str, limit: int, proc: str = "/proc") -> tuple[LimitBackend | None, str]:
    """A cgroup of our own beside or above our present one, where we may write and memory is handed down."""
    own = cgroups.own_directory("", proc=proc)
    mount = cgroups.mounts(proc).get("")
    if own is None or mount is None:
        return None, "no cgroup v2 is mounted"
    directory = own
    while True:
        try:
            with open(f"{directory}/cgroup.subtree_control") as file:
                hands_down = "memory" in file.read().split()
        except OSError:
            hands_down = False
        if hands_down and os.access(f"{directory}/cgroup.procs", os.W_OK):
            made = f"{directory}/oomproof-{name}"
            try:
                os.mkdir(made)
            except OSError as error:
                return None, f"{directory} is not ours to write ({error.strerror})"
            backend = _limited_v2(CGROUP_V2, made, limit, [made])
            if backend is not None:
                return backend, ""
            os.rmdir(made)
        if directory == mount[0] or len(directory) <= len(mount[0]):
            return None, "no cgroup v2 with the memory controller may be written"
        directory = os.path.dirname(directory)


def make_v1(name: str, limit: int, proc: str = "/proc") -> tuple[LimitBackend | None, str]:
    """The v1 memory controller, plus a cgroup of the unified mount: kill and freeze work there without controllers."""
    own = cgroups.own_directory("memory", proc=proc)
    if own is None:
        return None, "no cgroup v1 memory controller"
    made = f"{own}/oomproof-{name}"
    try:
        os.mkdir(made)
    except OSError as error:
        return None, f"{own} is not ours to write ({error.strerror})"
    if not _write(f"{made}/memory.limit_in_bytes", str(limit)):
        os.rmdir(made)
        return None, "the memory limit could not be set"
    backend = LimitBackend(
        CGROUP_V1,
        limit=limit,
        version=1,
        memory=made,
        procs=made,
        join=[f"{made}/cgroup.procs"],
        remove=[made],
        inode=os.stat(made).st_ino,
    )
    beside = _make_beside(backend, "", name, proc)
    if beside is not None:
        backend.kill, backend.freezer = (
            _if_there(f"{beside}/cgroup.kill"),
            _if_there(f"{beside}/cgroup.freeze"),
        )
    if backend.freezer is None:  # no unified mount, or a kernel before 5.2
        beside = _make_beside(backend, "freezer", name, proc)
        backend.freezer = _if_there(f"{beside}/freezer.state") if beside is not None else None
    return backend, ""


def _make_beside(backend: LimitBackend, controller: str, name: str, proc: str) -> str | None:
    """A cgroup of another hierarchy for the same job; None where we may not make one."""
    own = cgroups.own_directory(controller, proc=proc)
    if own is None:
        return None
    made = f"{own}/oomproof-{name}"
    try:
        os.mkdir(made)
    except OSError:
        return None
    backend.join.append(f"{made}/cgroup.procs")
    backend.remove.append(made)
    return made
