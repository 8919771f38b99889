"""Which programs on this machine kill processes when memory runs out, and where each acts, from its settings."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence

from oomproof.leaf.proc_files import command_line, name_of, read_text
from oomproof.records import dataclass

_NAMES = frozenset({"earlyoom", "nohang", "nohang-desktop", "systemd-oomd", "oomd", "bustd"})


@dataclass(frozen=True, slots=True)
class Daemon:
    name: str
    pid: int


def among(names: Iterable[tuple[str, int]]) -> tuple[Daemon, ...]:
    """The OOM daemons among these processes (the kernel's name, the pid)."""
    return tuple(Daemon(name, pid) for name, pid in names if name in _NAMES)


def running(proc: str = "/proc") -> tuple[Daemon, ...]:
    """The same of all processes, of which nothing but the name is read."""
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return ()
    return among((name_of(pid, proc), pid) for pid in pids)


# --- where they act ---------------------------------------------------------------------------------------------

_UNITS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_OOMD_FOLDERS = ("usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd")
_MANAGED = ("-.slice", "user.slice", "user-.slice", "user@.service")


@dataclass(frozen=True, slots=True)
class Threshold:
    """Both memory and swap must be short for earlyoom and nohang; systemd-oomd goes by used swap and by pressure."""

    daemon: Daemon
    memory_percent: float | None = None  # acts when less than this part of memory is available
    memory_bytes: int | None = None  # ... or less than this
    swap_percent: float | None = None  # and less than this part of swap is free
    pressure: tuple[str, ...] = ()  # systemd-oomd: "user@.service above 50% for 20s"
    settings_file: str = ""


def thresholds(daemons: Sequence[Daemon], proc: str = "/proc", root: str = "/") -> tuple[Threshold, ...]:
    return tuple(_threshold(daemon, proc, root) for daemon in daemons)


def _threshold(daemon: Daemon, proc: str, root: str) -> Threshold:
    argv = command_line(daemon.pid, proc)
    if daemon.name == "earlyoom":
        return _earlyoom(daemon, argv)
    if daemon.name.startswith("nohang"):
        return _nohang(daemon, argv, root)
    if daemon.name == "systemd-oomd":
        return _oomd(daemon, root)
    return Threshold(daemon)


def _earlyoom(daemon: Daemon, argv: Sequence[str]) -> Threshold:
    """Defaults: SIGTERM below 10 % of memory and 10 % of swap. ``-m 5,3``: the second is for SIGKILL."""
    memory, size, swap = 10.0, None, 10.0
    for word, value in _options(argv, "mMsS"):
        number = _number(value.partition(",")[0])
        if number is None:
            continue
        if word == "m":
            memory = number
        elif word == "M":
            size = int(number) << 10
        elif word == "s":
            swap = number
    return Threshold(daemon, memory, size, swap, settings_file="/etc/default/earlyoom")


def _options(argv: Sequence[str], letters: str) -> list[tuple[str, str]]:
    """``-m 5``, ``-m5`` and ``-m=5``."""
    pairs = []
    for at, word in enumerate(argv[1:], 1):
        if len(word) > 1 and word[0] == "-" and word[1] in letters:
            value = word[2:].lstrip("=") or (argv[at + 1] if at + 1 < len(argv) else "")
            pairs.append((word[1], value))
    return pairs


def _nohang(daemon: Daemon, argv: Sequence[str], root: str) -> Threshold:
    given = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in ("-c", "--config")]
    path = given[-1] if given else "/etc/nohang/nohang.conf"
    text = read_text(os.path.join(root, path.lstrip("/")))
    memory, size = _amount(text, "soft_threshold_min_mem")
    return Threshold(daemon, memory, size, _amount(text, "soft_threshold_min_swap")[0], settings_file=path)


def _amount(text: str, key: str) -> tuple[float | None, int | None]:
    """``5 %`` or ``300 M``: (percent, bytes)."""
    match = re.search(rf"^{key}\s*=\s*([\d.]+)\s*(%|M)?", text, re.MULTILINE)
    number = _number(match[1]) if match else None
    if match is None or number is None:
        return None, None
    return (None, int(number) << 20) if match[2] == "M" else (number, None)


def _oomd(daemon: Daemon, root: str) -> Threshold:
    swap, limit, seconds = "90%", "60%", "30s"
    for text in _settings(root):
        swap = _setting(text, "SwapUsedLimit") or swap
        limit = _setting(text, "DefaultMemoryPressureLimit") or limit
        seconds = _setting(text, "DefaultMemoryPressureDurationSec") or seconds
    watched, swap_watched = [], False
    for unit in _MANAGED:
        texts = [read_text(path) for path in _drop_ins(root, unit)]
        if _last(texts, "ManagedOOMSwap") == "kill":
            swap_watched = True
        if _last(texts, "ManagedOOMMemoryPressure") == "kill":
            watched.append(
                f"{unit} above {_last(texts, 'ManagedOOMMemoryPressureLimit') or limit} for {seconds}"
            )
    used = _number(swap.rstrip("%‰")) if swap_watched else None
    return Threshold(
        daemon,
        swap_percent=None if used is None else 100 - used,
        pressure=tuple(watched),
        settings_file="/etc/systemd/oomd.conf",
    )


def _settings(root: str) -> list[str]:
    main = [f"{folder}/oomd.conf" for folder in _OOMD_FOLDERS]
    parts = {
        os.path.basename(path): path
        for folder in _OOMD_FOLDERS
        for path in glob.glob(os.path.join(root, folder, "oomd.conf.d", "*.conf"))
    }
    return [
        *(read_text(os.path.join(root, path)) for path in main),
        *(read_text(parts[name]) for name in sorted(parts)),
    ]


def _drop_ins(root: str, unit: str) -> list[str]:
    """As systemd merges them: sorted by name, a file of /etc hides one of the same name in /usr/lib."""
    merged: dict[str, str] = {}
    for folder in reversed(_UNITS):
        for path in glob.glob(os.path.join(root, folder, f"{glob.escape(unit)}.d", "*.conf")):
            merged[os.path.basename(path)] = path
    return [merged[name] for name in sorted(merged)]


def _last(texts: Sequence[str], key: str) -> str:
    return next((value for text in reversed(texts) if (value := _setting(text, key))), "")


def _setting(text: str, key: str) -> str:
    values = re.findall(rf"^\s*{key}\s*=\s*(\S.*?)\s*$", text, re.MULTILINE)
    return str(values[-1]) if values else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
