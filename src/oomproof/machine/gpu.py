"""GPUs: memory used and total, and who uses it. NVIDIA through NVML, AMD through sysfs.

NVML runs in a process of its own (``python -m oomproof.machine.gpu``), started only where a driver is:
a driver call can hang for ever, and whoever asks must not hang with it.
"""

from __future__ import annotations

import glob
import json
import os
import selectors
import subprocess
import sys as system
import time
from collections.abc import Mapping, Sequence
from typing import Any

from oomproof.leaf.proc_files import read_text
from oomproof.machine import nvidia
from oomproof.records import asdict, dataclass

SCHEMA = 1
_HIDDEN_WSL = "WSL2 does not tell which process uses how much"
_HIDDEN_CONTAINER = "the driver lists no process here (they run outside this container, or it hides them)"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    used: int | None  # None: the driver does not tell


@dataclass(frozen=True, slots=True)
class Gpu:
    """Bytes. On a unified-memory machine the GPU has none of its own: all three are None."""

    index: int
    name: str
    total: int | None
    used: int | None
    free: int | None
    processes: tuple[GpuProcess, ...] = ()
    note: str | None = None  # what the figures do not show, and why
    persistence: bool | None = None  # whether the driver stays loaded while nobody uses the card

    @property
    def unified(self) -> bool:
        return self.total is None


@dataclass(frozen=True, slots=True)
class Gpus:
    """What could be found out; ``problem`` says why there is less than there should be."""

    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None


class Query:
    """One question to the helper: started at once, answered within the deadline or given up."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        # -P: a gpu.py or json.py in the user's folder must not be imported in place of ours
        command = command or [system.executable, "-P", "-m", __name__, "--once"]
        self._helper: subprocess.Popen[bytes] | None = None
        try:
            self._helper = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            pass

    def answer(self, deadline: float) -> Gpus:
        """What the helper says within ``deadline`` seconds from now. Never waits for a helper that hangs."""
        helper = self._helper
        if helper is None or helper.stdout is None:
            return Gpus(problem="the GPU helper could not be started")
        text = _read_line(helper.stdout.fileno(), time.monotonic() + deadline)
        helper.kill()  # inside a driver call this may have no effect, and then nobody can wait for it
        helper.stdout.close()
        if text is None:
            return Gpus(problem=f"the GPU driver did not answer within {deadline:g} s (try: nvidia-smi)")
        helper.poll()
        return from_json(text)


def start_query(proc: str = "/proc", dev: str = "/dev") -> Query | None:
    """The question to NVIDIA's driver; None where there is none."""
    return Query() if nvidia.driver_present(proc, dev) else None


def read(deadline: float, query: Query | None, sys: str = "/sys") -> Gpus:
    """The cards of every vendor, after ``query`` was answered or given up."""
    return with_amd(query.answer(deadline) if query is not None else Gpus(), sys)


def with_amd(cards: Gpus, sys: str = "/sys") -> Gpus:
    """These and AMD's, which are counted on from them."""
    return Gpus(cards.gpus + read_amd(sys, first_index=len(cards.gpus)), cards.problem)


def read_amd(sys: str = "/sys", first_index: int = 0) -> tuple[Gpu, ...]:
    """AMD cards, from what amdgpu writes into sysfs; per process from its compute driver (ROCm)."""
    gpus: list[Gpu] = []
    for path in sorted(glob.glob(f"{sys}/class/drm/card*/device/mem_info_vram_total")):
        device = os.path.dirname(path)
        total, used = _number(path), _number(f"{device}/mem_info_vram_used")
        if not total or used is None:
            continue
        name = read_text(f"{device}/product_name").strip() or "AMD GPU"
        processes = _kfd_processes(device, sys)
        index = first_index + len(gpus)
        gpus.append(Gpu(index, name, total, used, max(0, total - used), processes))
    return tuple(gpus)


def _kfd_processes(device: str, sys: str) -> tuple[GpuProcess, ...]:
    """kfd/proc/PID/vram_ID, where ID belongs to the node whose render device is this card's."""
    minors = {os.path.basename(path).removeprefix("renderD") for path in glob.glob(f"{device}/drm/renderD*")}
    for node in glob.glob(f"{sys}/class/kfd/kfd/topology/nodes/*"):
        properties = dict(
            line.split(None, 1)
            for line in read_text(f"{node}/properties").strip().splitlines()
            if " " in line
        )
        if properties.get("drm_render_minor", "") in minors:
            gpu_id = read_text(f"{node}/gpu_id").strip()
            used = {
                int(path.split("/")[-2]): _number(path)
                for path in glob.glob(f"{sys}/class/kfd/kfd/proc/[0-9]*/vram_{gpu_id}")
            }
            return tuple(GpuProcess(pid, size) for pid, size in sorted(used.items()) if size)
    return ()


# --- the helper's side --------------------------------------------------------------------------------------


def query_nvml(nvml: Any, wsl: bool) -> Gpus:
    """One reading through an initialised NVML; what the driver refuses is None, not an error."""
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError as error:  # a card that fell off the bus
            gpus.append(Gpu(index, "unreadable GPU", 0, 0, 0, note=str(error)))
            continue
        name = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        memory = _memory(nvml, handle)
        if memory is None:
            note = "unified memory: the GPU lives in the machine's RAM, and no cgroup limit sees its use"
            gpus.append(Gpu(index, name, None, None, None, _nvml_processes(nvml, handle), note))
            continue
        processes = _nvml_processes(nvml, handle)
        hidden = _hidden(wsl, bool(processes), memory[1])
        gpus.append(Gpu(index, name, *memory, processes, hidden, _persistence(nvml, handle)))
    return Gpus(tuple(gpus))


def _hidden(wsl: bool, listed: bool, used: int) -> str | None:
    if wsl:
        return _HIDDEN_WSL
    return _HIDDEN_CONTAINER if used > 1 << 30 and not listed else None


def _memory(nvml: Any, handle: Any) -> tuple[int, int, int] | None:
    """(total, used, free); what the driver keeps for itself counts as used. None on unified memory."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return None
    return int(memory.total), int(memory.total - memory.free), int(memory.free)


def _persistence(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetPersistenceMode(handle))
    except (nvml.NVMLError, AttributeError):  # Windows' driver under WSL2 has no such mode
        return None


def _nvml_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    used: dict[int, int | None] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            processes = ask(handle)
        except nvml.NVMLError:
            continue
        for process in processes:  # one process can stand in both lists, with the same figure
            used[int(process.pid)] = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
    return tuple(GpuProcess(pid, size) for pid, size in sorted(used.items()))


def to_json(gpus: Gpus) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(gpus)})


def from_json(text: bytes | str) -> Gpus:
    """Reads a helper's line; anything else is a problem told in words."""
    try:
        content: Mapping[str, Any] = json.loads(text)
        gpus = [
            Gpu(**{**gpu, "processes": tuple(GpuProcess(**process) for process in gpu["processes"])})
            for gpu in content["gpus"]
        ]
        return Gpus(tuple(gpus), content["problem"])
    except (ValueError, TypeError, KeyError):
        return Gpus(problem="the GPU helper ended without an answer (try: nvidia-smi)")


def main(arguments: Sequence[str]) -> int:
    """``--once``, or ``--every SECONDS``: one JSON line per tick until the reader closes stdin or stdout."""
    every = float(arguments[1]) if arguments[:1] == ["--every"] and len(arguments) > 1 else None
    if every is None and list(arguments) != ["--once"]:
        print("usage: python -m oomproof.machine.gpu --once | --every SECONDS", file=system.stderr)
        return 2
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no library, no driver, version mismatch after an update: all of it is news
        _say(Gpus(problem=f"NVML: {error}"))
        return 0
    wsl = os.path.exists("/dev/dxg")
    while _say(_reading(pynvml, wsl)) and every is not None and not _closed_within(every):
        pass
    return 0


def _reading(nvml: Any, wsl: bool) -> Gpus:
    try:
        return query_nvml(nvml, wsl)
    except nvml.NVMLError as error:
        return Gpus(problem=f"NVML: {error}")


def _say(gpus: Gpus) -> bool:
    """False when nobody reads any more."""
    try:
        print(to_json(gpus), flush=True)
    except OSError:
        system.stdout = open(os.devnull, "w")  # noqa: SIM115 - the flush at exit must not fail again
        return False
    return True


def _closed_within(seconds: float) -> bool:
    """Waits for the next tick; True as soon as the other end of stdin or stdout has closed."""
    import select

    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(1, 0)  # an error or hangup is reported without being asked for
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for fd, event in poll.poll(left * 1000):
            if event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                return True
            if fd == 0 and not os.read(0, 4096):
                return True
    return False


# --- reading ------------------------------------------------------------------------------------------------


def _read_line(fd: int, deadline: float) -> bytes | None:
    """The first line, or everything before the end of file; None past the deadline."""
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while b"\n" not in text:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            part = os.read(fd, 65536)
            if not part:
                break
            text += part
    return text.partition(b"\n")[0]


def _number(path: str) -> int | None:
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None


if __name__ == "__main__":
    system.exit(main(system.argv[1:]))
