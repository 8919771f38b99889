"""Removes what runs of this user left on the machine when they were killed early: empty cgroups, forecasts, agent sockets;
brings files home that a full disk did not take.

Called by each run after its start, off every path that matters: a few folders are listed. Only what belongs to a run
that is known to be dead goes; what cannot be told stays.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

from oomproof.errors import OomproofError
from oomproof.machine import cgroups
from oomproof.recording import run_folders, spare_files
from oomproof.recording.state_files import runtime_folder

_YOUNG = 5.0  # seconds: a run that is being made may not have its locks yet
_OLD = 3600.0  # seconds, after which a socket that nobody has bound and whose run has no folder is nobody's
_CGROUP, _AGENT, _SIZING = "oomproof-", "agent-", "size-"


def sweep() -> None:
    spare_files.bring_home()
    for directory in _own_cgroups():
        _sweep_cgroups(directory)
    try:
        folder = runtime_folder()
    except (OSError, OomproofError):
        return
    for path in _listed(folder / "forecast"):
        if _is_dead(path.name, path):
            _unlink(path)
    # a socket's name must be short: where the folder's is long it lies in ours under /tmp (see agent_feed)
    for path in _listed(folder) + _listed(Path(f"/tmp/oomproof-{os.getuid()}")):
        if path.name.startswith(_AGENT) and _is_unused_socket(path):
            _unlink(path)


def _own_cgroups() -> list[str]:
    """Where a run's cgroups are made: beside the shell's own, and for v2 above it as well."""
    directories = []
    for controller in ("memory", "freezer", ""):
        own = cgroups.own_directory(controller)
        mount = cgroups.mounts().get(controller)
        while own is not None and own not in directories:
            directories.append(own)
            if controller or mount is None or len(own) <= len(mount[0]):
                break
            own = os.path.dirname(own)
    return directories


def _sweep_cgroups(directory: str) -> None:
    for path in _listed(Path(directory)):
        # ID, or ID.2 of a second attempt
        if path.name.startswith(_CGROUP) and _is_dead(
            path.name.removeprefix(_CGROUP).partition(".")[0], path
        ):
            try:
                os.rmdir(path)  # refused by the kernel where somebody lives in it
            except OSError:
                pass


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _is_dead(run_id: str, path: Path) -> bool:
    """A run of ours whose locks are all free, and not one that is just being made; or a sizing whose process is gone."""
    folder = run_folders.runs_folder() / run_id
    try:
        status = path.lstat()
    except OSError:
        return False
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG:
        return False
    if run_id.startswith(_SIZING) and (pid := run_id.removeprefix(_SIZING)).isdecimal():
        return not os.path.exists(f"/proc/{pid}")
    if not folder.is_dir():
        return False
    run = run_folders.Run(folder)
    return not (run.waits() or run.guard_lives() or run.keeper_lives() or run.job_lives())


def _is_unused_socket(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if not stat.S_ISSOCK(status.st_mode) or _is_bound(path):
        return False
    run_id = path.name.removeprefix(_AGENT)
    if (run_folders.runs_folder() / run_id).is_dir():
        return _is_dead(run_id, path)
    return status.st_uid == os.getuid() and time.time() - status.st_mtime > _OLD


def _is_bound(path: Path) -> bool:
    """Whether somebody listens there now."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
