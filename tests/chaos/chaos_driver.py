"""Runs one chaos round: real jobs under `oomproof run`, what breaks around them, and what is true afterwards.

chaos_driver.py --seed S [--faults KIND,…] [--folder DIR]: prints the round's result as one line of JSON. Needs root: private
disks, memory cgroups. It is started in a mount namespace of its own (`command`), so that nothing stays mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import chaos_expect as expect
import chaos_plan as plan
from chaos_expect import JobFacts, RoundFacts, Violation
from chaos_plan import Fault, PlannedJob

HERE = Path(__file__).resolve().parent
NO_PROGRESS = 30.0  # seconds in which no job takes a step and nothing ends: those that live are stuck
FRONT_SECONDS = 60.0  # from the job's end to the front's
VERB_SECONDS = 120.0
LEAVING = 15.0  # from the end of the jobs to that of our processes
SWEPT_AFTER = 6.0  # what is younger than five may belong to a run that is just being made
ROUND_SECONDS = 600.0

HOG = """
import os, time
open("/proc/self/oom_score_adj", "w").write("1000")
held = []
for _ in range({blocks}):
    held.append(bytearray(b"x" * (4 << 20)))
    time.sleep(0.03)
time.sleep(1.0)
"""

_ACTIONS = {  # what the front says when it acts
    "request": r"asked the job to save and stop",
    "term": r"sent SIGTERM to the job",
    "kill": r"killed all processes of the job",
    "pause": r"oomproof: paused: ",
}


class Unavailable(Exception):
    """This machine cannot run such a round; the text says why."""


def command(seed: int, folder: Path, kinds: Iterable[str] = ()) -> list[str]:
    words = ["--seed", str(seed), "--folder", str(folder)]
    if kinds:
        words += ["--faults", ",".join(kinds)]
    return ["unshare", "-m", sys.executable, str(HERE / "chaos_driver.py"), *words]


def run_round(seed: int, kinds: Iterable[str] = (), keep: bool = False) -> dict[str, Any]:
    """A round in a process of its own; its result. The folder of a round that broke a promise is kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    try:
        done = subprocess.run(
            command(seed, folder, kinds), capture_output=True, text=True, timeout=ROUND_SECONDS, check=False
        )
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        said = getattr(locals().get("done"), "stderr", "") or str(error)
        result = {"seed": seed, "plan": str(plan.draw(seed, tuple(kinds))), "violations": []}
        result["violations"].append(["driver-failed", "", said.strip()[-300:]])
    if result.get("violations") or keep:
        result["folder"] = str(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


# --- small things of the machine ------------------------------------------------------------------------------------------


def stat_of(pid: int) -> list[str]:
    """From the state letter on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def lives(pid: int) -> bool:
    fields = stat_of(pid)
    return bool(fields) and fields[0] not in "ZX"


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def send(pid: int, number: int) -> bool:
    if not lives(pid):
        return False
    with contextlib.suppress(OSError):
        os.kill(pid, number)
        return True
    return False


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def mount_disk(path: Path, options: str) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "chaos", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        raise Unavailable(f"cannot mount a small disk here: {done.stderr.strip()}")


class KernelLog:
    """Which processes the kernel killed for memory during the round."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise Unavailable(f"the kernel log cannot be read: {error.strerror}") from error

    def killed(self) -> set[int]:
        found = set()
        while True:
            try:
                record = os.read(self._fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.EPIPE:  # EPIPE: overwritten meanwhile, the next is there
                    return found
                continue
            if match := re.search(r"Killed process (\d+)", record):
                found.add(int(match[1]))


class Cgroups:
    """The small machine of one round: its own cgroup in each hierarchy, so that all that stays behind is found below."""

    def __init__(self, name: str, need_pids: bool) -> None:
        from oomproof.machine import cgroups

        self.folders: dict[str, Path] = {}
        try:
            for controller in ("memory", "pids", "freezer", ""):
                own = cgroups.own_directory(controller)
                if own is not None:
                    folder = Path(own) / name
                    folder.mkdir()
                    self.folders[controller] = folder
            self.memory = self.folders.get("memory") or self.folders.get("")
            if self.memory is None:
                raise Unavailable("no memory cgroup here")
            limit = "memory.limit_in_bytes" if "memory" in self.folders else "memory.max"
            (self.memory / limit).write_text(str(plan.MACHINE << 20))
            pids = (self.folders.get("pids") or self.folders.get("") or self.memory) / "pids.max"
            self.pids_max = pids if pids.exists() else None
            if need_pids and self.pids_max is None:
                raise Unavailable("no pids cgroup here")
        except OSError as error:
            self.remove()
            raise Unavailable(f"no memory cgroup can be made here: {error}") from error
        except Unavailable:
            self.remove()
            raise

    def set_pids(self, value: str) -> None:
        if self.pids_max is not None:
            self.pids_max.write_text(value)

    def pids_now(self) -> int:
        assert self.pids_max is not None
        return int((self.pids_max.parent / "pids.current").read_text())

    def below(self) -> Iterator[Path]:
        for folder in self.folders.values():
            for path, _, _ in os.walk(folder, topdown=False):
                yield Path(path)

    def processes(self) -> list[int]:
        found: set[int] = set()
        for folder in self.below():
            with contextlib.suppress(OSError, ValueError):
                found |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        return [pid for pid in found if lives(pid)]

    def ours(self) -> list[str]:
        """Cgroups that oomproof made."""
        return sorted({str(path) for path in self.below() if path.name.startswith("oomproof")})

    def frozen(self, pid: int) -> bool:
        for folder in self.below():
            with contextlib.suppress(OSError):
                if str(pid) in (folder / "cgroup.procs").read_text().split():
                    events, state = folder / "cgroup.events", folder / "freezer.state"
                    if (events.exists() and "frozen 1" in events.read_text()) or (
                        state.exists() and "THAWED" not in state.read_text()
                    ):
                        return True
        return False

    def end_all(self) -> None:
        """At the very end: whatever is left in there, resumed and killed."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for folder in self.below():
                for file, value in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                    with contextlib.suppress(OSError):
                        if (folder / file).exists():
                            (folder / file).write_text(value)
            for pid in left:
                send(pid, signal.SIGKILL)
                send(pid, signal.SIGCONT)
            time.sleep(0.05)

    def remove(self) -> None:
        for path in list(self.below()):
            for _ in range(40):
                try:
                    path.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.025)


# --- one run of a round -------------------------------------------------------------------------------------------------


@dataclass
class Journal:
    """What the job itself wrote down."""

    pid: int = 0
    parent: int = 0
    workers: list[int] = field(default_factory=list)
    steps: int = 0
    lines: int = 0
    peak: int = 0
    told: list[float] = field(default_factory=list)
    asked: bool = False
    number: int | None = None
    error: str = ""
    code: int | None = None

    @property
    def over(self) -> bool:
        return self.code is not None or self.number is not None or bool(self.error)


def read_journal(path: Path) -> Journal:
    found = Journal()
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        parts = rest.split()
        if word == "start":
            found.pid, found.parent = int(parts[0]), int(parts[1])
        elif word == "pid":
            found.workers.append(int(parts[0]))
        elif word == "step" and len(parts) == 3:
            found.steps, found.lines, found.peak = int(parts[0]) + 1, int(parts[1]), int(parts[2])
        elif word == "told":
            found.told.append(float(parts[0]))
        elif word == "asked":
            found.asked = True
        elif word == "signal":
            found.number = int(parts[0])
        elif word == "error":
            found.error = rest
        elif word == "done":
            found.code, found.lines = int(parts[0]), int(parts[1])
    return found


@dataclass
class Running:
    planned: PlannedJob
    journal_path: Path
    process: subprocess.Popen[bytes] | None = None
    output: bytearray = field(default_factory=bytearray)
    said_path: Path = Path()
    output_path: Path | None = None
    reader: threading.Thread | None = None
    faults: set[str] = field(default_factory=set)
    front_killed: bool = False
    keeper_killed: bool = False
    keeper_killed_late: bool = False
    verbs: list[str] = field(default_factory=list)  # what a user's command said that did not go well
    odd_at: float | None = None  # boottime of the odd datagrams
    reserved: bool | None = None

    _known: tuple[int, Journal] = (0, Journal())

    def journal(self) -> Journal:
        """Read again only when it has grown: it is looked at every few milliseconds."""
        try:
            size = self.journal_path.stat().st_size
        except OSError:
            return Journal()
        if size != self._known[0]:
            self._known = (size, read_journal(self.journal_path))
        return self._known[1]

    def text(self) -> bytes:
        if self.output_path is not None:
            with contextlib.suppress(OSError):
                return self.output_path.read_bytes()
        return bytes(self.output)

    def said(self) -> str:
        text = ""
        with contextlib.suppress(OSError):
            text = self.said_path.read_text(errors="replace")
        if self.planned.output == "pty":
            text += self.text().decode(errors="replace")
        return "\n".join([text, *self.verbs])


class Round:
    def __init__(self, drawn: plan.Plan, folder: Path) -> None:
        self.plan, self.folder = drawn, folder
        self.state, self.runtime = folder / "state", folder / "run"
        self.happened: set[str] = set()
        self.notes: list[str] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.helpers: list[subprocess.Popen[Any]] = []
        self.hog: subprocess.Popen[bytes] | None = None
        self.kernel = KernelLog()
        self.cgroups = Cgroups(f"chaos-{os.getpid()}-{drawn.seed}", "pids" in plan.needed_cgroups(drawn))
        self.runs = [Running(job, folder / f"{job.name}.journal") for job in drawn.jobs]
        self.begun = time.monotonic()

    # --- starting ---------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("OOMPROOF_") and name not in ("PYTHONPATH", "TMUX", "SSH_CONNECTION")
        }
        return {
            **kept,
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.state),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def inside(self, nofile: int | None = None, hide: bool = False) -> list[str]:
        """Words before a command that put it into the round's small machine."""
        joins = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in self.cgroups.folders.values())
        script = joins + (f"ulimit -n {nofile}; " if nofile else "")
        if not hide:
            return ["sh", "-c", script + 'exec "$@"', "sh"]
        hidden = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"'
        return ["sh", "-c", script + 'exec unshare -m sh -c "$0" sh "$@"', hidden]

    def oomproof(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "oomproof.cli.main", *words]

    def start(self, running: Running) -> None:
        job = running.planned
        options = ["--grace", "1", "--pause-max", "3"]
        if job.limit:
            options += ["--limit", f"{job.limit}M"]
        if job.need:
            options += ["--need", f"{job.need}M"]
        if job.output == "detached":
            options.append("--detach")
        argv = [
            *self.inside(job.nofile, self.plan.has(plan.NO_RIGHTS)),
            *self.oomproof("run", "--name", job.name, *options, "--"),
            sys.executable, str(HERE / "chaos_job.py"), job.kind, str(running.journal_path), str(job.steps),
            str(job.held), str(job.code), *(["quiet"] if job.quiet else []),
        ]  # fmt: skip
        running.said_path = self.folder / f"{job.name}.stderr"
        if job.output == "file":
            self._start_to_files(running, argv)
            return
        with open(running.said_path, "wb") as said:
            if job.output == "pty":
                self._start_on_a_terminal(running, argv)
                return
            stdout: Any = subprocess.PIPE
            if job.output != "pipe":
                running.output_path = self.folder / f"{job.name}.stdout"
                stdout = open(running.output_path, "wb")  # noqa: SIM115
            running.process = subprocess.Popen(
                argv,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=said,
                cwd=self.folder,
            )
            if job.output == "pipe":
                assert running.process.stdout is not None
                self._read(running, running.process.stdout.fileno())
            else:
                stdout.close()

    def _start_to_files(self, running: Running, argv: list[str]) -> None:
        """Opened by a shell, as a user does: nobody else has them, so that the job writes to them itself."""
        base = str(self.folder / running.planned.name)
        running.output_path = Path(f"{base}.stdout")
        null = subprocess.DEVNULL
        running.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" > "$0.stdout" 2> "$0.stderr"', base, *argv],
            env=self.environment(), stdin=null, stdout=null, stderr=null, cwd=self.folder,
        )  # fmt: skip

    def _start_on_a_terminal(self, running: Running, argv: list[str]) -> None:
        master, slave = pty.openpty()
        running.process = subprocess.Popen(
            ["setsid", "-c", *argv], env=self.environment(), stdin=slave, stdout=slave, stderr=slave, cwd=self.folder
        )  # fmt: skip
        os.close(slave)
        self._read(running, master)

    def _read(self, running: Running, fd: int) -> None:
        def read() -> None:
            with contextlib.suppress(OSError, ValueError):
                while data := os.read(fd, 1 << 16):
                    running.output += data

        running.reader = threading.Thread(target=read, daemon=True)
        running.reader.start()

    # --- who is who, without asking oomproof --------------------------------------------------------------------

    def front(self, running: Running) -> int | None:
        """The process that guards: of a detached run the one in the background."""
        if running.process is None:
            return None
        if running.planned.output != "detached":
            return running.process.pid if lives(running.process.pid) else None
        wanted = ["run", "--name", running.planned.name]
        for pid in sorted(self.cgroups.processes(), reverse=True):
            words = words_of(pid)
            if "oomproof.cli.main" in words and words[words.index("oomproof.cli.main") + 1 :][:3] == wanted:
                return pid
        return None

    def keeper(self, running: Running) -> int | None:
        front, parent = self.front(running), running.journal().parent
        for pid in self.cgroups.processes():
            fields = stat_of(pid)
            if not any(word.endswith("keeper.py") for word in words_of(pid)) or not fields:
                continue
            if pid == parent or (front is not None and int(fields[1]) == front):
                return pid
        return None

    # --- what breaks --------------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        running = self.runs[fault.job]
        before = set(running.faults)
        action = getattr(self, "_" + fault.kind.replace("-", "_"))
        if action(fault, running) is False:
            self.note(f"{fault}: nothing to hit")
            return
        if fault.kind in plan.GLOBAL:
            self.happened.add(fault.kind)
        elif running.faults == before:
            running.faults.add(fault.kind)
        self.note(str(fault))

    def _front_kill(self, fault: Fault, running: Running) -> bool | None:
        pid = self.front(running)
        if pid is None or not send(pid, signal.SIGKILL):
            return False
        running.front_killed = True
        running.faults.add(plan.FRONT_KILL)
        if running.keeper_killed:
            running.faults.add(plan.BOTH_KILL)
        if fault.number % 3 == 0 and fault.kind == plan.FRONT_KILL:
            self.after(0.3, lambda: self.verb(running, "watch", wait=False))
        return None

    def _keeper_kill(self, fault: Fault, running: Running) -> bool | None:
        over = running.journal().over
        pid = self.keeper(running)
        if pid is None or not send(pid, signal.SIGKILL):
            return False
        running.keeper_killed, running.keeper_killed_late = True, over
        running.faults.add(plan.KEEPER_KILL)
        if running.front_killed:
            running.faults.add(plan.BOTH_KILL)
        return None

    def _both_kill(self, fault: Fault, running: Running) -> bool | None:
        first, second = (self._front_kill, self._keeper_kill)[:: 1 if fault.number % 2 else -1]
        results = [first(fault, running), second(fault, running)]
        return False if results == [False, False] else None

    def _front_int(self, fault: Fault, running: Running, number: int = signal.SIGINT) -> bool:
        pid = self.front(running)
        return pid is not None and send(pid, number)

    def _front_term(self, fault: Fault, running: Running) -> bool:
        return self._front_int(fault, running, signal.SIGTERM)

    def _front_stop(self, fault: Fault, running: Running) -> bool:
        pid = self.front(running)
        if pid is None or not send(pid, signal.SIGSTOP):
            return False
        self.after(fault.lasts, lambda: send(pid, signal.SIGCONT))
        return True

    def _fds_lowered(self, fault: Fault, running: Running) -> bool:
        pid = self.front(running)
        if pid is None:
            return False
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))
            return True
        return False

    def _fds_at_start(self, fault: Fault, running: Running) -> None:
        pass

    def _pause(self, fault: Fault, running: Running) -> None:
        self.verb(running, "pause", wait=False)
        self.after(fault.lasts + 0.5, lambda: self.verb(running, "resume", wait=False))

    def _stop(self, fault: Fault, running: Running) -> None:
        how = (["--grace", "1"], ["--now", "--grace", "1"], ["--kill"])[fault.number % 3]
        self.verb(running, "stop", *how, wait=False)

    def _datagrams(self, fault: Fault, running: Running) -> bool:
        sockets = list((self.runtime / "oomproof").glob("agent-*"))
        running.odd_at = boottime()
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.settimeout(2.0)
        for path in sockets:
            for data in odd_datagrams():
                with contextlib.suppress(OSError):
                    sender.sendto(data, str(path))
        sender.close()
        return bool(sockets)

    def _run_removed(self, fault: Fault, running: Running) -> bool:
        folder = self.run_folder(running)
        if folder is None:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _disk_full(self, fault: Fault, running: Running) -> bool:
        try:
            fill(self.state / "filler")
        except OSError as error:  # made read-only by another fault of this round
            if error.errno != errno.EROFS:
                raise
            return False
        return True

    def _disk_readonly(self, fault: Fault, running: Running) -> None:
        # what is open for writing stays so: the kernel makes no disk read-only on demand while such files are there
        subprocess.run(["mount", "--bind", str(self.folder / "readonly"), str(self.state)], check=True)

    def _state_removed(self, fault: Fault, running: Running) -> None:
        shutil.rmtree(self.state / "oomproof", ignore_errors=True)

    def _state_gone(self, fault: Fault, running: Running) -> None:
        subprocess.run(["umount", "-l", str(self.state)], check=True)

    def _runtime_removed(self, fault: Fault, running: Running) -> None:
        shutil.rmtree(self.runtime / "oomproof", ignore_errors=True)
        if fault.number % 2:  # as at a logout
            subprocess.run(["umount", "-l", str(self.runtime)], check=True)
            with contextlib.suppress(OSError):
                self.runtime.rmdir()

    def _runtime_full(self, fault: Fault, running: Running) -> None:
        fill(self.runtime / "filler")

    def _ledger_removed(self, fault: Fault, running: Running) -> bool:
        files = list((self.state / "oomproof").glob("ledger*"))
        for path in files:
            path.unlink(missing_ok=True)
        return bool(files)

    def _ledger_emptied(self, fault: Fault, running: Running) -> bool:
        files = [path for path in (self.state / "oomproof").glob("ledger*.sqlite") if path.stat().st_size]
        for path in files:
            os.truncate(path, 0)
        return bool(files)

    def _ledger_flipped(self, fault: Fault, running: Running) -> bool:
        files = sorted((self.state / "oomproof").glob("ledger*.sqlite"))
        return sum(flip(path, fault.number) for path in files) > 0

    def _old_recording_flipped(self, fault: Fault, running: Running) -> bool:
        return sum(flip(path, fault.number) for path in self._old("recording.sqlite")) > 0

    def _old_json_wrong(self, fault: Fault, running: Running) -> bool:
        name = ("run.json", "exit.json", "started.json", "verdict.json")[fault.number % 4]
        for path in self._old(name):
            with contextlib.suppress(OSError):  # a disk made read-only by another fault of this round
                path.write_bytes(odd_json(path.read_bytes(), fault.number >> 2))
                return True
        return False

    def _old(self, name: str) -> list[Path]:
        return [
            path
            for path in (self.state / "oomproof" / "runs").glob(f"*/**/{name}")
            if "before" in named(path)
        ]

    def _no_threads(self, fault: Fault, running: Running) -> None:
        self.cgroups.set_pids(str(self.cgroups.pids_now()))

    def _few_threads_at_start(self, fault: Fault, running: Running) -> None:
        pass

    def _no_cgroup_rights(self, fault: Fault, running: Running) -> None:
        pass

    def _shortage(self, fault: Fault, running: Running) -> None:
        pass

    def _memory_hog(self, fault: Fault, running: Running) -> None:
        script = HOG.format(blocks=plan.MACHINE // 4)
        self.hog = subprocess.Popen(
            [*self.inside(), sys.executable, "-c", script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.helpers.append(self.hog)

    def after(self, seconds: float, action: Callable[[], Any]) -> None:
        self.later.append((time.monotonic() + seconds, action))

    def verb(self, running: Running, *words: str, wait: bool = True) -> None:
        """A user's command about this run, as he would type it in another terminal."""
        verb, *options = words

        def act() -> None:
            done = self.ask(verb, *options, running.planned.name)
            if "Traceback" in done.stderr or "internal" in done.stderr:
                running.verbs.append(f"{verb}: {done.stderr}")
            self.note(f"{verb} {running.planned.name}: {done.returncode} {done.stderr.strip()[-160:]}")

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        if wait:
            thread.join(VERB_SECONDS)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                self.oomproof(*words), env=self.environment(), capture_output=True, text=True, errors="replace",
                timeout=VERB_SECONDS, stdin=subprocess.DEVNULL, cwd=self.folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"did not come back in {VERB_SECONDS:.0f} s")

    # --- the round ------------------------------------------------------------------------------------------------

    def run(self) -> RoundFacts:
        mount_disk(self.state, "size=24m,mode=700")
        mount_disk(self.runtime, "size=512k,mode=700")
        if self.plan.has(plan.DISK_READONLY):
            same = self.folder / "readonly"
            same.mkdir()
            subprocess.run(["mount", "--bind", str(self.state), str(same)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(same)], check=True)
        if self.plan.has(plan.OLD_RECORDING, plan.OLD_JSON):
            self.ask("run", "--name", "before", "--", "true")
        if self.plan.pids is not None:
            self.cgroups.set_pids(str(self.plan.pids))
        self.begun = time.monotonic()
        self._play()
        self.note("all over, or stuck")
        self._repair()
        facts = self._look()
        self.note("looked")
        return facts

    def note(self, text: str) -> None:
        self.notes.append(f"{time.monotonic() - self.begun:.2f} {text}")

    def _play(self) -> None:
        waiting = list(self.runs)
        faults = list(self.plan.faults)
        for fault in [fault for fault in faults if fault.kind in plan.AT_START]:
            faults.remove(fault)
            self.strike(fault)
        moments: dict[tuple[str, int], float] = {}
        progress, seen = time.monotonic(), (0, 0, 0)
        looked = False
        looks = time.monotonic()
        while True:
            now = time.monotonic()
            self.starved, looks = max(self.starved, now - looks), now
            for running in [each for each in waiting if now - self.begun >= each.planned.begin]:
                waiting.remove(running)
                self.start(running)
                moments[plan.LAUNCH, self.runs.index(running)] = now
            journals = [running.journal() for running in self.runs]
            for number, journal in enumerate(journals):
                if journal.pid:
                    moments.setdefault((plan.START, number), now)
                if journal.over or self._gone(journal):
                    moments.setdefault((plan.END, number), now)
            for fault in list(faults):
                if now >= moments.get((fault.moment, fault.job), now + 1) + fault.at:
                    faults.remove(fault)
                    self.strike(fault)
                    looks = time.monotonic()
            for item in [item for item in self.later if now >= item[0]]:
                self.later.remove(item)
                item[1]()
            now_seen = (sum(running._known[0] for running in self.runs), len(faults), len(self.later))
            if now_seen != seen:
                progress, seen = now, now_seen
            if not faults and not looked and not waiting and not self.later:
                looked = self._look_at_reservations(journals)
                looks = time.monotonic()
            due = [fault for fault in faults if fault.moment == plan.END]
            due = [fault for fault in due if (plan.END, fault.job) in moments]
            if not (waiting or due or self.later) and all(
                self._settled(n, j) for n, j in enumerate(journals)
            ):
                return
            if now - progress > NO_PROGRESS:
                self.note("no progress any more")
                return
            time.sleep(0.006)

    def _gone(self, journal: Journal) -> bool:
        return bool(journal.pid) and not lives(journal.pid)

    def _settled(self, number: int, journal: Journal) -> bool:
        if journal.pid:
            return not lives(journal.pid)
        running = self.runs[number]
        if running.process is None or running.process.poll() is None:
            return False
        return self.front(running) is None and self.keeper(running) is None

    def _look_at_reservations(self, journals: list[Journal]) -> bool:
        """While they run, after all faults: what they asked for is still reserved. False: not the moment yet."""
        asked = [
            running
            for running, journal in zip(self.runs, journals, strict=True)
            if running.planned.need and journal.steps >= 10 and not journal.over
        ]
        if not asked:
            return all(journal.over for journal in journals)
        answer = self.ask("check", "--json")
        if answer.returncode:
            self.check_said = f"check: {answer.stderr.strip()[-200:]}"
            return True
        try:
            entries = json.loads(answer.stdout)["ledger"]["running"]
        except (ValueError, KeyError, TypeError):
            self.check_said = f"check --json printed {answer.stdout[:100]!r}"
            return True
        names = {entry["name"] for entry in entries}
        for running in asked:
            if not running.journal().over and lives(running.journal().pid):
                running.reserved = running.planned.name in names
        return True

    check_said = ""
    starved = 0.0  # longest time in which the driver itself was not let run

    def _repair(self) -> None:
        """The machine as it was: room on the disks, threads to be had. What was damaged or removed stays so."""
        if self.hog is not None and self.hog.poll() is None:
            self.hog.kill()
        self.cgroups.set_pids("max")
        if os.statvfs(self.state).f_flag & os.ST_RDONLY:  # whichever of the faults on it came last
            subprocess.run(["umount", "-l", str(self.state)], check=False)
        for folder in (self.state, self.runtime):
            with contextlib.suppress(OSError):
                (folder / "filler").unlink(missing_ok=True)
        self.runtime.mkdir(mode=0o700, exist_ok=True)

    # --- what is true, and what is said --------------------------------------------------------------------------------

    def _look(self) -> RoundFacts:
        killed = self.kernel.killed()
        deadline = time.monotonic() + FRONT_SECONDS
        pending = list(self.runs)
        while pending and time.monotonic() < deadline:
            pending = [running for running in pending if not self._front_ended(running)]
            time.sleep(0.02)
        self.note("fronts ended, or hang")
        facts = RoundFacts([], set(self.happened), starved=self.starved)
        for number, running in enumerate(self.runs):
            facts.jobs.append(self._boolean(number, running, killed, running in pending))
        for running in self.runs:  # a stuck one must not keep the rest from being looked at
            if running.process is not None and running.process.poll() is None:
                running.process.kill()
        for running in self.runs:
            if running.process is not None:
                running.process.wait(10)
            if running.reader is not None:
                running.reader.join(2)
        if all(job.truth != expect.ALIVE for job in facts.jobs):
            deadline = time.monotonic() + LEAVING
            while (left := set(self.cgroups.processes()) - self._helpers()) and time.monotonic() < deadline:
                time.sleep(0.1)  # a keeper without a front still writes down how it ended
            facts.processes = [f"{pid} {' '.join(words_of(pid))[-80:]}" for pid in sorted(left)]
        self._ask_oomproof(facts)
        return facts

    def _helpers(self) -> set[int]:
        return {helper.pid for helper in self.helpers}

    def _front_ended(self, running: Running) -> bool:
        return running.process is None or (running.process.poll() is not None and self.front(running) is None)

    def _boolean(self, number: int, running: Running, killed: set[int], hangs: bool) -> JobFacts:
        journal = running.journal()
        facts = JobFacts(running.planned, running.faults | self.happened)
        facts.lines, facts.peak, facts.asked = journal.lines, journal.peak, journal.asked
        facts.number, facts.error, facts.code = journal.number, journal.error, journal.code
        facts.oom_killed = bool({journal.pid, *journal.workers} & killed)
        if not journal.pid:
            facts.truth = expect.NEVER
        elif lives(journal.pid):
            facts.truth = expect.ALIVE
            facts.paused = stat_of(journal.pid)[:1] == ["T"] or self.cgroups.frozen(journal.pid)
        elif journal.code is not None:
            facts.truth = expect.FINISHED
        elif journal.error:
            facts.truth = expect.FAILED
        else:
            facts.truth = expect.SIGNALLED if journal.number is not None else expect.KILLED
        facts.ended_unseen = running.keeper_killed and (running.front_killed or running.keeper_killed_late)
        facts.told = len(journal.told)
        facts.front_left = "killed" if running.front_killed else "hangs" if hangs else "ended"
        if running.process is not None and running.process.poll() is not None and not running.front_killed:
            status = running.process.returncode
            facts.status = status if status >= 0 else 128 - status
        if running.planned.output == "detached":
            facts.status = None
        facts.reserved = running.reserved
        facts.said = running.said()
        if running.planned.output != "detached":
            facts.lines_seen = len(set(re.findall(rb"line (\d+)\r?\n", running.text())))
        return facts

    def run_folder(self, running: Running) -> Path | None:
        for path in (self.state / "oomproof" / "runs").glob("*/run.json"):
            if read_json(path).get("name") == running.planned.name:
                return path.parent
        return None

    def _ask_oomproof(self, facts: RoundFacts) -> None:
        listed = self.ask("runs", "--all", "--json")
        rows: list[dict[str, Any]] = []
        try:
            rows = json.loads(listed.stdout)["runs"]
        except (ValueError, KeyError, TypeError):
            facts.runs_said = f"runs --json: status {listed.returncode}, {listed.stderr.strip()[-200:]}"
        if not facts.runs_said and (listed.returncode or "Traceback" in listed.stderr):
            facts.runs_said = f"runs --json: status {listed.returncode}, {listed.stderr.strip()[-200:]}"
        facts.runs_said = facts.runs_said or self.check_said
        threads = []
        for running, job in zip(self.runs, facts.jobs, strict=True):
            job.row = next((row for row in rows if row.get("name") == running.planned.name), None)
            threads.append(threading.Thread(target=self._ask_about, args=(running, job)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self._next_run(facts)

    def _ask_about(self, running: Running, job: JobFacts) -> None:
        folder = self.run_folder(running)
        if folder is None:
            return
        attempt = folder / "1"
        answer = self.ask("why", "--json", folder.name)
        try:
            job.why = json.loads(answer.stdout)["verdict"]
        except (ValueError, KeyError, TypeError):
            job.why_said = f"why: status {answer.returncode}, {answer.stderr.strip()[-200:]}"
        for line in lines_of(attempt / "actions.jsonl"):
            (job.acts if line.get("by") == "guard" else job.user_acts).append(str(line.get("action")))
        said = job.said + text_of(attempt / "memory_alerts.log")
        job.acts += [kind for kind, words in _ACTIONS.items() if re.search(words, said)]
        if running.planned.output == "detached" and job.truth != expect.ALIVE:
            job.status = self.ask("wait", folder.name).returncode
            if job.front_left == "killed":  # nobody's status but the record's
                job.status = None
        with contextlib.suppress(OSError):
            job.lines_logged = len(
                set(re.findall(rb"line (\d+)\r?\n", (attempt / "output.log").read_bytes()))
            )
        job.recording = look_at_recording(attempt / "recording.sqlite", running, job)
        if job.recording == "ok" and job.row is not None and job.row.get("problem"):
            job.recording = str(job.row["problem"])

    def _next_run(self, facts: RoundFacts) -> None:
        """A run after all this: it works, and takes away what killed ones could not."""
        done = self._run_inside("after", "true")
        if done.returncode or "finished" not in done.stderr:
            facts.next_run = f"status {done.returncode}: {done.stderr.strip()[-200:]}"
        if any(job.truth == expect.ALIVE for job in facts.jobs):
            return  # what it has left is its own
        if self._left_cgroups() or self._left_files():
            time.sleep(SWEPT_AFTER)
            self._run_inside("sweeps", "sleep", "1")
        facts.cgroups, facts.files = self._left_cgroups(), self._left_files()
        answer = self.ask("check", "--json")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            ledger = json.loads(answer.stdout)["ledger"]
            facts.reservations = [entry["name"] for entry in [*ledger["running"], *ledger["waiting"]]]

    def _run_inside(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.inside(), *self.oomproof("run", "--name", name, "--need", "1M", "--", *words)],
                env=self.environment(), capture_output=True, text=True, errors="replace", timeout=VERB_SECONDS,
                stdin=subprocess.DEVNULL, cwd=self.folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"did not come back in {VERB_SECONDS:.0f} s")

    def _left_cgroups(self) -> list[str]:
        return sorted({Path(path).name for path in self.cgroups.ours()})

    def _left_files(self) -> list[str]:
        runtime = self.runtime / "oomproof"
        return [
            str(path.relative_to(runtime))
            for path in sorted(runtime.rglob("*"))
            if not path.is_dir() and path.name.startswith(("agent-", "0", "2"))
        ]

    def close(self) -> None:
        for helper in self.helpers:
            if helper.poll() is None:
                helper.kill()
            helper.wait(10)
        self.cgroups.end_all()
        self.cgroups.remove()
        for folder in (self.state, self.runtime, self.folder / "readonly"):
            if os.path.ismount(folder):
                with contextlib.suppress(OSError, shutil.Error):
                    if folder.name != "readonly":
                        shutil.copytree(
                            folder, self.folder / f"{folder.name}-kept", ignore=_sockets_and_fillers
                        )
                subprocess.run(["umount", "-l", str(folder)], check=False)


def _sockets_and_fillers(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if name == "filler" or not (os.path.isdir(f"{folder}/{name}") or os.path.isfile(f"{folder}/{name}"))
    ]


# --- what is damaged, and how ----------------------------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Writes until the disk takes no byte more."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    size = 1 << 20
    while size:
        try:
            os.write(fd, b"\0" * size)
        except OSError:
            size //= 4
    os.close(fd)


def flip(path: Path, number: int) -> bool:
    """One byte of a file, half of the time in its first kilobyte."""
    try:
        size = path.stat().st_size
        if not size:
            return False
        place = (number >> 9) % (min(size, 1024) if number & 256 else size)
        with open(path, "r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ (1 << (number & 7))]))
    except OSError:
        return False
    return True


def odd_json(data: bytes, number: int) -> bytes:
    """The file with another type where none is expected, or cut, or no text at all."""
    if number % 6 == 0:
        return b"[1, 2]"
    if number % 6 == 1:
        return data[: len(data) // 2]
    if number % 6 == 2:
        return b"\xff\xfe\x00" + data
    value = json.loads(data)
    names = sorted(value)
    name = names[(number >> 3) % len(names)]
    odd: list[Any] = ["words", 3, None, [], {}, -1e300, True, 1 << 70]
    value[name] = odd[(number >> 8) % len(odd)]
    return json.dumps(value).encode()


def odd_datagrams() -> list[bytes]:
    def datagram(**changes: object) -> bytes:
        value = {
            "kind": "phase",
            "pid": 1,
            "t": boottime(),
            "rank": 0,
            "fields": {"name": "train", "step": 1},
        }
        return json.dumps({**value, **changes}).encode()

    return [
        b"", b"\xff\xfe", b"[" * 30_000, b'{"kind":' * 5_000, datagram(pid=1 << 70), datagram(t=1e308),
        datagram(fields={"name": "x", "step": 1 << 70}), datagram(fields=[1]), datagram(rank="a", fields="b"),
        datagram(kind="chaos-odd", fields={"text": "\udcff", "n": 1 << 66}), datagram(t=float("nan")),
        datagram(kind="exception", fields={"type": 3, "stack": {"a": 1}, "frames": 7}), datagram(pid=-5),
        datagram(fields={"name": ["x"], "step": "y"}), datagram(kind="saved", fields={"path": "\udc80"}),
    ]  # fmt: skip


def named(path: Path) -> str:
    for folder in path.parents:
        if (folder / "run.json").exists():
            try:
                return str(json.loads((folder / "run.json").read_bytes()).get("name"))
            except (ValueError, AttributeError):
                return ""
    return ""


def lines_of(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in text_of(path).splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def look_at_recording(path: Path, running: Running, job: JobFacts) -> str:
    """By SQLite itself, on a copy: ok, missing, or what is wrong."""
    if not path.exists():
        return "missing"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{end}", f"{copy}{end}")
        try:
            connection = sqlite3.connect(copy)
            try:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    return f"damaged: {found}"
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not tables:
                    return "missing"
                heard = [t for (t,) in connection.execute("SELECT t FROM event WHERE kind = 'agent:chaos'")]
            finally:
                connection.close()
        except sqlite3.Error as error:
            return f"damaged: {error}"
    job.heard = len(heard)
    if running.odd_at is not None:
        later = [t for t in running.journal().told if t > running.odd_at + 0.3]
        if len(later) >= 2:
            job.heard_after = any(t >= later[0] - 1e-6 for t in heard)
    return "ok"


# --- as a program ----------------------------------------------------------------------------------------------------------


def play(seed: int, kinds: tuple[str, ...], folder: Path) -> dict[str, Any]:
    drawn = plan.draw(seed, kinds)
    begun = time.monotonic()
    result: dict[str, Any] = {"seed": seed, "faults": list(kinds), "plan": str(drawn)}
    result["kinds"] = [fault.kind for fault in drawn.faults]
    violations: list[Violation] = []
    try:
        made = Round(drawn, folder)
    except Unavailable as error:
        return {**result, "unavailable": str(error), "violations": []}
    try:
        facts = made.run()
        violations = expect.judge(facts)
        result["jobs"] = len(facts.jobs)
        result["truths"] = [expect.describe(job) for job in facts.jobs]
        (folder / "facts.json").write_text(json.dumps(asdict(facts), indent=1, default=sorted))
    except Unavailable as error:
        result["unavailable"] = str(error)
    except Exception:
        violations = [Violation("driver-failed", traceback.format_exc()[-400:])]
    finally:
        made.close()
    (folder / "notes.txt").write_text("\n".join([str(drawn), *made.notes, *map(str, violations)]) + "\n")
    result["violations"] = [[one.name, one.job, one.text] for one in violations]
    result["seconds"] = round(time.monotonic() - begun, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults", default="")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    kinds = tuple(kind for kind in arguments.faults.split(",") if kind)
    print(json.dumps(play(arguments.seed, kinds, folder)), flush=True)


if __name__ == "__main__":
    main()
