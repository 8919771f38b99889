"""Started by path: `python measure_card.py JOB RESULTS`. Measures on the first visible card what JOB asks for, a line of JSON each.

JOB: {"constants": bool, "signatures": [...], "seconds": N, "share": of the card's free memory that may be used}. A line is
written before and after each signature, so that whoever reads knows at which one this process hung or died.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

# Bytes used of each card, by the driver's own library: what torch's allocator cannot tell.


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class CardUsage:
    """``uuid`` → bytes; empty where the library is not there. Asking it makes no context on any card."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self.driver = ""
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._open()
        except (OSError, AttributeError):
            self._handles = {}

    def _open(self) -> None:
        nvml, count, text = self._nvml, ctypes.c_uint(), ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2():
            return
        if not nvml.nvmlSystemGetDriverVersion(text, 96):
            self.driver = text.value.decode("ascii", "replace")
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue
            if not nvml.nvmlDeviceGetUUID(handle, text, 96):
                self._handles[short(text.value.decode("ascii", "replace"))] = handle

    def used(self) -> dict[str, int]:
        found = {}
        for uuid, handle in self._handles.items():
            memory = _Memory()
            if not self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                found[uuid] = int(memory.used)
        return found


def short(uuid: Any) -> str:
    """The same however it is written: ``GPU-1234…`` or ``1234…``."""
    return str(uuid).lower().replace("gpu-", "")


_OLDEST = (2, 1)
# words of the driver and of torch for a card that others hold
_BUSY = ("busy or unavailable", "out of memory", "exclusive")


class Report:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="ascii")  # noqa: SIM115 - for the whole process

    def __call__(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main(job_path: str, results: str) -> int:
    began = time.monotonic()
    with open(job_path, encoding="utf-8") as file:
        job = json.load(file)
    report = Report(results)
    try:
        import torch
    except ImportError as error:
        report(failed="no torch", why=str(error))
        return 1
    why = _unfit(torch)
    if why:
        report(failed=why[0], why=why[1])
        return 1

    usage = CardUsage()
    before = usage.used()
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    except Exception as error:
        kind = "busy" if any(text in str(error) for text in _BUSY) else "no card"
        report(failed=kind, why=_first_line(error))
        return 1
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    report(
        card={
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "driver": usage.driver,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
            "total": total,
        },
        python=sys.version.split()[0],
    )
    uuid = short(getattr(properties, "uuid", ""))
    if uuid not in before and len(before) == 1:
        uuid = next(iter(before))
    allowed = int(free * job.get("share", 0.8))
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))
    if job.get("constants"):
        _constants(report, usage, uuid, before, total, free)
    ends = began + float(job.get("seconds", 60))
    _signatures(report, job.get("signatures", []), ends, allowed)
    report(end=True)
    return 0


def _unfit(torch: Any) -> tuple[str, str] | None:
    version = str(torch.__version__)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        return "old torch", version
    if torch.version.cuda is None:
        return "no cuda", f"torch {version} has no CUDA"
    return None


def _constants(report: Report, usage: Any, uuid: str, before: dict[str, int], total: int, free: int) -> None:
    import torch

    from .measured_operations import measure_constants

    def used() -> int:
        found = usage.used()
        if uuid in found:
            return int(found[uuid])
        left, whole = torch.cuda.mem_get_info()
        return int(whole - left)

    try:
        # without the driver's library the context itself cannot be told from others' memory
        found = measure_constants(used, before.get(uuid, 0))
    except Exception as error:
        report(constants=None, why=_first_line(error))
        return
    report(constants=found, others=before.get(uuid, 0) if uuid in before else None)


def _signatures(report: Report, signatures: Any, ends: float, allowed: int) -> None:
    import torch

    from . import measured_operations

    for index, signature in enumerate(signatures):
        if time.monotonic() > ends:
            report(late=index)
            return
        report(begin=index)
        try:
            free = min(allowed - torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0])
            if torch.cuda.memory_reserved() > allowed // 4:
                torch.cuda.empty_cache()
                free = min(allowed - torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0])
            report(done=index, measured=measured_operations.measure(signature, free))
        except (measured_operations.TooLarge, torch.cuda.OutOfMemoryError) as error:
            report(done=index, large=_first_line(error))
            torch.cuda.empty_cache()
        except Exception as error:
            report(done=index, error=f"{type(error).__name__}: {_first_line(error)}")
            if "CUDA error" in str(error):  # the context is lost: a new process continues behind this one
                return


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _as_package() -> Any:
    """This file once more, as part of a package of its folder, whatever is installed in this Python."""
    import importlib
    from importlib.machinery import ModuleSpec
    from importlib.util import module_from_spec

    spec = ModuleSpec("_oomproof_card_measuring", None, is_package=True)
    spec.submodule_search_locations = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["_oomproof_card_measuring"] = module_from_spec(spec)
    return importlib.import_module("_oomproof_card_measuring.measure_card")


if __name__ == "__main__":
    sys.exit(_as_package().main(*sys.argv[1:3]))
