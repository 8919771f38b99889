"""Bytes used of each card, by the driver's own library: what torch's allocator cannot tell."""

from __future__ import annotations

import ctypes
from typing import Any


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
