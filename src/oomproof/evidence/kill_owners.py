"""Which run of ours a killed process belonged to, by pid and time or by cgroup; and what our guards ended."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO

from oomproof.causes import cause_of
from oomproof.evidence.case_file import Missing
from oomproof.evidence.job_processes import JobProcesses, same_or_below
from oomproof.evidence.json_files import integer, number, part, string
from oomproof.evidence.recording_tail import last_samples
from oomproof.evidence.stored_kills import SystemKill
from oomproof.leaf.action_kinds import KILL, TERM
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run
from oomproof.recording.state_files import load
from oomproof.records import dataclass

DEADLINE = 20.0  # seconds; a journal of a busy year on a slow disk
_LINES = 3_000_000
_WHO = ("earlyoom", "nohang", "nohang-desktop", "systemd-oomd", "oomd", "systemd", "slurmstepd", "slurmd")
_FIELDS = "MESSAGE,SYSLOG_IDENTIFIER,SYSLOG_PID,_PID,_COMM,_TRANSPORT,_HOSTNAME"
HOW_TO_GRANT = "sudo usermod -aG adm,systemd-journal $USER, then log in again"


def feed_journal(
    since: float, feed: Callable[[int, str], None], *, command: str = "journalctl", deadline: float = DEADLINE
) -> Missing | None:
    """Gives each line of the kernel and of the known guards to ``feed`` as a JSON object, oldest first."""
    matches = ["_TRANSPORT=kernel"]
    for name in _WHO:
        matches += ["+", f"SYSLOG_IDENTIFIER={name}"]
    argv = [
        command,
        "-o",
        "json",
        f"--output-fields={_FIELDS}",
        "--no-pager",
        f"--since=@{int(since)}",
        *matches,
    ]
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            return Missing("journal", f"{command} cannot be run: {error.strerror}", "")
        late = threading.Event()
        timer = threading.Timer(deadline, _end, (process, late))
        timer.start()
        try:
            assert process.stdout is not None
            lines = _pass_on(process.stdout, feed)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        complaints.seek(0)
        told = complaints.read(4096).decode("utf-8", "replace").strip().splitlines()
    if late.is_set():
        return Missing("journal", f"cut short after {deadline:.0f} s", "ask for less: --since '2 hours ago'")
    hidden = next((line for line in told if "not seeing messages" in line), None)
    if hidden is not None:  # only this user's own lines came, and those of the kernel are not among them
        return Missing("journal", hidden.removeprefix("Hint: "), HOW_TO_GRANT)
    if lines == 0:
        # a journal we may not read answers with nothing at all and status 0: silence is no proof of absence
        reason = told[0] if told else "it shows no lines of the kernel or of a guard to this user"
        return Missing("journal", reason, HOW_TO_GRANT if os.geteuid() else "")
    return None


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _pass_on(stream: IO[bytes], feed: Callable[[int, str], None]) -> int:
    count = 0
    for line in stream:
        if not line.startswith(b"{"):  # "-- No entries --"
            continue
        count += 1
        feed(count, line[:65536].decode("utf-8", "replace"))
        if count >= _LINES:
            break
    return count


_SLACK = 5.0  # seconds around a run within which a kill may still be its own
_INIT_PID_NAMESPACE = "pid:[4026531836]"  # the kernel prints pids of this one
_MOUNT = re.compile(r"^/sys/fs/cgroup(?:/memory|/unified)?(?=/)")


@dataclass(frozen=True, slots=True)
class _Life:
    run: Run
    attempt: Attempt
    start: float  # wall
    end: float
    offset: float  # wall clock at boottime 0 of its boot
    boottime: float
    leader: int | None
    cgroups: tuple[str, ...]


class OurRuns:
    """Recordings are opened only for runs that lived when something was killed."""

    def __init__(self, runs: Sequence[Run], proc: str = "/proc") -> None:
        try:
            self.pids_comparable = os.readlink(f"{proc}/self/ns/pid") == _INIT_PID_NAMESPACE
        except OSError:
            self.pids_comparable = True  # no namespaces in this kernel
        self._lives = [life for run in runs for life in _lives(run)]
        self._known: dict[Attempt, JobProcesses] = {}

    def owner(self, wall: float | None, pid: int | None, cgroup: str | None) -> Run | None:
        if wall is None:
            return None
        alive = [life for life in self._lives if life.start - _SLACK <= wall <= life.end + _SLACK]
        for life in alive:
            if pid is not None and self._ours(life).owns(pid, wall - life.offset):
                return life.run
        # a worker that lived shorter than one sample is known by its cgroup alone
        return next((life.run for life in alive if same_or_below(cgroup, life.cgroups)), None)

    def _ours(self, life: _Life) -> JobProcesses:
        if life.attempt not in self._known:
            processes = last_samples(life.attempt.recording_file).samples.processes
            self._known[life.attempt] = JobProcesses(
                life.leader, life.boottime, processes, life.cgroups, False, self.pids_comparable
            )
        return self._known[life.attempt]


def _lives(run: Run) -> list[_Life]:
    lives = []
    for attempt in run.attempts():
        started, _ = attempt.load_started()
        exited, _ = attempt.load_exit()
        wall, boottime = number(started.get("wall")), number(started.get("boottime"))
        if wall is None or boottime is None:
            continue
        removed = part(started, "backend").get("remove")
        paths = [str(cgroup_path) for cgroup_path in removed] if isinstance(removed, list) else []
        cgroups = tuple(path for cgroup_path in paths if (path := _MOUNT.sub("", cgroup_path).rstrip("/")))
        end = number(exited.get("wall"))
        lives.append(
            _Life(
                run, attempt, wall, end if end is not None else float("inf"), wall - boottime, boottime,
                integer(part(started, "job").get("pid")), cgroups,
            )
        )  # fmt: skip
    return lives


@dataclass(frozen=True, slots=True)
class GuardStop:
    wall: float
    action: str
    why: str
    pid: int | None
    name: str | None
    held: int | None


def kills_in_verdicts(runs: Sequence[Run], since: float) -> list[SystemKill]:
    """Of processes of our runs, by the kernel, as it was read when they ended: its log forgets them within hours."""
    kills = []
    for run in runs:
        for attempt in run.attempts():
            stored, _ = load(attempt.verdict_file)
            listed = stored.get("kills")
            for kill in listed if isinstance(listed, list) else ():
                if not isinstance(kill, dict):
                    continue
                wall, cause, victim = (
                    number(kill.get("time")),
                    string(kill.get("cause")),
                    part(kill, "victim"),
                )
                if wall is None or wall < since or cause is None or not cause_of(cause).kernel_kill:
                    continue
                anon, shared = integer(victim.get("anon_rss_bytes")), integer(victim.get("shmem_rss_bytes"))
                held = None if anon is None else anon + (shared or 0)
                kills.append(
                    SystemKill(
                        wall, cause, integer(victim.get("pid")), string(victim.get("name")), held, "proven",
                        attempt.verdict_file.name, "read when the run ended", run=run.id, run_name=run.name,
                    )
                )  # fmt: skip
    return kills


def guard_stops(runs: Sequence[Run], since: float) -> list[tuple[Run, GuardStop]]:
    """The last SIGTERM or SIGKILL that a guard of ours sent in each attempt."""
    stops = []
    for run in runs:
        for attempt in run.attempts():
            sent = [
                line
                for line in attempt.actions()
                if line.get("by") == "guard"
                and line.get("action") in (TERM, KILL)
                and (number(line.get("wall")) or 0.0) >= since
            ]
            if not sent:
                continue
            started, _ = attempt.load_started()
            samples = last_samples(attempt.recording_file).samples
            last = sent[-1]
            leader = integer(part(started, "job").get("pid"))
            seen = samples.processes.get(leader) if leader is not None else None
            name = seen.name if seen is not None else os.path.basename(run.argv[0]) if run.argv else None
            stops.append(
                (
                    run,
                    GuardStop(
                        number(last.get("wall")) or 0.0,
                        str(last.get("action")),
                        string(last.get("why")) or "",
                        leader,
                        name,
                        samples.job.used if samples.job else None,
                    ),
                )
            )
    return stops
