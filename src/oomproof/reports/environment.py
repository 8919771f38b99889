"""On what a run ran: Python, torch, CUDA, the card and its driver, the commit, the machine. Files are read, nothing is started."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from oomproof import __version__
from oomproof.evidence.gpu_oom import GpuOom
from oomproof.evidence.program_source import interpreter
from oomproof.leaf.proc_files import read_text
from oomproof.machine import processes
from oomproof.machine.nvidia import driver_version
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.run_folders import Run

_SECONDS = 20.0  # a driver that hangs must not keep the bundle
_LISTING = (
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
    said = _said([python, "-I", "-c", _LISTING])
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


_PACKAGES = ("torch", "transformers", "lightning", "accelerate", "deepspeed", "jax", "tensorflow", "numpy")
_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


def environment_of(run: Run | None, oom: GpuOom | None = None) -> list[tuple[str, str]]:
    """(name, value); packages and drivers as they are now, and only where the job's Python and its boot still are."""
    rows = [("oomproof", __version__)]
    if run is None:
        return rows
    recorded = str(run.info.get("version") or "")
    if recorded and recorded != __version__:
        rows[0] = ("oomproof", f"{__version__}; recorded by {recorded}")
    rows += _python(run, oom)
    same_boot = run.info.get("boot_id") == processes.boot_id()
    if same_boot:  # what is here now was there then
        rows += _cards()
    code = run.info.get("code") or {}
    if code.get("git_commit"):
        dirty = ", with changes not committed" if code.get("git_dirty") else ""
        rows.append(("commit", f"{code['git_commit'][:12]}{dirty}"))
    if code.get("script"):
        rows.append(("script", f"{code['script']} (sha256 {str(code.get('script_sha256'))[:12]})"))
    rows.append(("folder", str(run.info.get("cwd") or "?")))
    host = str(run.info.get("host") or "?")
    rows.append(
        (
            "host",
            f"{host}, {platform.system()} {platform.release()} {platform.machine()}" if same_boot else host,
        )
    )
    if enforcer := run.limit_enforcer():
        rows.append(("limit enforced by", enforcer))
    return rows


def _python(run: Run, oom: GpuOom | None) -> list[tuple[str, str]]:
    program = job_python(run)
    home = Path(program).parent.parent if program else None
    folders = sorted(home.glob("lib/python3*/site-packages")) if home else []
    found = {name: number for folder in folders for name in _PACKAGES if (number := _installed(folder, name))}
    if oom is not None and oom.torch:
        found["torch"] = oom.torch  # as it said itself when it failed
    rows = []
    if home is not None and folders:
        told = re.search(
            r"^version(?:_info)?\s*=\s*([\d.]+)", read_text(str(home / "pyvenv.cfg")), re.MULTILINE
        )
        rows.append(
            ("Python", told[1].rstrip(".") if told else folders[-1].parent.name.removeprefix("python"))
        )
    if "torch" in found:
        cuda = next(
            (
                match[1]
                for folder in folders
                if (match := _CUDA.search(read_text(str(folder / "torch/version.py"))))
            ),
            None,
        )
        rows.append(("torch", found.pop("torch") + (f", CUDA {cuda}" if cuda else "")))
    if found:
        rows.append(("packages", ", ".join(f"{name} {number}" for name, number in found.items())))
    return rows


def _installed(folder: Path, name: str) -> str | None:
    pattern = re.compile(rf"{name}-(\d[^-]*)\.dist-info")
    try:
        return next((match[1] for entry in os.listdir(folder) if (match := pattern.fullmatch(entry))), None)
    except OSError:
        return None


def _cards(proc: str = "/proc") -> list[tuple[str, str]]:
    rows = []
    for number, path in enumerate(sorted(Path(f"{proc}/driver/nvidia/gpus").glob("*/information"))[:8]):
        model = re.search(r"^Model:\s*(.+)$", read_text(str(path)), re.MULTILINE)
        rows.append((f"GPU {number}", model[1].strip() if model else "?"))
    driver = driver_version(proc)
    return [*rows, ("NVIDIA driver", driver)] if driver else rows
