"""Sockets by inode: who listens, and to whom a local connection leads (asked of the kernel as `ss` does)."""

from __future__ import annotations

import socket
import struct

from oomproof.leaf.proc_files import read_text
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
