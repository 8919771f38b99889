"""One job's cgroup: what it holds, who is in it, what its counters say. Version 1 and 2 behind one face."""

from __future__ import annotations

import os

from oomproof.records import dataclass


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What the job holds, in bytes. ``charged`` is what counts against a limit and reclaim cannot take.

    ``swap`` leaves out what has come back from there (the swap cache): those pages stand in ``anon`` already.
    """

    anon: int
    shmem: int
    file: int
    swap: int
    kernel: int
    charged: int

    @property
    def use(self) -> int:
        """The job's use in the design's sense: page cache is not use."""
        return self.anon + self.shmem + self.swap


def charge_doubt(charged: int, cache: int) -> int:
    """By how much a cgroup's peak, less page cache of another moment, may be above what the job held then."""
    return max(4 << 20, charged // 50 + cache // 8)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _pread(fd: int | None, size: int = 8192) -> bytes:
    if fd is None:
        return b""
    try:
        return os.pread(fd, size, 0)
    except OSError:  # ENODEV: the cgroup was removed
        return b""


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:  # empty (vanished) or "max"
        return 0


def stat_field(text: bytes, name: bytes) -> int:
    """The number behind ``name`` in "key value" lines."""
    at = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if at == 0 and not text.startswith(name + b" "):
        return 0
    at += len(name) + 1
    end = text.find(b"\n", at)
    return _number(text[at : end if end > 0 else None])


def read_pids(*procs_files: str) -> list[int]:
    """Pids in the given cgroup.procs files; a vanished cgroup has none."""
    pids: list[int] = []
    for path in procs_files:
        try:
            with open(path, "rb") as file:
                pids.extend(int(line) for line in file.read().split())
        except OSError:
            continue
    return [pid for pid in pids if pid > 0]  # 0: a process outside our pid namespace


def all_procs_files(directory: str) -> list[str]:
    """cgroup.procs of the directory and of everything below it: a job may make cgroups of its own."""
    try:
        if os.stat(directory).st_nlink == 2:  # kernfs counts subfolders there: none, so no walk over 50 files
            return [f"{directory}/cgroup.procs"]
    except OSError:
        return []
    return [os.path.join(path, "cgroup.procs") for path, _, _ in os.walk(directory)]


def _kernel_v2(stat: bytes) -> int:
    """Kernel memory that reclaim cannot take. The sum stands in ``kernel`` since Linux 5.18; before, only its parts."""
    reclaimable = stat_field(stat, b"slab_reclaimable")
    whole = stat_field(stat, b"kernel")
    if whole:
        return max(0, whole - reclaimable)
    return sum(
        stat_field(stat, part) for part in (b"kernel_stack", b"pagetables", b"percpu", b"slab_unreclaimable")
    )


class Cgroup:
    """A job's memory cgroup. Its files are kept open: when memory is short, opening one may fail."""

    version: int
    _NAMES: tuple[str, str, str]  # what is charged; one more counter; the peak

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._stat: int | None = None
        self._charge: int | None = None
        self._counter: int | None = None
        self._peak: int | None = None
        self._open_files()

    def _open_files(self) -> None:
        """Those that are not open yet, the most needed first."""
        charge, counter, peak = (f"{self.directory}/{name}" for name in self._NAMES)
        if self._stat is None:
            self._stat = _open(f"{self.directory}/memory.stat")
        if self._stat is not None and self._charge is None:
            self._charge = _open(charge)
        if self._charge is not None and self._counter is None:
            self._counter, self._peak = _open(counter), _open(peak)

    def memory(self) -> JobMemory | None:
        if self._charge is None:  # no descriptor was left when we wanted one
            self._open_files()
        stat = _pread(self._stat)
        return self._memory(stat, _number(_pread(self._counter, 64))) if stat else None

    def _memory(self, stat: bytes, counter: int) -> JobMemory:
        raise NotImplementedError

    def _charged(self, reclaimable: int, held: int) -> int:
        """Without the file that tells, what is ``held`` by memory.stat: a little late, and never nothing."""
        return held if self._charge is None else max(0, _number(_pread(self._charge, 64)) - reclaimable)

    def charge(self) -> int | None:
        return _number(_pread(self._charge, 64)) or None

    def most_charged(self) -> int | None:
        return _number(_pread(self._peak, 64)) or None

    def pids(self) -> list[int]:
        return read_pids(*all_procs_files(self.directory))

    def close(self) -> None:
        for fd in (self._stat, self._charge, self._counter, self._peak):
            if fd is not None:
                os.close(fd)


class CgroupV2(Cgroup):
    version = 2
    _NAMES = ("memory.current", "memory.swap.current", "memory.peak")  # the last since Linux 5.19

    def _memory(self, stat: bytes, counter: int) -> JobMemory:
        cache = stat_field(stat, b"inactive_file") + stat_field(stat, b"active_file")
        anon, shmem, kernel = stat_field(stat, b"anon"), stat_field(stat, b"shmem"), _kernel_v2(stat)
        return JobMemory(
            anon=anon,
            shmem=shmem,
            file=cache,
            swap=max(0, counter - stat_field(stat, b"swapcached")),
            kernel=kernel,
            charged=self._charged(cache + stat_field(stat, b"slab_reclaimable"), anon + shmem + kernel),
        )


class CgroupV1(Cgroup):
    version = 1
    _NAMES = ("memory.usage_in_bytes", "memory.kmem.usage_in_bytes", "memory.max_usage_in_bytes")

    def _memory(self, stat: bytes, counter: int) -> JobMemory:
        cache = stat_field(stat, b"total_inactive_file") + stat_field(stat, b"total_active_file")
        anon, shmem = stat_field(stat, b"total_rss"), stat_field(stat, b"total_shmem")
        return JobMemory(
            anon=anon,
            shmem=shmem,
            file=cache,
            swap=max(0, stat_field(stat, b"total_swap") - stat_field(stat, b"total_swapcached")),
            kernel=counter,
            charged=self._charged(cache, anon + shmem + counter),
        )


def at(path: str) -> Cgroup:
    """The memory cgroup of that folder, of whichever version."""
    return CgroupV2(path) if os.path.exists(f"{path}/memory.current") else CgroupV1(path)


def memory_of(path: str) -> JobMemory | None:
    """Of one that is read once."""
    cgroup = at(path)
    held = cgroup.memory()
    cgroup.close()
    return held


def own_paths(pid: int | str = "self", proc: str = "/proc") -> dict[str, str]:
    """Controller → path from /proc/PID/cgroup; the unified hierarchy has the key ""."""
    paths: dict[str, str] = {}
    for line in lines_of(f"{proc}/{pid}/cgroup"):
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return paths


def memory_path(pid: int | str = "self", proc: str = "/proc") -> str | None:
    """The process's memory cgroup as the kernel's log ends its name; None for the top, of which everything is a part."""
    paths = own_paths(pid, proc)
    path = (paths.get("memory") or paths.get("") or "").rstrip("/")
    return path if path and ".." not in path.split("/") else None


def mounts(proc: str = "/proc") -> dict[str, tuple[str, str]]:
    """Controller ("" for unified) → (mount point, root of the mount inside the hierarchy)."""
    by_controller: dict[str, tuple[str, str]] = {}
    for line in lines_of(f"{proc}/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or not tail:
            continue
        root, point = fields[3:5]
        if tail[0] == "cgroup2":
            by_controller.setdefault("", (point, root))
        elif tail[0] == "cgroup":
            for option in tail[-1].split(","):
                by_controller.setdefault(option, (point, root))
    return by_controller


def inside(path: str, root: str) -> str:
    """The cgroup's path below the mount point: ``""`` is the mount point itself.

    In a container without its own cgroup namespace the mount shows only a part of the tree (``root``);
    a path that leads out of the namespace (``/../..``) cannot be followed, so the mount point stands for it.
    """
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return "" if path == "/" or ".." in path.split("/") else path.rstrip("/")


def own_directory(controller: str, pid: int | str = "self", proc: str = "/proc") -> str | None:
    """Where the process's cgroup of that hierarchy lies in the file system, or None."""
    path = own_paths(pid, proc).get(controller)
    mount = mounts(proc).get(controller)
    if path is None or mount is None or ".." in path.split("/"):  # outside our cgroup namespace
        return None
    point, root = mount
    directory = point + inside(path, root)
    return directory if os.path.isdir(directory) else None


def lines_of(path: str) -> list[str]:
    """A small file's lines; none of one that is not there."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


class ChargeAlarm:
    """Wakes a poll() as soon as a memory cgroup of version 1 is charged with more than a threshold. Version 2 has no such event."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.fd: int | None = None  # can be read once the charge went above
        self._above = 0

    def stands(self, above: int, slack: int) -> bool:
        """Whether it is set to that, or so near that setting it anew is not worth it."""
        return self.fd is not None and abs(above - self._above) <= slack

    def set(self, above: int) -> bool:
        """False where it cannot be had: no right, no descriptor left, a kernel without it."""
        self.clear()
        usage = control = event = None
        try:
            usage = os.open(f"{self._directory}/memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            control = os.open(f"{self._directory}/cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
            event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            os.write(control, f"{event} {usage} {above}".encode())
            self.fd, self._above, event = event, above, None
        except (OSError, AttributeError):  # macOS has no eventfd
            return False
        finally:
            for fd in (usage, control, event):
                if fd is not None:
                    os.close(fd)
        return True

    def clear(self) -> None:
        """The kernel forgets it with its descriptor."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
