"""Who else would feel it if a job were paused: clients of a server, a screen, a mount, a container, a hand on the keyboard.

A pause of a job with such a tie can hang others, so that such a job is only warned of. What cannot be read counts as a tie.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Collection

from oomproof.leaf.command_lines import is_oomproof
from oomproof.leaf.proc_files import ancestors, command_line, descendants, owner_of, read_text, stat_fields
from oomproof.machine.jobs import LAUNCHERS, Job, service_of
from oomproof.records import dataclass

_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_SHOW_NAME, _SHOW_PEER = 1, 4
_NAME, _PEER = 0, 2  # attributes of an answer
_LISTENS = 10  # TCP_LISTEN, which local sockets use too
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_SECONDS = 1.0
_ACCEPTS = 0x10000  # __SO_ACCEPTCON
_UNNAMED = "a local socket"


@dataclass(frozen=True, slots=True)
class Sockets:
    """``listening`` gives the address, or the path of a local one; ``connected`` the path that a local connection leads to,
    None where the kernel does not tell (it has no unix_diag)."""

    listening: dict[int, str]
    connected: dict[int, str] | None


def read(proc: str = "/proc") -> Sockets | None:
    """Of our network namespace; None where nothing can be read."""
    ports: dict[int, str] = {}
    tables = [read_text(f"{proc}/net/{table}") for table in ("tcp", "tcp6")]
    if not tables[0]:
        return None
    for table in tables:
        ports.update(listening_tcp(table))
    try:
        local = _local()
    except (OSError, struct.error):
        table = read_text(f"{proc}/net/unix")
        return Sockets({**listening_local(table), **ports}, None) if table else None
    names = {inode: name for inode, (_, name, _) in local.items() if name}
    listening = {inode: name or _UNNAMED for inode, (state, name, _) in local.items() if state == _LISTENS}
    connected = {inode: names[peer] for inode, (_, _, peer) in local.items() if peer in names}
    return Sockets({**listening, **ports}, connected)


def listening_tcp(table: str) -> dict[int, str]:
    """Inode → port, of /proc/net/tcp."""
    ports = {}
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == "0A":
            ports[int(words[9])] = f"TCP port {int(words[1].rpartition(':')[2], 16)}"
    return ports


def listening_local(table: str) -> dict[int, str]:
    """Inode → path, of /proc/net/unix."""
    paths = {}
    for line in table.splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) > 6 and int(words[3], 16) & _ACCEPTS:
            paths[int(words[6])] = words[7] if len(words) > 7 else _UNNAMED
    return paths


def _local() -> dict[int, tuple[int, str, int]]:
    """Inode → state, name, and the peer's inode; of local (Unix) sockets."""
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_PEER, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        sockets: dict[int, tuple[int, str, int]] = {}
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _ERROR:
                    raise OSError("the kernel does not list local sockets")
                if kind == _DONE:
                    return sockets
                _add(sockets, data[_HEADER.size : length])
                data = data[(length + 3) & ~3 :]


def _add(sockets: dict[int, tuple[int, str, int]], answer: bytes) -> None:
    _, _, state, _, inode, _, _ = _ANSWER.unpack_from(answer)
    name, peer, at = "", 0, _ANSWER.size
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if length < _ATTRIBUTE.size:
            break
        value = answer[at + _ATTRIBUTE.size : at + length]
        if kind == _NAME:
            name = value.strip(b"\0").decode("utf-8", "replace")  # an abstract name begins with NUL
        elif kind == _PEER and len(value) >= 4:
            (peer,) = struct.unpack_from("=I", value)
        at += (length + 3) & ~3
    sockets[inode] = (state, name, peer)


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
    known = read(proc)
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
