"""Finds what a Python program would run that a user other than root could change: a service of root must not start it.

Checked are the interpreter, pyvenv.cfg, the libraries it maps, and everything it can import from; of each the folders above
it and the links on the way.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import subprocess
from collections.abc import Mapping

from oomproof.errors import OomproofError

_HINT = (
    "install it where only root can write: sudo /usr/bin/python3 -m venv /opt/oomproof && "
    "sudo /opt/oomproof/bin/pip install oomproof"
)
_LINKS = 40  # on one path, as in the kernel
_SECONDS = 120.0
# What such an interpreter imports from: folders, and modules that an import hook finds elsewhere (editable installations).
_PROBE = """\
import json, os, sys
import oomproof.cli.guard
modules = list(sys.modules.values())
folders = [*sys.path, *(path for module in modules for path in getattr(module, "__path__", ()))]
files = [module.__file__ for module in modules if getattr(module, "__file__", None)]
if os.path.exists("/proc/self/maps"):
    with open("/proc/self/maps") as maps:
        rows = [line.rstrip("\\n").split(None, 5) for line in maps]
    files += [row[5] for row in rows if "x" in row[1] and len(row) == 6 and row[5][0] == "/"]
print(json.dumps([list(dict.fromkeys(folders)), list(dict.fromkeys(files))]))
"""


def refuse_others_code(python: str, environment: Mapping[str, str]) -> None:
    """Raises OomproofError if another user could change what ``python -P`` runs with exactly that environment in ``/``."""
    folder = os.path.dirname(python)
    for path in (python, f"{folder}/pyvenv.cfg", f"{os.path.dirname(folder)}/pyvenv.cfg"):
        _refuse_path(path)
    try:
        done = subprocess.run(
            [python, "-P", "-c", _PROBE], env=environment, cwd="/", capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OomproofError(f"{python} does not start: {error}", _HINT) from error
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise OomproofError(
            f"{python} does not find oomproof without a user's own packages and variables: {problem}", _HINT
        )
    folders, files = json.loads(done.stdout)
    for path in files:
        _refuse_path(os.path.join("/", path))
    seen: set[tuple[int, int]] = set()
    for path in folders:
        _refuse_path(os.path.join("/", path))
        _refuse_below(os.path.join("/", path), seen)


def who_could_change(mode: int, uid: int, gid: int, on_the_way: bool) -> str:
    """The user or group besides root who could change a file, link or folder with these facts of lstat; empty if only root.

    ``on_the_way``: the path goes on to something that exists. Then a sticky folder, such as /tmp, is harmless: only the
    owner of what is in it can replace that. Nothing can be imported from there, for anybody can add to it.
    """
    if uid != 0:
        return f"the user {_user(uid)}"
    if stat.S_ISLNK(mode) or (on_the_way and stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return ""  # a link has no permissions of its own
    if mode & stat.S_IWOTH:
        return "every user"
    return f"the group {_group(gid)}" if mode & stat.S_IWGRP else ""


def _refuse_path(path: str) -> None:
    steps = _steps(path)
    for number, (step, status) in enumerate(steps, 1):
        _refuse(step, status, number < len(steps))


def _refuse(path: str, status: os.stat_result, on_the_way: bool = False) -> None:
    if who := who_could_change(status.st_mode, status.st_uid, status.st_gid, on_the_way):
        raise OomproofError(f"{path} can be changed by {who}, and a service of root would run it", _HINT)


def _steps(path: str) -> list[tuple[str, os.stat_result]]:
    """Every folder and link that the kernel meets on the way to ``path``, from / on; at the end what it arrives at.

    If that does not exist, the folder in which it could be created stands there.
    """
    at, links, rest = "/", 0, path.split("/")[::-1]
    steps = [("/", os.lstat("/"))]
    try:
        while rest:
            name = rest.pop()
            if name == "..":
                at = os.path.dirname(at)
            if name in ("", ".", ".."):
                continue
            here = os.path.join(at, name)
            status = os.lstat(here)
            steps.append((here, status))
            if not stat.S_ISLNK(status.st_mode):
                at = here
                continue
            links += 1
            if links > _LINKS:
                raise OomproofError(f"{path} has too many links on its way", _HINT)
            target = os.readlink(here)
            at = "/" if target.startswith("/") else at
            rest += target.split("/")[::-1]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise OomproofError(f"{path} cannot be checked: {error.strerror}", _HINT) from error
    return [*steps, (at, os.lstat(at))]


def _refuse_below(folder: str, seen: set[tuple[int, int]]) -> None:
    """``seen``: folders that were checked already, by device and inode."""
    folders = [folder]
    while folders:
        path = folders.pop()
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            names = sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise OomproofError(f"{path} cannot be checked: {error.strerror}", _HINT) from error
        for name in names:
            here = os.path.join(path, name)
            try:
                status = os.lstat(here)
            except FileNotFoundError:
                continue  # removed meanwhile
            if stat.S_ISLNK(status.st_mode):
                _refuse_path(here)
                folders.append(os.path.realpath(here))
                continue
            _refuse(here, status)
            if stat.S_ISDIR(status.st_mode):
                folders.append(here)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
