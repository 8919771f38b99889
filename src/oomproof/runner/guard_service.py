"""The guard of the machine as a systemd service: its unit, written, started and removed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import oomproof
from oomproof.errors import OomproofError
from oomproof.own_command import OWN_COMMAND
from oomproof.units import GIB, MIB

_SLICE_MARK = (
    "# Written by `oomproof guard install --system`; `oomproof guard uninstall --system` removes it.\n"
)
_SLICE_FILE = "60-oomproof-desktop.conf"
# Each level has to hand it down. GNOME and KDE keep their shell in session.slice; what is started from it is elsewhere.
_LEVELS = {
    "/etc/systemd/system/user.slice.d": "Slice",
    "/etc/systemd/system/user-.slice.d": "Slice",
    "/etc/systemd/system/user@.service.d": "Service",
    "/etc/systemd/user/session.slice.d": "Slice",
}
_SHARE, _MOST = 10, 2 * GIB  # a tenth of RAM: more is no desktop


def slice_files(ram: int) -> dict[Path, str]:
    """File to text."""
    low = min(ram // _SHARE, _MOST) // MIB
    return {
        Path(folder) / _SLICE_FILE: f"{_SLICE_MARK}[{section}]\nMemoryLow={low}M\n"
        for folder, section in _LEVELS.items()
    }


def write_slices(files: Mapping[Path, str], root: Path = Path("/")) -> None:
    for path, text in files.items():
        at = root / path.relative_to("/")
        if at.exists() and not at.read_text().startswith(_SLICE_MARK):
            raise OomproofError(f"{at} is not ours", "move it away first, or add --no-desktop")
        try:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)
        except OSError as error:
            raise OomproofError(
                f"cannot write {at}: {error.strerror}",
                "oomproof guard install --system --no-desktop leaves it out",
            ) from error


def remove_slices(root: Path = Path("/")) -> bool:
    """Whether any was there. A file that somebody else has written under that name stays."""
    found = False
    for folder in _LEVELS:
        path = root / (Path(folder) / _SLICE_FILE).relative_to("/")
        try:
            ours = path.read_text().startswith(_SLICE_MARK)
        except OSError:
            continue
        if ours:
            path.unlink()
            found = True
            try:
                path.parent.rmdir()
            except OSError:  # others keep files there
                pass
    return found


NAME = "oomproof-guard.service"
_MARK = "# Written by `oomproof guard install`; `oomproof guard uninstall` removes it.\n"
_SECONDS = 120.0  # a stop waits until everybody runs again
# What a guard does not need is closed to it. Signals, /proc and the terminals of others it needs; a filter of system calls
# it has none of: one such filter once ended a well-known guard at each shortage, unnoticed.
_USER = """\
OOMPolicy=continue
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
"""
_SYSTEM = (
    _USER
    + """\
CapabilityBoundingSet=CAP_KILL CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_DAC_OVERRIDE CAP_IPC_LOCK
ProtectSystem=strict
ReadWritePaths=/run/oomproof
RuntimeDirectory=oomproof
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
StateDirectory=oomproof
StateDirectoryMode=0755
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
OOMScoreAdjust=-900
MemoryMin=64M
"""
)


def unit(flags: list[str], system: bool) -> str:
    words = [*OWN_COMMAND, "guard", *(["--system"] if system else []), *flags]
    command = " ".join(_quoted(word) for word in words)
    variables = "".join(
        f"Environment={name}={_quoted(value)}\n" for name, value in _environment(system).items()
    )
    return (
        f"{_MARK}[Unit]\nDescription=oomproof: pauses the job that fills this machine before anything dies\n\n"
        f"[Service]\n{variables}ExecStart={command}\nRestart=on-failure\nRestartSec=1\n{_SYSTEM if system else _USER}"
        f"\n[Install]\nWantedBy={'multi-user.target' if system else 'default.target'}\n"
    )


def _environment(system: bool) -> dict[str, str]:
    """Where Python finds us only by PYTHONPATH, as in a checkout, the service needs it too.

    A service of root imports nothing from a user's own packages, nor do the processes that it starts.
    """
    path = os.environ.get("PYTHONPATH", "")
    ours = str(Path(oomproof.__file__).parent.parent)
    return ({"PYTHONPATH": ours} if ours in path.split(os.pathsep) else {}) | (
        {"PYTHONNOUSERSITE": "1"} if system else {}
    )


def _quoted(word: str) -> str:
    """For systemd, which knows %, $ and backslashes."""
    escaped = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return escaped if escaped and shlex.quote(escaped) == escaped else '"' + escaped.replace('"', '\\"') + '"'


def folder(system: bool) -> Path:
    if system:
        return Path("/etc/systemd/system")
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "systemd" / "user"


def refuse_others_code() -> None:
    """A service of root must not run what another user may change."""
    from oomproof.runner import trusted_code  # a running guard does not need it

    trusted_code.refuse_others_code(sys.executable, _environment(system=True))


def install(text: str, system: bool, desktop: Mapping[Path, str] | None = None) -> str:
    """``desktop``: drop-in files beside it."""
    if system:
        refuse_others_code()
    path = folder(system) / NAME
    if path.exists() and not path.read_text().startswith(_MARK):
        raise OomproofError(f"{path} is not ours", "move it away first")
    _systemctl(system, "--version")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise OomproofError(
            f"cannot write {path}: {error.strerror}", "oomproof guard install --print shows the unit"
        ) from error
    if system:
        remove_slices()  # of an earlier installation
        write_slices(desktop or {})
    _systemctl(system, "daemon-reload")
    _systemctl(system, "--no-reload", "enable", NAME)  # a reload is slow on a slow machine: one is enough
    _systemctl(system, "restart", NAME)
    after = "from each boot on" if system else "from each login on"
    return f"installed {path}: it runs now, and {after}; see it: oomproof guard status"


def uninstall(system: bool) -> str:
    path = folder(system) / NAME
    if not path.exists():
        return f"no guard is installed ({path} is not there)"
    if not path.read_text().startswith(_MARK):
        raise OomproofError(f"{path} is not ours", "remove it yourself")
    _systemctl(system, "--no-reload", "disable", "--now", NAME)
    path.unlink()
    if system:
        remove_slices()
    _systemctl(system, "daemon-reload")
    return f"removed {path}; what it had paused is resumed"


def _systemctl(system: bool, *words: str) -> None:
    command = ["systemctl", *([] if system else ["--user"]), *words]
    hint = "without systemd: start `oomproof guard` from your session, as in nohup oomproof guard &"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise OomproofError("there is no systemd here", hint) from None
    except subprocess.TimeoutExpired:
        raise OomproofError(f"{shlex.join(command)} does not answer", hint) from None
    if done.returncode != 0:
        problem = (done.stderr or done.stdout).strip().splitlines()
        raise OomproofError(
            f"{shlex.join(command)} failed: {problem[0] if problem else done.returncode}", hint
        )
