"""Takes a process that runs already, with all below it, under watch: recorded, guarded by signals, in the ledger."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from oomproof.errors import NOT_FOUND, USAGE, OomproofError
from oomproof.guard.host_view import HostView
from oomproof.leaf.command_lines import is_keeper, is_oomproof
from oomproof.leaf.proc_files import environment as environment_of
from oomproof.leaf.proc_files import with_start
from oomproof.machine import cgroups, processes, wait_status
from oomproof.machine.clock import boottime
from oomproof.recording import run_folders, state_files
from oomproof.recording.secrets import mask_environment
from oomproof.records import dataclass
from oomproof.runner import limit_backends
from oomproof.runner.admission_request import enter
from oomproof.runner.attempt_files import how_it_ended, read_counters
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.job_watch import Watch
from oomproof.runner.supervise import Order, describe_run, write_down


@dataclass(frozen=True)
class Adopted:
    """A process that may be adopted, held by its pidfd: its pid cannot become somebody else's any more."""

    pid: int
    start: int
    argv: list[str]
    cwd: str
    environment: dict[str, str]
    pidfd: int


_OTHER = "name another pid; what runs: oomproof runs"


def take(pid: int, proc: str = "/proc") -> Adopted:
    """The process, or the reason why not."""
    if sys.platform == "darwin":
        raise OomproofError("adopt works on Linux only", "start it under watch: oomproof run -- CMD", USAGE)
    if pid < 1 or processes.stat_fields(pid, proc) is None:
        raise OomproofError(f"there is no process {pid}", "look for it: oomproof check", NOT_FOUND)
    if pid == 1:
        raise OomproofError(
            "pid 1 is the machine's own first process, not a job", "name the job's pid", USAGE
        )
    try:
        owner = os.stat(f"{proc}/{pid}").st_uid
        pidfd = os.pidfd_open(pid)
    except (OSError, AttributeError) as error:
        raise OomproofError(
            f"process {pid} cannot be held: {error}", "it may just have ended", NOT_FOUND
        ) from error
    start = processes.start_time(pid, proc)
    if start is None or not processes.is_alive(pid, start, proc):
        os.close(pidfd)
        raise OomproofError(f"process {pid} has ended", "nothing to watch", NOT_FOUND)
    if owner != os.geteuid():
        os.close(pidfd)
        raise OomproofError(
            f"process {pid} belongs to {_user(owner)}",
            "only your own processes can be adopted; ask them to",
            USAGE,
        )
    environment = environment_of(pid, proc)
    ours = _ours(pid, environment, proc)
    if ours:
        os.close(pidfd)
        raise OomproofError(f"process {pid} {ours[0]}", ours[1], USAGE)
    try:
        cwd = os.readlink(f"{proc}/{pid}/cwd")
    except OSError:
        cwd = ""
    argv = processes.command_line(pid, proc)
    if not argv:
        os.close(pidfd)
        raise OomproofError(f"process {pid} is the kernel's own", "name the job's pid", USAGE)
    return Adopted(pid, start, argv, cwd, environment, pidfd)


def _ours(pid: int, environment: dict[str, str], proc: str) -> tuple[str, str] | None:
    """Why it must not be adopted (it is we, or already guarded), and what to do instead."""
    me: int = os.getpid()
    while me > 0:
        if me == pid:
            return ("is" if pid == os.getpid() else "started") + " this very command", _OTHER
        fields = processes.stat_fields(me, proc)
        me = int(fields[1]) if fields else 0
    command = processes.command_line(pid, proc)
    if is_keeper(command) or is_oomproof(command[:3]):
        return "is oomproof's own", _OTHER
    run = run_folders.Run(run_folders.runs_folder() / environment.get("OOMPROOF_RUN", "none"))
    if run.folder.is_dir() and run.keeper_lives():
        return f"belongs to the run {run.name}", _instead(run)
    for other in run_folders.list_runs():
        if (
            other.info.get("adopted")
            and other.keeper_lives()
            and (other.started().get("job") or {}).get("pid") == pid
        ):
            return f"was adopted already, as {other.name}", _instead(other)
    return None


def _instead(run: run_folders.Run) -> str:
    if run.state() == "unguarded":
        return f"guard it again: oomproof watch {run.name}"
    return f"it is guarded already; see it: oomproof runs show {run.name}"


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def watch(
    run: run_folders.Run,
    adopted: Adopted,
    order: Order,
    say: Callable[[str], None],
    on_started: Callable[[list[str]], None],
) -> bool:
    """Stays until the process has ended (True), or until KeyboardInterrupt, which leaves it running (False)."""
    host = HostView()
    ticket = enter(run, adopted.argv, order.chosen.name, order.asked, adopted.cwd)
    settings = guard_settings(order.chosen, host)
    info = {
        **describe_run(run, order, settings, ticket.as_json()),
        "cwd": adopted.cwd,
        "env": mask_environment(adopted.environment),
        "adopted": True,
    }
    state_files.write_json(run.info_file, info)
    lock = state_files.take_lock(run.guard_lock)
    backend = limit_backends.LimitBackend(limit_backends.WATCH, note="adopted")
    started: dict[str, Any] = {
        "boot_id": info["boot_id"],
        "boottime": boottime(),
        "wall": time.time(),
        "keeper": {"pid": 0, "start": None},  # nobody keeps it: its parent is somebody else's
        "job": {"pid": adopted.pid, "start": adopted.start},
        "guard": with_start(os.getpid()),
        "backend": backend.as_json(),
        "memcg": cgroups.memory_path(adopted.pid),
        "counters": read_counters(backend.counters()),
    }
    state_files.write_json(run.attempt.started_file, started)
    guard = Watch(run, started, settings, host, say, order.chosen, agent=False, alerts=order.alerts)
    guard.start()
    over = threading.Event()
    writing = threading.Thread(target=write_down, args=(run, info, order, started, ticket, over), daemon=True)
    writing.start()
    on_started(ticket.told + ticket.details)
    try:
        return stay(run, adopted.pid, adopted.pidfd, guard)
    except KeyboardInterrupt:
        return False
    finally:
        over.set()
        guard.stop()
        writing.join(1.0)
        if lock is not None:
            os.close(lock)


def stay(run: run_folders.Run, pid: int, pidfd: int, watch: Watch) -> bool:
    """Waits for the end and writes down what can be known of it."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    while not poller.poll(1000):
        pass
    record_end(run, wait_status.wait_status(pid, pidfd), watch.guarded.moment.largest_rss)
    return True


def record_end(run: run_folders.Run, status: int | None, largest_rss: int) -> None:
    """exit.json, as a keeper would write it; without a status where the kernel tells it to the parent only."""
    backend = limit_backends.LimitBackend(limit_backends.WATCH)
    state_files.write_json(
        run.attempt.exit_file,
        {
            "boottime": boottime(),
            "wall": time.time(),
            **how_it_ended(status),
            "leftovers": [],
            "counters": {**read_counters(backend.counters()), "largest_rss": largest_rss or None},
            "adopted": True,
        },
    )
