"""Who else is on the card: NVML through ctypes, because the job's environment may hold nothing but PyTorch.

Asked only when memory has run out, or rarely: a driver call can take long."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple

from ..leaf.command_lines import short_name
from ..leaf.proc_files import command_line
from . import cuda_memory

_UNKNOWN = (1 << 64) - 1  # NVML's "not available"
_TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE


class Neighbour(NamedTuple):
    pid: int
    used: int | None
    name: str  # program and script, without arguments: those may hold secrets
    twin: bool  # runs the very same command as this process


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def processes(torch: Any, device: int) -> list[tuple[int, int | None]]:
    """(pid, bytes) of every process on the card; empty where the driver does not tell."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return []
    except (OSError, AttributeError):
        return []
    try:
        handle = _handle(library, torch, device)
        return _running(library, handle) if handle is not None else []
    except Exception:  # a driver of another age, or one that is failing
        return []
    finally:
        try:
            library.nvmlShutdown()
        except Exception:  # there is nothing to shut down any more
            pass


def _handle(library: Any, torch: Any, device: int) -> Any | None:
    handle = ctypes.c_void_p()

    def by_uuid(name: str) -> Any | None:
        name_of_card = ctypes.c_char_p(name.encode())
        failed = library.nvmlDeviceGetHandleByUUID(name_of_card, ctypes.byref(handle))
        return None if failed else handle

    uuid = cuda_memory.uuid_of(torch, device)
    if uuid and by_uuid(uuid if uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid) is not None:
        return handle
    visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    index = device
    if device < len(visible):
        if not visible[device].isdigit():
            return by_uuid(visible[device])
        index = int(visible[device])
    return (
        None if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) else handle
    )


def _running(library: Any, handle: Any) -> list[tuple[int, int | None]]:
    ask = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if ask is None:
        ask = library.nvmlDeviceGetComputeRunningProcesses_v2
    length = 64
    for _ in range(3):
        count, processes = ctypes.c_uint(length), (_Process * length)()
        status = ask(handle, ctypes.byref(count), processes)
        if status == 0:
            return [
                (int(process.pid), None if process.used == _UNKNOWN else int(process.used))
                for process in processes[: count.value]
            ]
        if status != _TOO_SMALL:
            return []
        length = max(length * 2, count.value + 16)
    return []


def split_own(
    processes: list[tuple[int, int | None]], own_pids: list[int], reserved: int
) -> tuple[int | None, list[tuple[int, int | None]]]:
    """(what this process holds, the others). In a container the driver gives pids of another namespace: this process
    is then the smallest that could hold what its allocator has reserved."""
    for index, (pid, used) in enumerate(processes):
        if pid in own_pids:
            return used, processes[:index] + processes[index + 1 :]
    able = [
        process
        for process in processes
        if process[1] is not None and process[1] >= reserved * 0.99 and reserved > 0
    ]
    if not able:
        return None, processes
    mine = min(able, key=lambda process: process[1] or 0)
    return mine[1], [process for process in processes if process is not mine]


def look(torch: Any, device: int, reserved: int) -> tuple[int | None, list[Neighbour]]:
    """(bytes of this process on the card with its context, the others)."""
    own, others = split_own(processes(torch, device), own_pids(), reserved)
    mine = command_line(os.getpid())
    told = []
    for pid, used in others:
        words = command_line(pid)
        told.append(Neighbour(pid, used, short_name(words), bool(words) and words == mine))
    told.sort(key=lambda neighbour: -(neighbour.used or 0))
    return own, told[:16]


def own_pids(proc: str = "/proc") -> list[int]:
    """This process's id in every namespace it can see."""
    pids = [os.getpid()]
    try:
        with open(f"{proc}/self/status", errors="replace") as file:
            for line in file:
                if line.startswith("NSpid:"):
                    pids += [int(word) for word in line.split()[1:]]
    except (OSError, ValueError):
        pass
    return pids


def supported() -> bool:
    return sys.platform.startswith("linux")
