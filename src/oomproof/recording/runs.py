"""Run folders: where they are, what is in them, which of them still live."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomproof.errors import OUR_FAILURE, USAGE, OomproofError
from oomproof.machine import processes
from oomproof.machine.identity import host_name, machine_id
from oomproof.printable import one_line
from oomproof.recording import shapes
from oomproof.recording.json_text import parse

SCHEMA = 1
FROZEN = "frozen.json"  # in the attempt's folder while the job is meant to stand still
ELSEWHERE = "on another host"  # a run that has not ended, of a machine that shares this home
GPU_PAUSED = "gpu_paused.json"  # ... while its GPU memory is given back


def state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "oomproof"


def make_private(folder: Path) -> Path:
    """The folder, there and closed to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():  # root may write there too, and its owner may lay links
            raise PermissionError(errno.EPERM, "it belongs to another user")
        folder.chmod(0o700)
    except OSError as error:
        raise OomproofError(
            f"cannot use the state folder {folder}: {error.strerror}",
            "set XDG_STATE_HOME to a folder of your own, for example XDG_STATE_HOME=$(mktemp -d)",
            OUR_FAILURE,
        ) from error
    return folder


def write_all(fd: int, data: bytes) -> None:
    """All of it: a disk that fills up takes a part first, and says so only at the next write."""
    while data:
        written = os.write(fd, data)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]


def write_json(path: Path, value: object) -> None:
    """All or nothing, also over a power cut: written beside, synced, renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, json.dumps(value, indent=1).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the old file stands; half a new one would only fill the disk
            temporary.unlink()
        raise OomproofError(
            f"cannot write {path}: {error.strerror}", "free some space there, or set XDG_STATE_HOME elsewhere"
        ) from error


def sync(path: Path) -> None:
    """So that a file written without a sync outlives a power cut. What cannot be synced is there all the same."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        pass


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty when it is absent, cut or not ours: a reader shows what there is."""
    try:
        value = parse(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def exit_file(attempt: Path) -> Path:
    """exit.json; where that name could not be had (a folder made read-only), the file the keeper had reserved for it."""
    reserved = attempt / ".exit.json"
    return attempt / "exit.json" if not read_json(reserved) else reserved


APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def append(path: Path, line: bytes) -> bool:
    """A line at the end, synced; False when it could not be written. A full disk costs the line, not the caller."""
    try:
        fd = os.open(path, APPEND, 0o600)
    except OSError:
        return False
    try:
        return _append_to(fd, line)
    finally:
        os.close(fd)


def _append_to(fd: int, line: bytes) -> bool:
    try:
        write_all(fd, line)
        getattr(os, "fdatasync", os.fsync)(fd)  # macOS has only the latter
    except OSError:
        return False
    return True


def append_line(path: Path, value: dict[str, object]) -> bool:
    return append(path, json.dumps(value).encode() + b"\n")


def append_to(fd: int, value: dict[str, object]) -> bool:
    """The same for a file that was opened (``APPEND``) while a descriptor could be had."""
    return _append_to(fd, json.dumps(value).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        for line in path.read_bytes().splitlines():
            try:
                value = parse(line.decode())
            except ValueError:  # cut in the middle by a crash
                continue
            if isinstance(value, dict):
                found.append(value)
    except OSError:
        pass
    return found


def take_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None when somebody else does. It goes with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:  # perhaps only a reader's glance (is_locked), gone in microseconds
            time.sleep(0.005)
    os.close(fd)
    return None


def is_locked(path: Path) -> bool:
    """Whether a living process holds it: true for just as long as that process lives."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@dataclass(frozen=True)
class Run:
    """One run's folder. Everything is read when asked for: a run of now changes under us."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def info(self) -> dict[str, Any]:
        """run.json. Kept once it could be read: there may have been no descriptor for it."""
        kept: dict[str, Any] = self.__dict__.get("_info") or {}
        if not kept:
            kept = shapes.shaped(read_json(self.folder / "run.json"), shapes.RUN)
            self.__dict__["_info"] = kept  # the dataclass is frozen, as is what it stands for
        return kept

    @property
    def name(self) -> str:
        return one_line(str(self.info.get("name") or self.id))

    @property
    def argv(self) -> list[str]:
        return [str(word) for word in self.info.get("argv") or ()]

    @property
    def created(self) -> float:
        return float(self.info.get("created") or 0.0)

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the history. A damaged run.json has no date; then the id has one."""
        return self.created or _time_of(self.id), self.id

    @property
    def attempt(self) -> Path:
        """The newest attempt's folder."""
        try:
            names = os.listdir(self.folder)
        except OSError:  # removed meanwhile
            names = []
        numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10]
        return self.folder / str(max(numbers, default=1))

    def started(self) -> dict[str, Any]:
        return shapes.shaped(read_json(self.attempt / "started.json"), shapes.STARTED)

    def exit(self) -> dict[str, Any]:
        return shapes.shaped(read_json(exit_file(self.attempt)), shapes.EXIT)

    def has_ended(self) -> bool:
        """Also when what its keeper wrote cannot be read any more."""
        return bool(self.exit()) or os.path.exists(f"{self.attempt}/exit.json")

    def damage(self) -> str | None:
        """Which of its files cannot be read, or hold what does not belong there; None: none of them."""
        attempt, found = self.attempt, []
        for path, shape in (
            (self.folder / "run.json", shapes.RUN),
            (attempt / "started.json", shapes.STARTED),
            (attempt / "exit.json", shapes.EXIT),
        ):
            value = read_json(path)
            if (not value and path.exists()) or shapes.wrong(value, shape):
                found.append(path.name)
        return f"damaged: {', '.join(found)}" if found else None

    def frozen(self) -> dict[str, Any]:
        """Who made the job stand still, since when, until when; empty when nobody did."""
        return shapes.shaped(read_json(self.attempt / FROZEN), shapes.MARK)

    def keeper_lives(self) -> bool:
        """Whether the run goes on. An adopted process has no keeper: there it is the process itself."""
        if self.info.get("adopted"):
            return self.job_lives()
        return is_locked(self.folder / "keeper.lock")

    def job_lives(self) -> bool:
        """Whether the job's first process lives, whoever keeps it."""
        started = self.started()
        job = started.get("job")
        if not isinstance(job, dict) or not isinstance(job.get("pid"), int):
            return False
        return started.get("boot_id") == processes.boot_id() and processes.is_alive(
            job["pid"], job.get("start")
        )

    def waits(self) -> bool:
        """Whether its front waits for room."""
        return is_locked(self.folder / "waiting.lock")

    def guard_lives(self) -> bool:
        return is_locked(self.folder / "guard.lock")

    def elsewhere(self, boot_id: str | None = None) -> str | None:
        """The host it ran or runs on, where that is not this machine: its processes cannot be seen from here."""
        boot = boot_id if boot_id is not None else processes.boot_id()
        if self.info.get("boot_id", boot) == boot:
            return None
        return other_host(self.info)

    def state(self, boot_id: str | None = None) -> str:
        """on another host, waiting, running, frozen, lost its guard, ended, machine went down, failed to start, vanished."""
        if self.elsewhere(boot_id) is not None and not self.exit():
            return ELSEWHERE
        if self.waits():
            return "waiting"
        started = self.started()  # looked at before the keeper, who is there before it is written
        if self.has_ended():
            return "ended"
        if self.keeper_lives():
            if not self.guard_lives():
                return "lost its guard"
            paused = self.frozen() or (self.attempt / GPU_PAUSED).exists()
            return "frozen" if paused else "running"
        if self.has_ended():  # written before the keeper went, perhaps since we looked
            return "ended"
        boot = boot_id if boot_id is not None else processes.boot_id()
        if (started or self.info).get("boot_id", boot) != boot:
            return "machine went down"
        if not started:
            return "starting" if self.guard_lives() else "failed to start"
        # keeper gone, no exit status, same boot: the keeper was killed too, perhaps without the job
        return "lost its guard" if self.job_lives() else "vanished"


def other_host(info: dict[str, Any]) -> str | None:
    """The host that wrote this ``run.json``, if it was another machine than this one. A boot alone does not tell.

    Both count: nodes of a cluster may share one image with its machine id, or all be called localhost."""
    host, machine = str(info.get("host") or ""), info.get("machine")
    mine = machine_id() if machine else ""
    if (host and host != host_name()) or (machine and mine and machine != mine):
        return one_line(host) or "another host"
    return None


def runs_folder() -> Path:
    return state_folder() / "runs"


def new_run() -> Run:
    """A folder nobody else has; its name sorts by time and ends in three letters easy to type."""
    runs = make_private(make_private(state_folder()) / "runs")
    while True:
        tail = "".join("abcdefghijkmnpqrstuvwxyz23456789"[byte % 32] for byte in os.urandom(3))
        folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{tail}"
        try:
            folder.mkdir(mode=0o700)
            (folder / "1").mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise OomproofError(
                f"cannot make a run folder in {runs}: {error.strerror}",
                "free some space there, or set XDG_STATE_HOME to a folder you may write",
            ) from error
        return Run(folder)


def list_runs() -> list[Run]:
    """Newest first."""
    folder = runs_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [Run(folder / name) for name in names if os.path.exists(f"{folder}/{name}/run.json")]
    return sorted(found, key=lambda run: run.place, reverse=True)


def _time_of(run_id: str) -> float:
    """When a run of that id began."""
    try:
        return time.mktime(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def find(text: str | None) -> Run:
    """By id, by a unique beginning or end of one, or by name (the newest of that name); None means the newest run."""
    runs = list_runs()
    if not runs:
        raise OomproofError("there are no runs yet", "start one: oomproof run -- python train.py", USAGE)
    if text is None:
        return runs[0]
    for run in runs:
        if run.id == text:
            return run
    for run in runs:
        if run.info.get("name") == text:
            return run
    found = [run for run in runs if run.id.startswith(text) or run.id.endswith(f"-{text}")]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(run.id for run in found[:4])
        raise OomproofError(f"{text!r} fits {len(found)} runs: {choices}", "give more of the id", USAGE)
    raise OomproofError(f"no run is called {text!r}", "list them: oomproof runs", USAGE)


def find_here(text: str | None) -> Run:
    """As ``find``, for whoever acts on processes. Raises for a run of another host: pids there are others' here."""
    found = find(text)
    if found.state() == ELSEWHERE:
        host = found.elsewhere()
        raise OomproofError(
            f"{found.name} is on {host}, not visible from here",
            f"do it there: ssh {host}; its id is {found.id}",
        )
    return found
