"""Run folders: where they are, which attempts are in them, which of them still live."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from oomproof.errors import OUR_FAILURE, USAGE, OomproofError, did_you_mean
from oomproof.leaf import attempt_names
from oomproof.leaf.small_files import is_locked
from oomproof.machine import processes
from oomproof.machine.host_identity import host_name, machine_id
from oomproof.printable import one_line
from oomproof.recording import json_shapes
from oomproof.recording.attempt import Attempt, FileIn, is_damaged
from oomproof.recording.state_files import make_private, read_json, state_folder
from oomproof.records import dataclass

SCHEMA = 1
ELSEWHERE = "on another host"  # a run that has not ended, of a machine that shares this home


def fixes_were_applied() -> bool:
    """Whether `oomproof fix` ever changed a file: most users' runs need not ask further."""
    return os.path.isdir(fixes_folder())


def fixes_folder() -> Path:
    return state_folder() / "fixes"


@dataclass(frozen=True)
class Run:
    """One run's folder, seen from its newest attempt, or from the one with that ``number``. Everything is read when asked for:
    a run of now changes under us."""

    folder: Path
    number: int | None = None

    info_file = FileIn("run.json")  # what was asked for; written before the start, once
    waiting_file = FileIn("waiting.json")  # there while it waits for memory
    waiting_lock = FileIn("waiting.lock")  # each held for as long as its process lives
    keeper_lock = FileIn(attempt_names.KEEPER_LOCK)
    guard_lock = FileIn(attempt_names.GUARD_LOCK)

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def info(self) -> dict[str, Any]:
        """run.json, with what the attempt has of its own. Kept once it could be read: there may have been no descriptor for it."""
        kept: dict[str, Any] = self.__dict__.get("_info") or {}
        if not kept:
            kept = json_shapes.shaped(read_json(self.info_file), json_shapes.RUN)
            kept = {**kept, **self.attempt.own_info()} if kept else {}
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
    def limit(self) -> int | None:
        """The user's; else the cap that was set so that the machine keeps its floor."""
        asked = (self.info.get("settings") or {}).get("limit")
        return asked or (self.started().get("backend") or {}).get("limit")

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the history. A damaged run.json has no date; then the id has one."""
        return self.created or _time_of(self.id), self.id

    @property
    def attempt(self) -> Attempt:
        """The newest, or the one that is meant. A front that was killed before it could start another has made none."""
        if self.number is not None:
            return Attempt(self.folder / str(self.number))
        numbers = sorted(self._numbers()) or [1]
        newest = Attempt(self.folder / str(numbers[-1]))
        if len(numbers) == 1 or newest.was_begun() or self.guard_lives() or newest.was_begun():
            return newest
        return Attempt(self.folder / str(numbers[-2]))

    def attempts(self) -> list[Attempt]:
        """Oldest first; one that was never started is none."""
        newest = self.at(None).attempt.number or 1
        return [Attempt(self.folder / str(number)) for number in sorted(self._numbers()) if number <= newest]

    def attempt_of(self, number: int | None) -> Attempt:
        """That one; the newest when a verdict does not say."""
        return Attempt(self.folder / str(number)) if number else self.attempt

    def at(self, number: int | None) -> Run:
        """The same run, seen from that attempt; None: from its newest."""
        return Run(self.folder, number)

    def is_earlier(self) -> bool:
        """Whether it is seen from an attempt that another one followed."""
        return self.number is not None and self.number < (self.at(None).attempt.number or 1)

    def retries(self) -> int:
        """How often it may be tried again after a death of memory."""
        return int((self.info.get("settings") or {}).get("retry") or 0)

    def may_be_retried(self) -> bool:
        """Its attempt has ended, and its front, which decides whether another follows, is still there."""
        return bool(self.retries()) and self.guard_lives()

    def new_attempt(self) -> Run:
        """The folder of the next one, and the run seen anew. By the front alone, which has the guard's lock."""
        number = max(self._numbers(), default=0) + 1
        try:
            (self.folder / str(number)).mkdir(mode=0o700)
        except OSError as error:
            raise OomproofError(
                f"cannot make the next attempt in {self.folder}: {error.strerror}", "free some space there"
            ) from error
        run = Run(self.folder)
        if run.attempt.number != number:  # its files would go into the one before
            (self.folder / str(number)).rmdir()
            raise OomproofError(f"{self.guard_lock} could not be locked", "free some space there")
        return run

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except OSError:  # removed meanwhile
            return []
        return [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10]

    def started(self) -> dict[str, Any]:
        return self.attempt.started()

    def exit(self) -> dict[str, Any]:
        return self.attempt.exit()

    def damage(self) -> str | None:
        """Which of its files cannot be read, or hold what does not belong there; None: none of them."""
        problems = [self.info_file.name] if is_damaged(self.info_file, json_shapes.RUN) else []
        problems += self.attempt.damage()
        return f"damaged: {', '.join(problems)}" if problems else None

    def pause_mark(self) -> dict[str, Any]:
        return self.attempt.pause_mark()

    def paused(self) -> bool:
        """Meant to be paused, or without its GPU memory; also when nobody guards it."""
        return bool(self.pause_mark()) or self.attempt.gpu_paused_file.exists()

    def keeper_lives(self) -> bool:
        """Whether the run is active. An adopted process has no keeper: there it is the process itself."""
        if self.info.get("adopted"):
            return self.job_lives()
        return is_locked(self.keeper_lock)

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
        """Whether its front waits for memory."""
        return is_locked(self.waiting_lock)

    def waits_for(self) -> list[str]:
        """What it waits for and who is in the way, as its front last said it."""
        waiting = json_shapes.shaped(read_json(self.waiting_file), json_shapes.WAITING)
        return [one_line(line) for line in waiting.get("reasons") or ()] if self.waits() else []

    def guard_lives(self) -> bool:
        return is_locked(self.guard_lock)

    def elsewhere(self, boot_id: str | None = None) -> str | None:
        """The host it ran or runs on, where that is not this machine: its processes cannot be seen from here."""
        boot = boot_id if boot_id is not None else processes.boot_id()
        if self.info.get("boot_id", boot) == boot:
            return None
        return other_host(self.info)

    def is_ours(self) -> bool:
        """Whether its folder belongs to whoever runs this."""
        try:
            return self.folder.stat().st_uid == os.geteuid()
        except OSError:
            return False

    def limit_enforcer(self) -> str:
        """Who holds it to its limit, in words: "the kernel (cgroup v2)", "oomproof"."""
        backend = self.started().get("backend") or {}
        return f"the kernel ({backend['name']})" if backend.get("memory") else "oomproof" if backend else ""

    def state(self, boot_id: str | None = None) -> str:
        """on another host, waiting, running, paused, unguarded, ended, machine went down, failed to start, vanished."""
        if self.elsewhere(boot_id) is not None and not self.exit():
            return ELSEWHERE
        if self.is_earlier():
            return "ended" if self.attempt.has_ended() else "vanished"
        if self.waits():
            return "waiting"
        started = self.started()  # looked at before the keeper, who is there before it is written
        if self.attempt.has_ended():
            return "ended"
        if self.keeper_lives():
            if not self.guard_lives():
                return "unguarded"
            return "paused" if self.paused() else "running"
        if self.attempt.has_ended():  # written before the keeper went, perhaps since we looked
            return "ended"
        boot = boot_id if boot_id is not None else processes.boot_id()
        if (started or self.info).get("boot_id", boot) != boot:
            return "machine went down"
        if not started:
            return "starting" if self.guard_lives() else "failed to start"
        # keeper gone, no exit status, same boot: the keeper was killed too, perhaps without the job
        return "unguarded" if self.job_lives() else "vanished"


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
    listed = [Run(folder / name) for name in names if os.path.exists(Run(folder / name).info_file)]
    return sorted(listed, key=lambda run: run.place, reverse=True)


def newest_runs(count: int) -> list[Run]:
    """Those whose ids, which begin with the time, are the newest; without a look into any of them."""
    try:
        names = sorted(os.listdir(runs_folder()), reverse=True)[:count]
    except OSError:
        return []
    return [Run(runs_folder() / name) for name in names]


def _time_of(run_id: str) -> float:
    """When a run of that id began."""
    try:
        return time.mktime(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


ALIVE = ("running", "paused", "unguarded", "starting", "waiting")


def find(text: str | None, states: Collection[str] = (), *, beginnings: bool = True) -> Run:
    """By id, by a unique beginning (unless without ``beginnings``) or end of one, or by name (the newest of that name).

    ``states`` are those a verb applies to: of several runs of one name, or of all for None, it means the newest in one of
    them; the newest that lives where there is none, then the newest at all."""
    runs = list_runs()
    if not runs:
        raise OomproofError("there are no runs yet", "start one: oomproof run -- python train.py", USAGE)
    if text is None:
        return _first_in(states, runs)
    if not text.strip():  # an unset variable of a script; it begins every id
        raise OomproofError("an empty text names no run", "list them: oomproof runs", USAGE)
    for run in runs:
        if run.id == text:
            return run
    if (of_attempt := _attempt_of(text, states, beginnings)) is not None:
        return of_attempt
    if named := [run for run in runs if run.info.get("name") == text]:
        return _first_in(states, named)
    matching = [
        run for run in runs if (beginnings and run.id.startswith(text)) or run.id.endswith(f"-{text}")
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        choices = ", ".join(run.id for run in matching[:4])
        raise OomproofError(f"{text!r} fits {len(matching)} runs: {choices}", "give more of the id", USAGE)
    if begun := next((run for run in runs if run.id.startswith(text)), None):
        hint = f"give the whole id, or its end: {begun.id}"
        raise OomproofError(f"{text!r} is only the beginning of an id", hint, USAGE)
    near = did_you_mean(text, [str(name) for run in runs if (name := run.info.get("name"))])
    raise OomproofError(f"no run is called {text!r}{near}", "list them: oomproof runs", USAGE)


def _attempt_of(text: str, states: Collection[str], beginnings: bool) -> Run | None:
    """Of ``big/1``; None where the text is no such thing."""
    name, slash, number = text.rpartition("/")
    if not slash or not name or not number.isdecimal() or len(number) > 6:
        return None
    run = find(name, states, beginnings=beginnings)
    numbers = [attempt.number for attempt in run.attempts()]
    if int(number) not in numbers:
        count = "one attempt" if len(numbers) == 1 else f"{len(numbers)} attempts"
        raise OomproofError(f"{run.name} has {count}", f"oomproof runs show {to_type(run)}", USAGE)
    return run.at(int(number))


def easy_to_type(name: str) -> bool:
    """Short, and no shell makes anything else of it."""
    return len(name) <= 24 and shlex.quote(name) == name


def to_type(run: Run) -> str:
    """What a command calls it by: a short plain name that means this run and no newer one; else its id."""
    name, attempt = run.info.get("name"), f"/{run.number}" if run.number is not None else ""
    if name != run.name or not easy_to_type(name):
        return run.id + attempt
    same = next((other for other in list_runs() if other.info.get("name") == name), None)
    return (name if same is not None and same.id == run.id else run.id) + attempt


def _first_in(states: Collection[str], runs: list[Run]) -> Run:
    """The newest a verb applies to. What lives comes before what has ended: "already paused" says more than "not running"."""
    living = None
    for run in runs if states else ():
        state = run.state()
        if state in states:
            return run
        if living is None and state in ALIVE:
            living = run
    return living or runs[0]


def find_alive(text: str | None, states: Collection[str], status: int = OUR_FAILURE) -> Run:
    """As ``find_here``, for whoever acts on what lives: where nothing does, nobody named the newest that has ended."""
    run = find_here(text, states)
    if text is None and run.state() not in ALIVE:
        raise OomproofError("no run is running", "what ran: oomproof runs", status)
    return run


def find_here(text: str | None, states: Collection[str] = ()) -> Run:
    """As ``find``, for whoever acts on processes. Raises for a run of another host: pids there are others' here; and for an attempt
    that another one followed."""
    run = find(text, states)
    if run.is_earlier():
        newest = run.at(None)
        raise OomproofError(
            f"attempt {run.number} of {newest.name} has ended", f"name the run: {to_type(newest)}", USAGE
        )
    run = run.at(None) if run.number is not None else run
    if run.state() == ELSEWHERE:
        host = run.elsewhere()
        raise OomproofError(
            f"{run.name} is on {host}, not visible from here",
            f"do it there: ssh {host}; its id is {run.id}",
        )
    return run
