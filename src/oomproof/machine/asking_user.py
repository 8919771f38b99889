"""Who asks: behind `sudo` it is the person who typed it, not root. Their runs and their jobs are meant."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping

from oomproof.records import dataclass

LOG_GROUPS = ("adm", "systemd-journal", "wheel")  # who may read the system's journal


@dataclass(frozen=True, slots=True)
class AskingUser:
    uid: int
    gid: int
    name: str
    home: str
    groups: tuple[str, ...] = ()

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    @property
    def reads_journal(self) -> bool:
        return self.is_root or any(group in LOG_GROUPS for group in self.groups)


def read(environment: Mapping[str, str] = os.environ, own: int | None = None) -> AskingUser:
    uid = os.geteuid() if own is None else own
    asked = environment.get("SUDO_UID", "")
    if uid == 0 and asked.isascii() and asked.isdigit():
        uid = int(asked)
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):  # a container's user without a name
        return AskingUser(uid, os.getegid(), str(uid), "/")
    return AskingUser(uid, entry.pw_gid, entry.pw_name, entry.pw_dir, _groups(entry))


def _groups(entry: pwd.struct_passwd) -> tuple[str, ...]:
    names = []
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return tuple(names)
