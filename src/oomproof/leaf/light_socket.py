"""Sockets without the Python layer over them: 0.2 MiB of a guard and of a keeper at rest, most of it names of constants.

``_socket`` is what ``socket`` is built on. What it has not is left out here as well: ``with``, ``accept``, files."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
else:
    try:
        import _socket as socket
    except ImportError:  # another interpreter
        import socket

_INT = struct.calcsize("i")


def send_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    rights = struct.pack(f"{len(fds)}i", *fds)
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def recv_fds(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """The data and the descriptors that came with it, ``most`` at most."""
    fds: list[int] = []
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(most * _INT))
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(rights) // _INT  # a truncated message may end within one
            fds += struct.unpack(f"{count}i", rights[: count * _INT])
    return data, fds


__all__ = ["recv_fds", "send_fds", "socket"]
