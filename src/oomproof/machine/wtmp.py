"""Boots and orderly shutdowns from /var/log/wtmp; a machine without the file is a value."""

from __future__ import annotations

import struct

from oomproof.records import dataclass

# struct utmp of glibc on Linux, the same on 32 and 64 bits: type, pid, line, id, user, host, exit, session,
# seconds, microseconds, address, unused
_UTMP = struct.Struct("=hxxi32s4s32s256shhiIi16s20s")
assert _UTMP.size == 384
_RUN_LEVEL, _BOOT = 1, 2
_MOST = 4 << 20  # ten thousand records: years of boots; a file that has grown past it is read from its end


@dataclass(frozen=True, slots=True)
class Wtmp:
    """Wall-clock seconds, oldest first. A boot without a shutdown before it was no orderly one."""

    boots: tuple[float, ...] = ()
    shutdowns: tuple[float, ...] = ()
    reason: str | None = None  # why there is nothing to read

    def shutdown_between(self, start: float, end: float) -> float | None:
        return next((at for at in self.shutdowns if start <= at <= end), None)

    def boot_after(self, start: float) -> float | None:
        return next((at for at in self.boots if at > start), None)


def parse(data: bytes) -> Wtmp:
    boots, shutdowns = [], []
    for at in range(0, len(data) - _UTMP.size + 1, _UTMP.size):
        record = _UTMP.unpack_from(data, at)
        kind, user = record[0], record[4].split(b"\0", 1)[0]
        when = record[9] + record[10] / 1e6
        if kind == _BOOT:
            boots.append(when)
        elif kind == _RUN_LEVEL and user == b"shutdown":
            shutdowns.append(when)
    return Wtmp(tuple(sorted(boots)), tuple(sorted(shutdowns)))


def read(path: str = "/var/log/wtmp") -> Wtmp:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(-(-max(0, size - _MOST) // _UTMP.size) * _UTMP.size)  # up to the next whole record
            data = file.read()
    except OSError as error:
        return Wtmp(reason=f"{path}: {error.strerror}")
    if not data:
        return Wtmp(reason=f"{path} is empty: nothing writes it here")
    return parse(data)
