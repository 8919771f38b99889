"""How a system setting is written: files whole and never over another's, kernel settings read back, programs with their words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from oomproof.errors import OomproofError
from oomproof.leaf.proc_files import read_text
from oomproof.leaf.small_files import write_all

Run = Callable[[Sequence[str]], None]


def run_command(argv: Sequence[str]) -> None:
    """Raises with what the program said."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise OomproofError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise OomproofError(f"{' '.join(argv)} failed: {said[0] if said else f'exit code {done.returncode}'}")


def unfinished(path: str) -> str:
    """What a file is called until it is whole; undo looks for it too."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.oomproof-new")


def put_new_file(path: str, data: bytes) -> None:
    """Whole or not at all, and never over another file: a link to a name that exists is refused."""
    temporary = unfinished(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        write_all(fd, data)
        os.fsync(fd)
        os.link(temporary, path)
    finally:
        os.close(fd)
        os.unlink(temporary)


def remove(path: str) -> None:
    if os.path.lexists(path):  # asked first: a read-only file system refuses to remove even what is not there
        os.unlink(path)


def sysctl_value(key: str, proc: str) -> int | None:
    text = read_text(_sysctl_path(key, proc)).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def set_sysctl(key: str, value: int, proc: str) -> None:
    with open(_sysctl_path(key, proc), "w") as file:
        file.write(f"{value}\n")
    if (now := sysctl_value(key, proc)) != value:
        raise OomproofError(f"{key} is {now} although {value} was written")


def _sysctl_path(key: str, proc: str) -> str:
    return f"{proc}/sys/{key.replace('.', '/')}"
