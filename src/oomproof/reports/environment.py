"""On what a run ran: Python, torch, CUDA, the card and its driver, the commit, the machine. Files are read, nothing is started."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from oomproof import __version__
from oomproof.evidence.gpu_oom import GpuOom
from oomproof.leaf.proc_files import read_text
from oomproof.machine import processes
from oomproof.machine.nvidia import driver_version
from oomproof.recording.run_folders import Run
from oomproof.reports.bundle_machine import job_python

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
