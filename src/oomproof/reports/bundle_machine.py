"""What a helper asks first: the machine, the GPU and its driver, the packages of the job's own Python."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

from oomproof.evidence.program_source import interpreter
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.run_folders import Run

_SECONDS = 20.0  # a driver that hangs must not keep the bundle
_PACKAGES = (
    "import json, sys\n"
    "from importlib.metadata import distributions\n"
    "found = {d.metadata['Name']: d.version for d in distributions() if d.metadata['Name']}\n"
    "print(json.dumps({'python': sys.version.split()[0], **found}))\n"
)


def facts() -> list[tuple[str, str]]:
    """(file name, text) of what the machine tells; nothing for what it has not."""
    files = [
        ("machine.json", _said([*OWN_COMMAND, "check", "--json"])),
        ("system.txt", "\n".join(f"{name}: {value}" for name, value in short_facts()) + "\n"),
        ("nvidia-smi.txt", _said(["nvidia-smi"])),
        ("nvidia-driver.txt", _read("/proc/driver/nvidia/version")),
        ("rocm-smi.txt", _said(["rocm-smi"])),
        ("meminfo.txt", _read("/proc/meminfo")),
    ]
    return [(name, text) for name, text in files if text.strip()]


def short_facts() -> list[tuple[str, str]]:
    rows = [
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("Python of oomproof", platform.python_version()),
    ]
    release = _read("/etc/os-release")
    name = next(
        (line[12:].strip('"') for line in release.splitlines() if line.startswith("PRETTY_NAME=")), ""
    )
    if name:
        rows.append(("distribution", name))
    memory = next(
        (line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal")), ""
    )
    if memory.isdigit():
        rows.append(("RAM", f"{int(memory) / 2**20:.1f} GiB"))
    cards = _said(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    rows += [(f"GPU {number}", line.strip()) for number, line in enumerate(cards.strip().splitlines()[:8])]
    return rows


def packages(run: Run | None) -> tuple[dict[str, str], str | None]:
    """(name → version, what went wrong) of the Python that ran the job, as it is now."""
    if run is None:
        return {}, "unknown: the verdict is from a text, which names no Python"
    python = job_python(run)
    if python is None:
        return {}, "unknown: the command names no Python that is still here"
    said = _said([python, "-I", "-c", _PACKAGES])
    try:
        listed = json.loads(said)
    except ValueError:
        return {}, f"{python} did not tell its packages"
    return {str(name): str(number) for name, number in listed.items()}, None


def job_python(run: Run) -> str | None:
    """The interpreter: the command itself, or the one in the first line of the script it is (torchrun, accelerate)."""
    if not run.argv:
        return None
    path = (run.info.get("env") or {}).get("PATH")
    return interpreter(run.argv[0], str(run.info.get("cwd") or "."), path)


def _said(command: list[str]) -> str:
    """What a command prints; nothing when it is absent, hangs or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SECONDS
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
