"""Descriptors over a socket without the standard library's layer: the same bytes as with it."""

from __future__ import annotations

import os
import socket

from oomproof.leaf import light_socket


def test_descriptors_arrive_with_their_data() -> None:
    ours, theirs = light_socket.socket.socketpair()
    reading, writing = os.pipe()
    light_socket.send_fds(ours, b"hello", [reading, writing])
    data, (their_reading, their_writing) = light_socket.recv_fds(theirs, 100, 16)
    assert data == b"hello"
    os.write(their_writing, b"x")
    assert os.read(reading, 1) == b"x"
    for fd in (reading, writing, their_reading, their_writing):
        os.close(fd)
    ours.close()
    theirs.close()


def test_data_without_descriptors_and_the_end() -> None:
    ours, theirs = light_socket.socket.socketpair()
    light_socket.send_fds(ours, b"alone", [])
    ours.close()
    assert light_socket.recv_fds(theirs, 100, 16) == (b"alone", [])
    assert light_socket.recv_fds(theirs, 100, 16) == (b"", [])
    theirs.close()


def test_the_standard_library_understands_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        light_socket.send_fds(ours, b"a", [file.fileno()])
        data, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        assert data == b"a" and len(fds) == 1
        socket.send_fds(theirs, [b"b"], fds)
        data, again = light_socket.recv_fds(ours, 1, 1)
        assert data == b"b" and len(again) == 1
        for fd in (*fds, *again):
            os.close(fd)
