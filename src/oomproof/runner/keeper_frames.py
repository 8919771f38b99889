"""How front and keeper speak: frames over an inherited socket, one letter, four bytes of length, then the bytes.

keeper → front   J news (hello first); the descriptors of the streams come with the news of them
front → keeper   J spec (first), with files the job gets as they are   G go: it has the streams   S signal number   C stream closed   D all output was read
"""

from __future__ import annotations

import socket
import struct

HEADER = struct.Struct("!cI")


def send_frame(sock: socket.socket, kind: bytes, payload: bytes) -> None:
    sock.sendall(HEADER.pack(kind, len(payload)) + payload)


def send_with_fds(sock: socket.socket, kind: bytes, payload: bytes, fds: list[int]) -> None:
    socket.send_fds(sock, [HEADER.pack(kind, len(payload))], fds)
    sock.sendall(payload)


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def receive_frame(sock: socket.socket) -> tuple[bytes, bytes]:
    kind, size = HEADER.unpack(receive_exactly(sock, HEADER.size))
    return kind, receive_exactly(sock, size)


def receive_with_fds(sock: socket.socket) -> tuple[bytes, bytes, list[int]]:
    """A frame and the descriptors that came with it."""
    header, fds, _, _ = socket.recv_fds(sock, HEADER.size, 16)
    header += receive_exactly(sock, HEADER.size - len(header)) if header else receive_exactly(sock, 1)
    kind, size = HEADER.unpack(header)
    return kind, receive_exactly(sock, size), fds
