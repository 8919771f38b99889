"""Settings: flag > OOMPROOF_* > [tool.oomproof] in pyproject.toml or oomproof.toml > the user's file > /etc/oomproof/config.toml."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from oomproof.errors import USAGE, OomproofError

SYSTEM = Path("/etc/oomproof/config.toml")


_LONGEST = 1 << 20  # bytes; a pyproject.toml has some thousand
_said: set[str] = set()  # files whose being passed over was told


def _load(path: Path, table: tuple[str, ...] = ()) -> dict[str, Any]:
    text = _trusted_text(path, table)
    if text is None:
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
    return OomproofError(f"cannot read {path}: {error}", "mend that file, or move it away", USAGE)


def _trusted_text(path: Path, table: tuple[str, ...]) -> str | None:
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
        _pass_over(path, foreign)
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
    if not table or b"oomproof" in data:  # most projects' pyproject.toml say nothing to us
        _pass_over(path, problem)
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


def _pass_over(path: Path, problem: str) -> None:
    """Told once: who wrote the file should learn why it does nothing."""
    if str(path) in _said:
        return
    _said.add(str(path))
    print(
        f"oomproof: passed over {path}: {problem}; settings are read from files of yours or root's "
        "that nobody else may write",
        file=sys.stderr,
    )


def _layers(folder: Path | None = None) -> list[tuple[Path, dict[str, Any]]]:
    """(file, its settings), the weightiest first: the nearest project file upwards, the user's own, the machine's."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    layers: list[tuple[Path, dict[str, Any]]] = []
    try:
        start: Path | None = folder or Path.cwd()
    except OSError:  # the folder was removed under us
        start = None
    for directory in (start, *start.parents) if start is not None else ():
        own, project = directory / "oomproof.toml", directory / "pyproject.toml"
        for path, values in ((own, _load(own)), (project, _load(project, ("tool", "oomproof")))):
            if values and not layers:
                layers.append((path, values))
        if layers:
            break
    for path in (Path(home) / "oomproof" / "config.toml", SYSTEM):
        values = _load(path)
        if values:
            layers.append((path, values))
    return [
        (path, {str(key).replace("-", "_"): value for key, value in values.items()})
        for path, values in layers
    ]


def file_settings(folder: Path | None = None) -> dict[str, Any]:
    """What all files say together. Keys as flags without dashes in front."""
    merged: dict[str, Any] = {}
    for _, values in reversed(_layers(folder)):
        merged.update(values)
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

    def origin(self, name: str) -> str:
        if name in self._files:
            return where(self._files[name], name)
        return f"OOMPROOF_{name.upper()}" if name in self._environment else f"--{name.replace('_', '-')}"


def resolve(flags: dict[str, Any], names: set[str], folder: Path | None = None) -> Resolved:
    """The value of each name: the flag when given (not None), else environment, else files, else None."""
    layers = _layers(folder)
    for path, values in layers:
        unknown = sorted(set(values) - names)
        if unknown:
            from difflib import get_close_matches

            near = get_close_matches(unknown[0], names, 1)
            raise OomproofError(
                f"{where(path, unknown[0], f'unknown setting {unknown[0]!r}')}"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                "" if near else f"known are: {', '.join(sorted(names))}",
                USAGE,
            )
    resolved = Resolved()
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


def ledger_setting() -> str | None:
    """The folder of a shared ledger, where somebody named one; for verbs that need no other setting."""
    value = os.environ.get("OOMPROOF_LEDGER") or file_settings().get("ledger")
    return str(value) if value else None
