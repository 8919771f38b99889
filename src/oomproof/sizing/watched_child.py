"""A command in a child whose writes nobody sees, inside a memory limit, looked at from outside: for who runs a script to learn
what it needs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from oomproof.leaf.proc_files import read_bytes
from oomproof.ledger import budget
from oomproof.machine import memory, processes
from oomproof.records import dataclass
from oomproof.runner import limit_backends
from oomproof.runner.attempt_files import remove_cgroups
from oomproof.sizing import private_files
from oomproof.sizing.child_start import started
from oomproof.sizing.virtual_gpu.step_limits import ASIDE, MAIN
from oomproof.units import format_size

HELD_BACK = "held back: "  # how that note begins; it differs from run to run
LOOK = 0.1  # seconds between looks at the child
_SHOWN, _WIDEST = 15, 600  # lines of a script's own error, and characters of each: logs print whole samples
# the words of Python's resolver and sockets, and of the Hugging Face hub
_NO_NETWORK = (
    "name resolution", "Name or service not known", "Network is unreachable", "No address associated", "getaddrinfo failed",
    "offline mode is enabled", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "couldn't connect to 'https://huggingface.co'",
    "doesn't exist on the Hugging Face Hub",  # evaluate, where it is told to be offline
)  # fmt: skip
# EOVERFLOW: the file's owner or group has no number in the user namespace
_NO_SUCH_OWNER = os.strerror(errno.EOVERFLOW)
NOT_STARTED = (
    "no Python of this command reads the PYTHONPATH it was given; start it without -I and -E, and set "
    "PYTHONPATH before oomproof, not in the command"
)


@dataclass
class Watched:
    """What the child and its children held on the host at most, in bytes."""

    status: int = 0
    earlier: int = 0  # the main process's, before the model's first pass
    earlier_workers: int = 0
    is_training: bool = False
    peak: int = 0
    main: int = 0
    workers: int = 0  # what is below the main one
    launcher: int = 0  # what is above it, or beside
    largest: int = 0  # of the workers
    shared: int = 0  # in /dev/shm
    shared_now: int = 0
    shared_before: int = 0  # there without the child, where it has none of its own
    over_limit: bool = False
    has_network: bool = False
    timed_out: bool = False
    limit: int = 0


def private(argv: Sequence[str], folder: str) -> list[str]:
    """The command with its writes held off; ``folder`` alone is real."""
    return [sys.executable, "-I", "-S", "-B", private_files.__file__, folder, *argv]


def cannot_be_private(status: int, folder: str) -> str:
    """Why its writes could not be held off, where that is so."""
    path = os.path.join(folder, "cannot")
    if status != private_files.CANNOT or not os.path.exists(path):
        return ""
    with contextlib.suppress(OSError), open(path, opener=regular_only) as file:
        return file.read()
    return ""


def regular_only(path: str, flags: int) -> int:
    """An ``opener`` for files in the child's folder, where the script may have put a link or a pipe in their place."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return handle


def usable() -> int:
    """What the child may hold: all but the machine's floor."""
    ram = memory.read()
    return max(1 << 30, ram.available - budget.default_floor(ram.total))


def enter(join: Sequence[str]) -> None:
    """In the child, before it is another program."""
    for processes_file in join:
        with contextlib.suppress(OSError), open(processes_file, "w") as file:
            file.write("0")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


@contextlib.contextmanager
def running(
    argv: Sequence[str], folder: str, environment: Mapping[str, str], allow_writes: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command, and what it may hold; ended with all its processes. What it prints is in ``folder``/output."""
    command = list(argv) if allow_writes else private(argv, folder)
    limit = usable()
    with (
        limited(limit) as join,
        open(os.path.join(folder, "output"), "wb") as file,
        started(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, preexec_fn=lambda: enter(join)
        ) as child,
    ):
        yield child, limit


def environment_for(folder: str, code: str, start: str, time_limit: float) -> dict[str, str]:
    """With a folder on PYTHONPATH that starts the module ``start`` of ours in every Python of the command; nothing goes out."""
    site = os.path.join(folder, "site")
    os.makedirs(site, exist_ok=True)
    shutil.copy(
        os.path.join(os.path.dirname(code), "virtual_gpu", "virtual_site.py"),
        os.path.join(site, "sitecustomize.py"),
    )
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": site + (os.pathsep + path if path else ""),
        "OOMPROOF_SIZE": folder, "OOMPROOF_SIZE_CODE": code, "OOMPROOF_SIZE_START": start,
        "OOMPROOF_SIZE_SECONDS": str(time_limit), "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


@contextlib.contextmanager
def limited(limit: int) -> Iterator[list[str]]:
    """A cgroup in which the kernel enforces it, where we may make one; the looks at the child do so besides."""
    name = f"size-{os.getpid()}"
    backend = limit_backends.make_v2(name, limit)[0] or limit_backends.make_v1(name, limit)[0]
    try:
        yield backend.join if backend is not None else []
    finally:
        # killed processes leave it a moment later
        remove_cgroups(backend.remove if backend is not None else [])


def held_back(folder: str) -> Iterator[str]:
    """What became of the files that it wrote."""
    path = os.path.join(folder, "written.json")
    if not os.path.exists(path):
        yield "the script's files were written and its network was on, as --allow-writes says"
    with contextlib.suppress(OSError, ValueError), open(path, opener=regular_only) as file:
        written = json.load(file)
        if written["count"]:
            files = "file" if written["count"] == 1 else "files"
            yield f"{HELD_BACK}{written['count']} {files} ({format_size(written['bytes'])}), such as {written['names'][0]}"


def is_started(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "started"))


def tell_looks(folder: str, looks: int) -> None:
    """To the child, which waits for them when it holds most."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "looks"), "w", opener=regular_only) as file:
        file.write(str(looks))


def script_processes(child: int, is_wrapped: bool) -> list[int]:
    """The command's first process: where its writes are held off, that is the first child of the namespace's first process."""
    if not is_wrapped:
        return [child]
    return [pid for first in processes.children(child) for pid in processes.children(first)[:1]]


def look(pid: int, watched: Watched, folder: str) -> bool:
    """Anonymous memory of the tree, pages that are shared counted once, and the /dev/shm of its own. False where processes came or
    went meanwhile: whose pages are whose is not known. What ours in ``folder`` started besides is left out."""
    pids = _script_processes(pid, folder)
    members = [member for member in map(processes.memory, pids) if member is not None]
    own = {member.pid: member.anon for member in members}
    for member in members if len(pids) > 1 else ():
        if (shared := processes.overlap(member.pid)) is None:
            return False
        own[member.pid] = max(0, member.anon - shared.anon)
    if not own or pids != _script_processes(pid, folder):
        return False
    named = _main_process(folder)
    main = next((member for member in members if own_number(member.pid) == named), None) or max(
        members, key=lambda member: member.anon
    )
    with contextlib.suppress(OSError):
        facts = os.statvfs(f"/proc/{main.pid}/root/dev/shm")
        watched.shared_now = max(0, (facts.f_blocks - facts.f_bfree) * facts.f_frsize - watched.shared_before)
        watched.shared = max(watched.shared, watched.shared_now)
    total, below = sum(own.values()), {main.pid, *processes.descendants(main.pid)}
    launcher = sum(size for member, size in own.items() if member not in below)
    watched.launcher = max(watched.launcher, launcher)
    if total > watched.peak:
        watched.peak, watched.main = total, min(main.anon, total - launcher)
        watched.workers = total - launcher - watched.main
    worker_sizes = (size for member, size in own.items() if member in below and member != main.pid)
    watched.largest = max(watched.largest, *worker_sizes, 0)
    return True


def _main_process(folder: str) -> int:
    """As it says itself: a worker that it forked has its pages too, and those of a batch beside them. 0: not yet."""
    try:
        with open(os.path.join(folder, MAIN), opener=regular_only) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _script_processes(pid: int, folder: str) -> tuple[int, ...]:
    """Without those that look at the script's data for us."""
    aside: set[int] = set()
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(folder, ASIDE), opener=regular_only) as file,
    ):
        aside = {int(line) for line in file.read().split()}
    members = (pid, *processes.descendants(pid))
    return tuple(member for member in members if not aside or own_number(member) not in aside)


def own_number(pid: int) -> int:
    """The number by which a process knows itself: another than ours in a process namespace of its own."""
    numbers = re.search(rb"^NSpid:.*\s(\d+)$", read_bytes(f"/proc/{pid}/status") or b"", re.MULTILINE)
    return int(numbers[1]) if numbers else pid


def shared_in_use() -> int:
    """Bytes in this machine's /dev/shm."""
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def cause_of_failure(folder: str, tell: Callable[[str], None], *, has_network: bool, when: str) -> str:
    """Shows the end of what the command printed. Returns what of its surroundings made it fail, by what it printed, or nothing."""
    lines = _last_lines(folder)
    for line in lines:
        tell(line if len(line) <= _WIDEST else f"{line[:_WIDEST]}…")
    if has_network:
        return ""
    if any(word in line for line in lines for word in _NO_NETWORK):
        return f"the command failed for lack of the network, which is off {when} (run it once before, so that its data is here, or give --allow-writes)"
    if any(_NO_SUCH_OWNER in line for line in lines):
        return f"the command wrote to a file or folder of an owner or a group that is not yours, which is not possible {when} (give it your own group with chgrp, or give --allow-writes)"
    return ""


def printed(folder: str, text: str) -> bool:
    return any(text in line for line in _last_lines(folder))


def _last_lines(folder: str) -> list[str]:
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "output"), errors="replace", opener=regular_only) as file,
    ):
        return file.read().splitlines()[-_SHOWN:]
    return []
