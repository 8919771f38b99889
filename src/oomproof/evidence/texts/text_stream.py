"""A text's bytes from a file, a pipe or an archive of any size, or the reason there are none."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, cast

from oomproof.errors import USAGE, OomproofError

BLOCK = 1 << 20
_GZIP, _XZ, _ZSTD, _BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh"
_BINARIES = {
    b"LPKSHHRH": ("a journal in systemd's own format", "journalctl --file {} | oomproof why -"),
    b"\x7fELF": ("a program or a core dump", "give the log it left instead"),
    b"SQLite format 3": ("a SQLite database", "give a log, or `oomproof why RUN` for a recording of ours"),
    b"PK\x03\x04": ("a zip archive", "unpack it and give the log inside"),
    b"\x93NUMPY": ("a NumPy array", "give a log"),
}  # fmt: skip
_CONTROL = bytes(code for code in range(32) if code not in b"\x00\t\n\r\x1b\x08\x07\x0c") + b"\x7f"
# one byte in so many; compressed or random data has one in ten, a text of any language hardly one
_MOST_ODD = 25
_BROKEN: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
# `xz -9` asks for 65 MiB; a header may ask for 4 GiB. zstd refuses above 128 MiB by itself
_XZ_MEMORY = 80 << 20
# A log packs to a hundredth; what grows a thousandfold, and goes on past this, was made to keep us busy.
_MOST_UNPACKED, _MOST_GROWTH = 256 << 20, 1000
# Four hours of a bar that is redrawn ten times a second, on one line; each MiB takes 0.3 s to read.
_LONGEST_LINE = 8 << 20


class UnreadableText(OomproofError):
    """``kind``: missing, directory, unreadable, device, empty, binary, zstd."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint, USAGE)
        self.kind = kind


class Stream:
    """Plain bytes of one source in blocks, at most up to the size the file had when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "standard input" if path == "-" else path
        self.notes: list[str] = []  # what a reader should know: cut archives
        self.size: int | None = None  # of a plain regular file
        self.packed = False
        self._close: list[Callable[[], object]] = []
        self._unpacker: subprocess.Popen[bytes] | None = None
        self._again: _Again | None = None  # the archive, where it is one
        self._broken = _BROKEN
        raw = self._open()
        self._begin(raw)

    def blocks(self) -> Iterator[bytes]:
        try:
            if self.first:
                yield self.first
            left = None if self.size is None else self.size - len(self.first)
            given = len(self.first)
            while left is None or left > 0:
                block = self._piece(BLOCK if left is None else min(BLOCK, left))
                if not block:
                    if self._unpacker_failed():
                        self.notes.append(f"{self.name} could be read only in part: it ends too early")
                    break
                if left is not None:
                    left -= len(block)
                given += len(block)
                if self._grows_too_much(given):
                    size = (
                        f"{given >> 20} MiB came out of {(self._again.given if self._again else 0) >> 10} KiB"
                    )
                    self.notes.append(f"{self.name} was read only in part: {size}, which is not a log")
                    break
                yield block
        except self._broken as error:
            self.notes.append(f"{self.name} could be read only in part: {error or 'it ends too early'}")
        finally:
            self.close()

    def blocks_of_lines(self) -> Iterator[bytes]:
        """The blocks without the middle of a line that is far too long for a log: reading 2 GB of it took minutes. Its end
        stays, where a redrawn bar stood last. UTF-16 comes whole, for half a character must not be cut away."""
        whole = self.first.startswith((b"\xff\xfe", b"\xfe\xff"))
        held: deque[bytes] = deque()
        line = size = left_out = 0  # bytes: of the line so far, of what is held, of what was dropped
        for block in self.blocks():
            newline = block.rfind(b"\n")
            line = line + len(block) if newline < 0 else len(block) - newline
            if line <= _LONGEST_LINE or whole:
                yield from held
                held.clear()
                size = 0
                yield block
                continue
            held.append(block)
            size += len(block)
            while size - len(held[0]) >= BLOCK:
                dropped = len(held.popleft())
                size, left_out = size - dropped, left_out + dropped
        yield from held
        if left_out:
            mib = max(1, left_out >> 20)
            self.notes.append(
                f"{self.name} was read only in part: {mib} MiB out of the middle of lines without an end are left out"
            )

    def _piece(self, most: int) -> bytes:
        """Of an archive, what is unpacked so far: a cut one then gives all it has before it fails."""
        read1 = getattr(self._source, "read1", None)
        return read1(most) if self.packed and read1 is not None else self._source.read(most)

    def _grows_too_much(self, given: int) -> bool:
        return self._again is not None and given > max(_MOST_UNPACKED, self._again.given * _MOST_GROWTH)

    def _unpacker_failed(self) -> bool:
        """zstd has written all it could: whether that was all there should be."""
        try:
            return self._unpacker is not None and self._unpacker.wait(5.0) != 0
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        while self._close:
            self._close.pop()()

    # opening

    def _open(self) -> IO[bytes]:
        if self.path == "-":
            return open(os.dup(sys.stdin.fileno()), "rb", buffering=BLOCK)
        name = self.name
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            raise UnreadableText(
                "missing", f"{name}: no such file", "check the name; `-` reads standard input"
            ) from None
        except OSError as error:
            hint = f"sudo oomproof why {name}" if isinstance(error, PermissionError) else "give a text file"
            raise UnreadableText("unreadable", f"{name}: {error.strerror}", hint) from None
        mode = os.fstat(fd)
        kind = mode.st_mode
        if stat.S_ISDIR(kind) or stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            os.close(fd)
            if stat.S_ISDIR(kind):
                raise UnreadableText(
                    "directory", f"{name} is a directory", f"name the files in it: oomproof why {name}/*"
                )
            raise UnreadableText("device", f"{name} is a device, not a log", "dmesg | oomproof why -")
        if stat.S_ISREG(kind) and mode.st_size > 0:  # files of /proc have no size, yet content
            self.size = mode.st_size
        return open(fd, "rb", buffering=BLOCK)

    def _begin(self, raw: IO[bytes]) -> None:
        self._close.append(raw.close)
        try:
            first = raw.read(min(BLOCK, self.size or BLOCK)) if self.size is not None else _some(raw)
        except OSError as error:
            self.close()
            raise UnreadableText("unreadable", f"{self.name}: {error.strerror}", "give a text file") from None
        if not first:
            self.close()
            raise UnreadableText("empty", f"{self.name} is empty", "give the log of the run that died")
        first = self._past_zeros(raw, first)
        self._source: IO[bytes] = raw
        self.first = first
        opener = self._opener(first)
        if opener is not None:
            self.packed = True
            self.first = b""
            self._again = _Again(first, raw, self.size)
            self._source = opener(io.BufferedReader(self._again, BLOCK))
            self.size = None
            try:
                self.first = self._piece(BLOCK)
            except self._broken as error:
                self.close()
                if isinstance(error, _TooLarge):
                    raise UnreadableText("unreadable", f"{self.name}: {error}", error.hint) from None
                raise UnreadableText(
                    "unreadable", f"{self.name}: broken archive ({error})", "copy it again"
                ) from None
            if not self.first and self._unpacker_failed():
                self.close()
                raise UnreadableText("unreadable", f"{self.name}: broken archive", "copy it again")
            if not self.first:
                self.close()
                raise UnreadableText("empty", f"{self.name} is empty", "give the log of the run that died")
        self._refuse_binary()

    def _past_zeros(self, raw: IO[bytes], first: bytes) -> bytes:
        """A log that was cut in place while it was written begins with zeros, often as a hole: the text is behind."""
        if self.size is not None and len(first) == BLOCK and not first.strip(b"\0"):
            # nothing but a hole, or a system without holes
            with contextlib.suppress(OSError, AttributeError):
                data = os.lseek(raw.fileno(), BLOCK, os.SEEK_DATA)
                raw.seek(data)
                self.size -= data - BLOCK
        zeros = first
        while self.size is not None and len(zeros) == BLOCK and not zeros.strip(b"\0"):
            zeros = raw.read(min(BLOCK, self.size - BLOCK)) if self.size > BLOCK else b""
            self.size -= BLOCK
            first = zeros or first
        return first

    def _opener(self, first: bytes) -> Callable[[IO[bytes]], IO[bytes]] | None:
        if first.startswith(_GZIP):
            return lambda raw: cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        if first.startswith(_XZ):
            return lambda raw: cast(IO[bytes], io.BufferedReader(_Xz(raw), BLOCK))
        if first.startswith(_BZIP2):
            return lambda raw: bz2.BZ2File(raw)
        if first.startswith(_ZSTD):
            return self._zstd
        return None

    def _zstd(self, raw: IO[bytes]) -> IO[bytes]:
        try:
            from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14

            self._broken = (*_BROKEN, zstd.ZstdError)
            return zstd.ZstdFile(raw)  # type: ignore[no-any-return,unused-ignore]
        except ImportError:
            pass
        command = shutil.which("zstd")
        if command is None:
            self.close()
            raise UnreadableText(
                "zstd", f"{self.name} is compressed with zstd, and there is no zstd here",
                "install zstd, or unpack it elsewhere and give the plain file",
            )  # fmt: skip
        process = subprocess.Popen(
            [command, "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        threading.Thread(target=_pump, args=(raw, process.stdin), daemon=True).start()
        self._unpacker = process
        self._close += [process.wait, process.kill]
        assert process.stdout is not None
        return process.stdout

    def _refuse_binary(self) -> None:
        head = self.first[:65536]
        for magic, (what, hint) in _BINARIES.items():
            if head.startswith(magic):
                self.close()
                raise UnreadableText("binary", f"{self.name} is {what}, not a text", hint.format(self.name))
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return  # UTF-16 has a NUL in every other byte
        # a crash leaves blocks of NULs in a log; only what is between them counts
        text = self.first.replace(b"\x00", b"")
        odd = len(text) - len(text.translate(None, _CONTROL))
        if not text or odd > len(text) // _MOST_ODD:
            self.close()
            what = "only zero bytes" if not text else "binary data, not text"
            raise UnreadableText("binary", f"{self.name} holds {what}", "give the log as text")


class _Again(io.RawIOBase):
    """A source with its first bytes, already read, put back; it ends where the file ended when opened."""

    def __init__(self, first: bytes, rest: IO[bytes], size: int | None) -> None:
        self._first = first
        self._rest = rest
        self._left = None if size is None else size - len(first)
        self.given = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            wanted = len(self._first) if size < 0 else size
            piece, self._first = self._first[:wanted], self._first[wanted:]
            return piece
        wanted = BLOCK if size < 0 else size
        if self._left is not None:
            wanted = min(wanted, self._left)
        piece = self._rest.read(wanted) if wanted else b""
        if self._left is not None:
            self._left -= len(piece)
        return piece

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)


class _TooLarge(lzma.LZMAError):
    hint = "unpack it where there is memory for it (xz -d), and give the plain file"


class _Xz(io.RawIOBase):
    """An .xz as lzma.LZMAFile reads it, of several streams too, but never with more memory than we allow."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._unpack = self._begin()

    @staticmethod
    def _begin() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            data = b""
            if self._unpack.eof:
                data = (self._unpack.unused_data or self._packed.read(BLOCK)).lstrip(b"\0")  # padding
                if not data:
                    return 0
                self._unpack = self._begin()
            elif self._unpack.needs_input:
                data = self._packed.read(1 << 16)
                if not data:
                    raise EOFError("it ends too early")
            try:
                piece = self._unpack.decompress(data, len(buffer))
            except lzma.LZMAError as error:
                if "emory usage limit" not in str(error):
                    raise
                limit = f"unpacking it takes more than {_XZ_MEMORY >> 20} MiB of memory"
                raise _TooLarge(limit) from None
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)


def _some(raw: IO[bytes]) -> bytes:
    """A pipe's first bytes: enough to tell its kind, without waiting for a megabyte."""
    return raw.read1(BLOCK) if isinstance(raw, io.BufferedReader) else raw.read(BLOCK)


def _pump(source: IO[bytes], sink: IO[bytes] | None) -> None:
    assert sink is not None
    try:
        with sink:
            while block := source.read(BLOCK):
                sink.write(block)
    except (OSError, ValueError):  # the reader went away
        pass
