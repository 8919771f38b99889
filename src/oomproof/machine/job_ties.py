"""Who else would feel it if a job were paused: clients of a server, a screen, a mount, a container, a hand on the keyboard.

A pause of a job with such a tie can hang others, so that such a job is only warned of. What cannot be read counts as a tie.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from oomproof.leaf.command_lines import is_oomproof
from oomproof.leaf.proc_files import ancestors, command_line, descendants, owner_of, read_text, stat_fields
from oomproof.machine import sockets
from oomproof.machine.jobs import LAUNCHERS, Job, service_of
from oomproof.machine.sockets import Sockets

_EDITORS = frozenset(
    [
        "vi",
        "vim",
        "vim.basic",
        "nvim",
        "emacs",
        "emacs-nox",
        "nano",
        "micro",
        "helix",
        "hx",
        "kak",
        "joe",
        "ed",
        "mc",
        "less",
        "man",
        "ssh",
        "mosh-client",
    ]
)
# Listened on for the job's own workers: Python's multiprocessing, PyTorch's shared memory.
_OWN_SOCKETS = ("pymp-", "listener-", "torch-shm-dir")
_SCREENS = ("/.X11-unix/", "/wayland-")
_DRAWING = ("libX11.", "libxcb.", "libwayland-client.")
_STARTED_A_RUN = "it started a run of oomproof"
_FUSE = "/dev/fuse"
_PGRP, _SESSION, _TTY, _FOREGROUND = 2, 3, 4, 5  # fields of /proc/PID/stat, from the state on


def tie_of(job: Job, ours: Collection[int] = (), leaders: Collection[int] = (), proc: str = "/proc") -> str:
    """Why it must not be paused, in words; empty where nothing speaks against it.

    ``ours``: pids of this guard and of those it comes from; ``leaders``: of the first processes of all runs. Everybody below
    the job is asked, also behind a shell, where another job begins: a pause stops them all.
    """
    if sys.platform != "linux":
        return "what it is connected to cannot be read here"
    pids = list(dict.fromkeys((*job.pids, *descendants(job.pid, proc))))
    names = {pid: read_text(f"{proc}/{pid}/comm").strip() for pid in pids}
    above = ancestors(job.pid, proc)
    if any(pid in leaders or is_oomproof(command_line(pid, proc)) for pid in above):
        return "it belongs to a run of oomproof"
    if any(pid in ours or pid in leaders for pid in pids):
        return _STARTED_A_RUN
    if tie := member_tie(pids, job.uid, proc):
        return tie
    first = names.get(job.pid, "")
    if job.pid == 1 or first in LAUNCHERS:
        return "it is part of the session"
    if editor := next((name for name in names.values() if name in _EDITORS), ""):
        return f"{editor} is used by hand"
    if service_of(job.pid, proc):
        return "it is a system service"
    fields = stat_fields(job.pid, proc)
    if not fields or len(fields) <= _FOREGROUND:
        return "it has ended"
    if int(fields[_SESSION]) == job.pid:
        return "it leads its own session, as a server does"
    known = sockets.read(proc)
    if known is None:
        return "what it is connected to cannot be read"
    return next((tie for pid in pids if (tie := _tie(pid, known, proc))), "")


def member_tie(pids: Collection[int], uid: int, proc: str = "/proc") -> str:
    """What is asked again at the very moment of a pause: whether somebody among them is another's, or a run of ours."""
    for pid in pids:
        owner = owner_of(pid, proc)
        if owner is None:
            continue  # it has ended
        if owner != uid:
            return "a part of it is another user's"
        if is_oomproof(command_line(pid, proc)):
            return _STARTED_A_RUN
    return ""


def _tie(pid: int, known: Sockets, proc: str) -> str:
    try:
        for kind in ("pid", "net"):
            if os.readlink(f"{proc}/{pid}/ns/{kind}") != os.readlink(f"{proc}/self/ns/{kind}"):
                return "it runs in a container"
        open_files = [_target(f"{proc}/{pid}/fd/{name}") for name in os.listdir(f"{proc}/{pid}/fd")]
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended
    except OSError:
        return "its open files cannot be read"
    for target in open_files:
        if target == _FUSE:
            return "it serves a FUSE mount"
        if target.startswith("socket:["):
            inode = int(target[len("socket:[") : -1])
            listens, connected = known.listening.get(inode, ""), (known.connected or {}).get(inode, "")
            if listens and not any(own in listens for own in _OWN_SOCKETS):
                return f"it serves {listens}"
            if _is_screen(connected):
                return "it has a window"
    if known.connected is None and _may_have_a_window(pid, known, proc):
        return "it may have a window"
    return _keyboard(pid, open_files, proc)


def _is_screen(path: str) -> bool:
    return any(screen in path for screen in _SCREENS)


def _may_have_a_window(pid: int, known: Sockets, proc: str) -> bool:
    """Where the kernel does not tell who is connected to whom: it can draw, and there is a screen."""
    if not any(map(_is_screen, known.listening.values())):
        return False
    maps = read_text(f"{proc}/{pid}/maps")
    return not maps or any(library in maps for library in _DRAWING)


def _keyboard(pid: int, open_files: list[str], proc: str) -> str:
    """In front at a terminal that hands on each key at once: an editor, a prompt. A training reads no keys."""
    fields = stat_fields(pid, proc)
    if not fields or fields[_TTY] == b"0" or fields[_PGRP] != fields[_FOREGROUND]:
        return ""
    terminal = next((target for target in open_files if target.startswith(("/dev/pts/", "/dev/tty"))), "")
    return "it is used at its terminal" if terminal and reads_keys(terminal) else ""


def reads_keys(terminal: str) -> bool:
    """Whether somebody at that terminal reads single keys; also where it cannot be asked."""
    import termios

    try:
        fd = os.open(terminal, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return not termios.tcgetattr(fd)[3] & termios.ICANON
        finally:
            os.close(fd)
    except (OSError, termios.error):
        return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""
