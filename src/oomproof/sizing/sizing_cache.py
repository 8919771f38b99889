"""What commands were sized at, kept in the state folder: the same code, arguments and packages are not sized twice.

No process is started to find out: packages are known by the folders they lie in, which change when one is installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from glob import escape, glob
from pathlib import Path
from typing import Any

from oomproof import __version__
from oomproof.leaf.command_lines import command_key, is_incidental, options, script_of
from oomproof.leaf.small_files import sha256_hex
from oomproof.recording import state_files
from oomproof.sizing import calibrated_card

_KEPT = 200  # sizings, each of about 1 KiB
_SOURCES = (".py", ".yaml", ".yml", ".toml", ".cfg", ".ini")  # JSON is what scripts write
_WHOLE = 256 << 10  # bytes: a larger file is data, known by its size and time
_MOST_FILES, _MOST_FOLDERS, _DEEP = 1000, 300, 3
_NOT_SOURCE = {"__pycache__", "node_modules", "site-packages", "wandb", "lightning_logs"}
_ALWAYS = ("PYTHONPATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES")


def folder() -> Path:
    return state_files.state_folder() / "sizings"


def key(argv: Sequence[str], where: str, environment: Mapping[str, str], gpu_total: int | None) -> str | None:
    """The same for what takes the same memory; None where it cannot be known which Python and packages it has."""
    packages = _packages(argv[0], environment)
    if not packages:
        return None
    script = script_of(argv, where)
    texts: list[bytes] = []
    told: list[str] = [__version__, where, str(gpu_total), command_key(argv, where), *packages]
    for path in _source_files(os.path.dirname(script) if script else where):
        told.append(_content(path, texts))
    told += [
        _dated(path)
        for name, value in options(argv[1:])
        if value and not is_incidental(name) and os.path.isfile(path := os.path.join(where, value))
    ]
    told += [_dated(str(path)) for path in sorted(calibrated_card.folder().glob("*.json"))]
    text = b"\n".join(texts)
    told += [f"{name}={value}" for name, value in sorted(environment.items()) if _is_read(name, text)]
    return sha256_hex("\0".join(told).encode("utf-8", "surrogateescape"))[:32]


def load(name: str) -> dict[str, Any]:
    """Empty where it was not sized; a use makes it the newest."""
    path = folder() / f"{name}.json"
    value = state_files.read_json(path)
    if value.get("schema") != 1:
        return {}
    with contextlib.suppress(OSError):
        os.utime(path)
    return value


def store(name: str, value: Mapping[str, Any]) -> None:
    """Raises OomproofError when there is nowhere to write."""
    state_files.make_private(state_files.state_folder())
    state_files.make_private(folder())
    state_files.write_json(folder() / f"{name}.json", {"schema": 1, **value})
    kept = sorted(folder().glob("*.json"), key=_time, reverse=True)
    for path in kept[_KEPT:]:
        with contextlib.suppress(OSError):
            path.unlink()


def python_of(program: str) -> str | None:
    """The Python that runs this program; None where it is none."""
    path = shutil.which(program)
    if path is None:
        return None
    if os.path.basename(path).startswith("python"):
        return path
    try:
        with open(path, "rb") as file:
            line = file.readline(500).decode("utf-8", "replace")
    except OSError:
        return None
    words = line[2:].split() if line.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return shutil.which(words[0]) if words and os.path.basename(words[0]).startswith("python") else None


def _packages(program: str, environment: Mapping[str, str]) -> list[str]:
    """Its Python and the folders of its packages, with the versions of torch in them."""
    python = python_of(program)
    if python is None:
        return []
    prefixes = {os.path.dirname(os.path.dirname(path)) for path in (python, os.path.realpath(python))}
    prefixes.add(os.path.join(environment.get("HOME", ""), ".local"))
    folders = [
        path
        for prefix in sorted(prefixes)
        for path in sorted(glob(os.path.join(escape(prefix), "lib", "python3*", "*-packages")))
    ]
    if not folders:
        return []
    torch = [os.path.basename(path) for where in folders for path in glob(f"{escape(where)}/torch-*-info")]
    return [_dated(os.path.realpath(python)), *map(_dated, folders), *sorted(torch)]


def _source_files(top: str) -> Iterator[str]:
    """Code and settings of the script's folder and those below, as far as it is cheap."""
    left, looked = [(top, 0)], 0
    count = 0
    while left and looked < _MOST_FOLDERS:
        where, depth = left.pop(0)
        looked += 1
        try:
            with os.scandir(where) as entries:
                names = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in names:
            if entry.name.startswith(".") or entry.name in _NOT_SOURCE:
                continue
            if entry.name.endswith(_SOURCES):
                count += 1
                yield entry.path
                if count == _MOST_FILES:
                    return
            elif depth < _DEEP and entry.is_dir(follow_symlinks=False) and not _is_environment(entry.path):
                left.append((entry.path, depth + 1))


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _content(path: str, texts: list[bytes]) -> str:
    try:
        if os.path.getsize(path) > _WHOLE:
            return _dated(path)
        data = state_files.read_small(path, _WHOLE)
    except OSError:
        return path
    texts.append(data)
    return f"{path} {sha256_hex(data)}"


def _dated(path: str) -> str:
    try:
        facts = os.stat(path)
    except OSError:
        return path
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def _is_read(name: str, text: bytes) -> bool:
    """Whether the script asks for this variable: its name stands there in quotes."""
    if name in _ALWAYS:
        return True
    encoded = name.encode("utf-8", "surrogateescape")
    return b'"' + encoded + b'"' in text or b"'" + encoded + b"'" in text


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
