"""A sweep on disk: its folder, what was ordered, its log, and the lock of the process that drives it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean
from oomproof.leaf.small_files import is_locked
from oomproof.ledger.budget import current_budget
from oomproof.machine import nvidia, processes
from oomproof.machine.host_identity import host_name, machine_id
from oomproof.recording.attempt import FileIn
from oomproof.recording.run_folders import other_host
from oomproof.recording.state_files import (
    append_line,
    make_private,
    read_json,
    read_lines,
    state_folder,
    take_lock,
    write_json,
)
from oomproof.records import asdict, dataclass, replace
from oomproof.runner.run_flags import of_run
from oomproof.sweeps.search_space import SearchSpace, space_from_json
from oomproof.sweeps.sweep_trials import SweepLog, fold
from oomproof.sweeps.trial_plans import Knobs, knobs_from_json

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class Sweep:
    folder: Path

    info_file = FileIn("sweep.json")  # what was asked for; written once
    log_file = FileIn("trials.jsonl")  # what became of it, a line an event
    storage_file = FileIn("optuna.sqlite")
    lock_file = FileIn("driver.lock")  # held for as long as somebody drives it
    driver_file = FileIn("driver.json")  # who that is
    stop_file = FileIn("stop")  # there when it is asked to stop: "now", or "finish" what runs

    @property
    def name(self) -> str:
        return self.folder.name

    def info(self) -> dict[str, Any]:
        """Raises OomproofError where it cannot be read."""
        value = read_json(self.info_file)
        if not value:
            raise OomproofError(
                f"{self.info_file} cannot be read", f"remove the sweep: rm -r {self.folder}", USAGE
            )
        if value.get("schema") != SCHEMA:
            raise OomproofError(f"sweep {self.name} is of a newer oomproof", "use that one", USAGE)
        return value

    def log(self) -> SweepLog:
        return fold(read_lines(self.log_file))

    def record(self, event: str, **fields: Any) -> dict[str, Any]:
        """Written down before it counts. Raises OomproofError where it cannot be: nothing more may be started then."""
        line: dict[str, Any] = {"event": event, "wall": time.time(), **fields}
        if not append_line(self.log_file, line):
            raise OomproofError(
                f"cannot write {self.log_file}",
                f"free some space there, then: oomproof sweep resume {self.name}",
            )
        return line

    @cached_property
    def token(self) -> str:
        """Tells its runs from those of an earlier sweep of the same name."""
        return str(self.info().get("token"))

    def trial_folder(self, number: int, attempt: int) -> Path:
        return self.folder / "trials" / f"{number}.{attempt}"

    def is_driven(self) -> bool:
        return is_locked(self.lock_file)

    def driver(self) -> str:
        """Who drives it, in words."""
        value = read_json(self.driver_file)
        since = time.strftime("%F %H:%M", time.localtime(float(value.get("since") or 0.0)))
        host = value.get("host")
        where = f" on {host}" if host and host != host_name() else ""
        return f"pid {value.get('pid', '?')}{where} since {since}"

    def take(self) -> int:
        """The lock's descriptor, for as long as this process lives. Raises OomproofError when somebody else has it."""
        lock = take_lock(self.lock_file)
        if lock is None:
            raise OomproofError(
                f"sweep {self.name} is run by {self.driver()}", f"oomproof sweep status {self.name}", USAGE
            )
        pid = os.getpid()
        write_json(
            self.driver_file,
            {"pid": pid, "start": processes.start_time(pid), "host": host_name(), "since": time.time()},
        )
        self.stop_file.unlink(missing_ok=True)
        return lock

    def mend(self) -> None:
        """A power cut may have left half a line: the next one must not be glued to it. For whoever holds the lock."""
        try:
            with open(self.log_file, "rb+") as file:
                if (
                    file.seek(0, os.SEEK_END)
                    and file.seek(-1, os.SEEK_END) is not None
                    and file.read(1) != b"\n"
                ):
                    file.write(b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise OomproofError(
                f"cannot write {self.log_file}: {error.strerror}", "free some space there"
            ) from error

    def elsewhere(self) -> str | None:
        """The host whose sweep it is, where that is another one."""
        return other_host(self.info())


def sweeps_folder() -> Path:
    return state_folder() / "sweeps"


def create(name: str, info: dict[str, Any]) -> Sweep:
    """Raises OomproofError, also when there is one of that name."""
    make_private(state_folder())
    folder = make_private(sweeps_folder()) / name
    sweep = Sweep(folder)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)  # one that was killed before it was anything
        lock = take_lock(sweep.lock_file)  # two of one name may be begun at once
    except OSError as error:
        raise OomproofError(f"cannot make {folder}: {error.strerror}", "free some space there") from error
    if lock is not None and sweep.info_file.exists():
        os.close(lock)
        lock = None
    if lock is None:
        raise OomproofError(
            f"there is a sweep {name} already",
            f"continue it: oomproof sweep resume {name}; or give another --name",
            USAGE,
        )
    identity = {
        "host": host_name(),
        "machine": machine_id(),
        "boot_id": processes.boot_id(),
        "token": os.urandom(6).hex(),
    }
    try:
        write_json(
            sweep.info_file, {"schema": SCHEMA, "name": name, "created": time.time(), **identity, **info}
        )
    finally:
        os.close(lock)
    return sweep


def check_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in ACTIONS:
        raise OomproofError(f"{name!r} cannot be a sweep's name", "letters, digits, dots and dashes", USAGE)
    return name


def new_name(wanted: str) -> str:
    """A name nobody has: what it is of, and three letters."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")[:40] or "sweep"
    while True:
        name = f"{base}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(3))}"
        if not (sweeps_folder() / name).exists():
            return name


ACTIONS = ("resume", "status", "estimate", "stop", "list")


def list_sweeps() -> list[Sweep]:
    """Newest first."""
    try:
        names = os.listdir(sweeps_folder())
    except OSError:
        return []
    sweeps = [sweep for name in names if (sweep := Sweep(sweeps_folder() / name)).info_file.exists()]
    return sorted(
        sweeps,
        key=lambda sweep: (float(read_json(sweep.info_file).get("created") or 0.0), sweep.name),
        reverse=True,
    )


def find(name: str | None) -> Sweep:
    """The newest for None; by its name, or a unique beginning or end of it. Raises OomproofError."""
    sweeps = list_sweeps()
    if not sweeps:
        raise OomproofError(
            "there are no sweeps yet",
            "oomproof sweep --param lr=1e-4,1e-3 -- python train.py --lr {lr}",
            USAGE,
        )
    if name is None:
        return sweeps[0]
    matching = [sweep for sweep in sweeps if sweep.name == name] or [
        sweep for sweep in sweeps if name and (sweep.name.startswith(name) or sweep.name.endswith(f"-{name}"))
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        choices = ", ".join(sweep.name for sweep in matching[:4])
        raise OomproofError(
            f"{name!r} fits {len(matching)} sweeps: {choices}", "give more of the name", USAGE
        )
    near = did_you_mean(name, [sweep.name for sweep in sweeps])
    raise OomproofError(f"no sweep is called {name!r}{near}", "list them: oomproof sweep list", USAGE)


RUN_FLAGS = ("limit", "gpu_limit", "grace")  # handed to every trial as they were typed
_CARD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SweepOrder:
    words: tuple[str, ...]
    cwd: str
    space: SearchSpace
    knobs: Knobs
    settings: Mapping[str, Any]  # limit, need, gpu_need, gpu_limit, grace: as typed; parallel
    by_config: bool  # its values also reach wandb.config
    seed: int

    @property
    def parallel(self) -> int:
        return int(self.settings.get("parallel") or 1)

    @property
    def total(self) -> int | None:
        """How many trials; None: that is not known."""
        points, trials = self.space.points, self.space.trials
        known = [count for count in (points, trials) if count is not None]
        return min(known) if known else None

    def as_json(self) -> dict[str, Any]:
        known = asdict(self)
        return {"command": list(known.pop("words")), **known}


def order_of(sweep: Sweep, log: SweepLog) -> SweepOrder:
    """Raises OomproofError where it is damaged."""
    info = sweep.info()
    try:
        space = space_from_json(info["space"])
        changed = dict(log.settings)
        space = replace(space, trials=changed.pop("trials", space.trials))
        return SweepOrder(
            tuple(str(word) for word in info["command"]),
            str(info["cwd"]),
            space,
            knobs_from_json(info["knobs"]),
            {**info["settings"], **changed},
            bool(info["by_config"]),
            int(info["seed"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise OomproofError(
            f"{sweep.info_file} is damaged ({error})", f"remove it: rm -r {sweep.folder}"
        ) from error


def budget_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """What a trial may hold at most when it is alone on this machine: host, and gpu where there is one. What was not typed is
    as `oomproof run` would have it, from variables and settings files."""
    chosen = of_run({name: settings.get(name) for name in ("limit", "gpu_limit")})
    budget = {"host": current_budget(chosen.margin).ever}
    if chosen.limit is not None:
        budget["host"] = min(budget["host"], chosen.limit)
    if nvidia.driver_present():
        from oomproof.machine.gpu import Query  # only where a driver is

        totals = [
            card.total for card in Query().answer(_CARD_SECONDS).gpus if card.total and not card.unified
        ]
        limits = [held for held, _ in chosen.gpu_limit if held]
        if totals:
            budget["gpu"] = min([max(totals), *limits[:1]])
    return budget
