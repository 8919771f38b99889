"""Settings: flag > OOMPROOF_* > [tool.oomproof] in pyproject.toml or oomproof.toml > the user's file > /etc/oomproof/config.toml."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError, did_you_mean

SYSTEM = Path("/etc/oomproof/config.toml")
_WHOSE = "settings are read from files of yours or root's that no other user may write"


_LONGEST = 1 << 20  # bytes; a pyproject.toml has some thousand
PassedOver = dict[str, str]  # file or variable -> why it does not count
# variables of ours that are no settings: what a run tells its job, and who looks for a bug
_NO_SETTINGS = {
    f"OOMPROOF_{name}"
    for name in (
        "RUN",
        "SAVE_FILE",
        "AGENT",
        "AGENT_SETTINGS",
        "AGENT_SOCKET",
        "DEBUG",
        "DISABLE",
        "NO_ALERTS",
        "METRIC_FILE",
        "TRIAL",
        "SWEEP_TRY",
    )
}
_FACTS = "OOMPROOF_ALERT_"  # what a command of --on-alert is told; a few settings begin alike
# Commands, and whom something is sent to: a folder that somebody cloned must not name them.
PERSONAL = frozenset(("on_alert", "on_end", "alert_desktop", "alert_webhook", "alert_mail"))
_PATHS = ("stop_file", "ledger")  # where we make files: a project's file names only what lies below it
_said: set[str] = set()  # files whose being passed over was told


def _load(path: Path, passed_over: PassedOver, table: tuple[str, ...] = ()) -> dict[str, Any]:
    text = _trusted_text(path, table, passed_over)
    if text is None or (table and table[-1] not in text):  # most projects' pyproject.toml say nothing to us
        return {}
    import tomllib  # only when there is something to read

    try:
        value: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    for key in table:
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, dict) else {}


def _unreadable(path: Path, error: Exception) -> OomproofError:
    return OomproofError(f"cannot read {path}: {error}", "correct that file, or move it away", USAGE)


def _trusted_text(path: Path, table: tuple[str, ...], passed_over: PassedOver) -> str | None:
    """What the file says, if only its owner could have written it; None where there is none to obey.

    Settings decide what is guarded and where our files go: whoever may write them commands our runs."""
    try:
        link, target = os.lstat(path), os.stat(path)
    except OSError:  # not there, or a folder on the way is closed to us (sudo -u with another's HOME)
        return None
    if not stat.S_ISREG(target.st_mode):
        return None
    try:
        # never waits, also where somebody puts a fifo there now
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        foreign = _problem_of_owner(target.st_uid)
        if foreign is None:
            raise _unreadable(path, error) from error
        passed_over[str(path)] = f"{foreign}; {_WHOSE}"
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)  # of what is read, whatever the name stands for by now
        if not stat.S_ISREG(status.st_mode):
            return None
        problem = _problem(status, fd) or _problem_of_owner(link.st_uid)
        try:
            data = file.read(_LONGEST)
            if problem is None:
                return data.decode()
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
    if not table or table[-1].encode() in data:
        passed_over[str(path)] = f"{problem}; {_WHOSE}"
    return None


def _problem_of_owner(uid: int) -> str | None:
    if uid in (0, os.geteuid()):
        return None
    import pwd

    try:
        return f"it belongs to {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"it belongs to user {uid}"


def _problem(status: os.stat_result, fd: int) -> str | None:
    owner = _problem_of_owner(status.st_uid)
    if owner is not None:
        return owner
    if status.st_mode & 0o002:
        return "everybody may write it"
    if status.st_mode & 0o020 and not _private_group(status, fd):
        return "its group may write it"
    return None


def _private_group(status: os.stat_result, fd: int) -> bool:
    """Whether the group is its owner alone, as on systems whose umask is 002."""
    import grp
    import pwd

    try:
        if "system.posix_acl_access" in os.listxattr(fd):  # the group's bits then stand for others too
            return False
    except (OSError, AttributeError):  # a file system or a system without them
        pass
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    alone = group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
    return alone and owner.pw_gid == status.st_gid


def _tell(passed_over: PassedOver) -> None:
    """Told once: who wrote the file should learn why it does nothing."""
    for path, problem in passed_over.items():
        if path not in _said:
            _said.add(path)
            print(f"oomproof: passed over {path}: {problem}", file=sys.stderr)


def user_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "oomproof" / "config.toml"


def _layers(folder: Path | None = None) -> tuple[list[tuple[Path, dict[str, Any]]], PassedOver]:
    """[(file, its settings)], the weightiest first: the nearest project file upwards, the user's own, the machine's."""
    passed_over: PassedOver = {}
    layers: list[tuple[Path, dict[str, Any]]] = []
    try:
        start: Path | None = folder or Path.cwd()
    except OSError:  # the folder was removed under us
        start = None
    for directory in (start, *start.parents) if start is not None else ():
        own, project = directory / "oomproof.toml", directory / "pyproject.toml"
        for path, values in (
            (own, _load(own, passed_over)),
            (project, _load(project, passed_over, ("tool", "oomproof"))),
        ):
            if values and not layers:
                layers.append((path, values))
            elif values:
                passed_over[str(path)] = f"{own.name} beside it comes first"
        if layers:
            break
    projects = [(path, _allowed(path, renamed(values), start, passed_over)) for path, values in layers]
    others = [(path, renamed(_load(path, passed_over))) for path in (user_file(), SYSTEM)]
    return projects + [(path, values) for path, values in others if values], passed_over


def _allowed(
    path: Path, values: dict[str, Any], start: Path | None, passed_over: PassedOver
) -> dict[str, Any]:
    """What a project's file may decide. ``start``: the folder that relative paths are meant from."""
    refused: dict[str, str] = {}
    for name in PERSONAL & values.keys():
        refused[name] = (
            "commands and receivers count only as a flag, "
            f"as the variable OOMPROOF_{name.upper()} or in {user_file()}, never from a project's file"
        )
    for name in _PATHS:
        below = os.path.realpath(path.parent)
        value = os.path.realpath(os.path.join(start or below, str(values.get(name) or below)))
        if os.path.commonpath((below, value)) != below:
            refused[name] = f"outside {below}; a project's file names only what lies below it"
    for name in sorted(refused):
        passed_over[where(path, name)] = refused[name]
    return {name: value for name, value in values.items() if name not in refused}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as flags without dashes in front, with underscores."""
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def file_settings(folder: Path | None = None) -> dict[str, Any]:
    """What all files say together. Keys as flags without dashes in front."""
    merged: dict[str, Any] = {}
    layers, passed_over = _layers(folder)
    for _, values in reversed(layers):
        merged.update(values)
    _tell(passed_over)
    return merged


def where(path: Path, key: str, text: str = "") -> str:
    """The file, the line and what is there (the key), for whoever has to fix it."""
    wanted = re.compile(rf"""\s*["']?{re.escape(key).replace("_", "[-_]")}["']?\s*=""")
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if wanted.match(line):
                return f"{path}, line {number}: {text or key}"
    except OSError:
        pass
    return f"{path}: {text or key}"


class Resolved(dict[str, Any]):
    """The value of each name; ``origin`` says where one came from, for errors."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, Path] = {}
        self._environment: set[str] = set()
        self.read: list[Path] = []  # files that say something, the weightiest first
        self.passed_over: PassedOver = {}

    def is_flag(self, name: str) -> bool:
        """Given on the command line."""
        return self.get(name) is not None and name not in self._files and name not in self._environment

    def source(self, name: str) -> str:
        """flag, variable, file or default."""
        if self.is_flag(name):
            return "flag"
        return "file" if name in self._files else "variable" if name in self._environment else "default"

    def origin(self, name: str) -> str:
        if name in self._files:
            return where(self._files[name], name)
        return f"OOMPROOF_{name.upper()}" if name in self._environment else f"--{name.replace('_', '-')}"


def resolve(
    flags: dict[str, Any], names: set[str], folder: Path | None = None, tell: bool = True
) -> Resolved:
    """The value of each name: the flag when given (not None), else environment, else files, else None.

    ``tell``: say which files were passed over."""
    layers, passed_over = _layers(folder)
    passed_over |= _misspelt(names)
    if tell:
        _tell(passed_over)
    for path, values in layers:
        unknown = sorted(set(values) - names)
        if unknown:
            near = did_you_mean(unknown[0], names)
            raise OomproofError(
                f"{where(path, unknown[0], f'unknown setting {unknown[0]!r}')}{near}",
                "" if near else f"known are: {', '.join(sorted(names))}",
                USAGE,
            )
    resolved = Resolved()
    resolved.read, resolved.passed_over = [path for path, _ in layers], passed_over
    for name in names:
        value = flags.get(name)
        if value is None and not (name == "stop_file" and "OOMPROOF_RUN" in os.environ):
            # inside another run OOMPROOF_STOP_FILE is that run's own, not a request for this one
            value = os.environ.get(f"OOMPROOF_{name.upper()}")
            if value is not None:
                resolved._environment.add(name)
        if value is None:
            for path, values in layers:
                if name in values:
                    value = values[name]
                    resolved._files[name] = path
                    break
        resolved[name] = value
    return resolved


def _misspelt(names: set[str]) -> PassedOver:
    """Variables that are like a setting, and none."""
    known = {f"OOMPROOF_{name.upper()}" for name in names}
    return {
        variable: f"unknown setting{near}"
        for variable in sorted(set(os.environ) - known - _NO_SETTINGS)
        if variable.startswith("OOMPROOF_")
        and not (variable.startswith(_FACTS) and f"{_FACTS}KIND" in os.environ)
        and (
            near := did_you_mean(
                variable.removeprefix("OOMPROOF_"), (name.upper() for name in names), "OOMPROOF_"
            )
        )
    }


def ledger_setting() -> str | None:
    """The folder of a shared ledger, where somebody named one; for verbs that need no other setting."""
    value = os.environ.get("OOMPROOF_LEDGER") or file_settings().get("ledger")
    return str(value) if value else None
