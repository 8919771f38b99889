"""What the sixty jobs take on a card that nobody else uses: one line of JSON a job; those that are there already are left out.

    python bench/sizing/measure.py rows.jsonl [--only tuning|reporting|fresh|fresh2|NAME,NAME] [--caps caps.json [--at-once 5]] [--traces FOLDER] [--operations FOLDER] [--seconds N]

Each job runs in a fork of its own from a process that has imported the libraries and never touched the card. Device memory is
NVML's figure for the card, read every few milliseconds, less what it showed before. ``--caps``: job → bytes; the allocator gets
no more than that. ``--traces`` keeps each call of the allocator; with ``--operations`` nothing is measured but the memory that
each operation takes beyond its results. ``--at-once``: with ``--caps`` so many jobs share the card, as long as their caps fit
it together; whether a job finishes does not depend on its neighbours, and what the card shows then says nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs import PROGRAMS, command, half, wanted

MIB = 1 << 20
SECONDS_A_JOB = 60.0
SHARED = 110 << 30  # bytes of a card that jobs may have at once, each with a context beside its cap
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
    "1"  # what is imported before the forks must not wake the driver
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--caps", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--operations", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--at-once", type=int, default=1)
    args = parser.parse_args()
    caps = json.loads(args.caps.read_text()) if args.caps else {}
    done = (
        {json.loads(line)["job"] for line in args.rows.read_text().splitlines()}
        if args.rows.exists()
        else set()
    )
    ends = time.monotonic() + args.seconds
    _import_all()
    if args.at_once > 1:
        names = [name for name in wanted(args.only) if name in caps and name not in done]
        for row in _finished(names, caps, args.at_once, ends):
            with args.rows.open("a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)
        return
    card = Card()
    for name in wanted(args.only):
        if name in done or (args.caps and name not in caps):
            continue
        if time.monotonic() > ends:
            print("out of time", flush=True)
            break
        if args.operations:
            _in_fork(name, args.operations)
            continue
        row = {"job": name, "half": half(name), **card.measured(name, caps.get(name), args.traces)}
        with args.rows.open("a") as file:
            print(json.dumps(row), file=file)
        print(json.dumps(row), flush=True)


def _finished(names: list[str], caps: dict[str, int], at_once: int, ends: float) -> Iterator[dict[str, Any]]:
    """The jobs side by side: how each ended. No NVML here: a fork must not inherit its locks."""
    waiting, running = sorted(names, key=lambda name: -caps[name]), {}
    while waiting or running:
        used = sum(caps[name] for name, _, _ in running.values())
        fits = next((name for name in waiting if used + caps[name] <= SHARED or not running), None)
        if waiting and time.monotonic() > ends:
            print("out of time", flush=True)
            waiting = []
        elif fits is not None and len(running) < at_once:
            waiting.remove(fits)
            path = f"/tmp/measured-{os.getpid()}-{fits}.json"
            child = os.fork()
            if child == 0:
                _job(fits, caps[fits], None, path)
            running[child] = (fits, path, time.monotonic())
            continue
        time.sleep(0.02)
        for child, (name, path, started) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() - started > 2 * SECONDS_A_JOB:
                os.kill(child, signal.SIGKILL)
                ended, status = os.waitpid(child, 0)
            if ended:
                del running[child]
                result = json.loads(Path(path).read_text()) if os.path.exists(path) else {}
                yield {
                    "job": name,
                    "half": half(name),
                    "status": os.waitstatus_to_exitcode(status),
                    "seconds": round(time.monotonic() - started, 1),
                    **result,
                }


def _import_all() -> None:
    import importlib

    for name in ("torch", "torchvision", "transformers", "transformers.models.gpt2.modeling_gpt2", "transformers.trainer",
                 "transformers.modeling_utils", "transformers.generation.utils", "accelerate", "lightning", "pytorch_lightning"):  # fmt: skip
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"not here: {error}", flush=True)


class Card:
    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self._idle = self.used()

    def used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def settled(self) -> int:
        """What is used once the job before has given its memory back, which the driver does a moment after its end."""
        ends = time.monotonic() + 3.0
        while self.used() > self._idle + 8 * MIB and time.monotonic() < ends:
            time.sleep(0.02)
        return self.used()

    def measured(self, name: str, cap: Any, traces: Path | None) -> dict[str, Any]:
        before, started, peak = self.settled(), time.monotonic(), 0
        result: dict[str, Any] = {}
        stop = threading.Event()

        def sample() -> None:
            nonlocal peak
            while not stop.wait(0.003):
                peak = max(peak, self.used())

        thread = threading.Thread(target=sample)
        path = f"/tmp/measured-{os.getpid()}.json"
        child = os.fork()
        if child == 0:
            _job(name, cap, traces, path)
        thread.start()
        status = _waited_for(child)
        stop.set()
        thread.join()
        if os.path.exists(path):
            result = json.loads(Path(path).read_text())
            os.unlink(path)
        return {"device": (peak - before) // MIB, "idle": before // MIB, "status": os.waitstatus_to_exitcode(status),
                "seconds": round(time.monotonic() - started, 1), **result}  # fmt: skip


def _in_fork(name: str, folder: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            _operations(name, folder)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    _waited_for(child)


def _waited_for(child: int) -> int:
    """Its wait status; a job that hangs must not eat the time lent on a card."""
    ends = time.monotonic() + SECONDS_A_JOB
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _program(name: str) -> None:
    file, *arguments = command(name)
    sys.argv = [file, *arguments]
    sys.path.insert(0, os.path.dirname(file))
    if not file.startswith(str(PROGRAMS)):
        os.chdir(os.path.dirname(file))
        _forget_namesakes(Path(file).parent)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    runpy.run_path(file, run_name="__main__")


def _forget_namesakes(folder: Path) -> None:
    """A program that has a module `datasets` must not get the library that a fork has imported already."""
    own = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name in list(sys.modules):
        if name.partition(".")[0] in own - {"__main__"}:
            del sys.modules[name]


def _job(name: str, cap: Any, traces: Path | None, path: str) -> None:
    import torch

    result: dict[str, Any] = {}
    try:
        if cap is not None:
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total))
        if traces is not None:
            torch.cuda.memory._record_memory_history(context=None, max_entries=3_000_000)
        _program(name)
    except BaseException as error:
        result["error"] = f"{type(error).__name__}: {error}"[:300]
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    result |= {
        "reserved": stats["reserved_bytes.all.peak"] // MIB, "allocated": stats["allocated_bytes.all.peak"] // MIB,
        "kept": torch.cuda.memory_reserved() // MIB, "l2": torch.cuda.get_device_properties(0).L2_cache_size, "retries": stats["num_alloc_retries"],
        "context": (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) // MIB - torch.cuda.memory_reserved() // MIB,
    }  # fmt: skip
    if traces is not None:
        _keep_trace(name, traces)
    Path(path).write_text(json.dumps(result))
    os._exit(1 if "error" in result else 0)


def _keep_trace(name: str, folder: Path) -> None:
    """Action, address and bytes of every call."""
    import torch

    codes = {"alloc": 1, "free_requested": 2, "free_completed": 3, "segment_alloc": 4, "segment_free": 5}
    rows = [
        (codes.get(entry["action"], 9), entry.get("addr", 0), entry["size"])
        for trace in torch.cuda.memory._snapshot()["device_traces"]
        for entry in trace
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"{name}.gz", "wt", compresslevel=5) as file:
        last = 0
        for code, address, size in rows:
            if code in (1, 2, 4, 5):
                file.write(f"{code} {address - last} {size}\n")
                last = address


def _operations(name: str, folder: Path) -> None:
    """One line for each kind of operation that takes 256 KiB or more beyond its results."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen: dict[str, int] = {}

    def text(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            last = (
                value.dim() == 4
                and value.is_contiguous(memory_format=torch.channels_last)
                and not value.is_contiguous()
            )
            return f"{str(value.dtype)[6:]}{list(value.shape)}{'L' if last else '' if value.is_contiguous() else 'S'}@{value.device.type}"
        if isinstance(value, (list, tuple)):
            return [text(part) for part in value[:4]] + ([f"...{len(value)}"] if len(value) > 4 else [])
        return str(value)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            known = {
                tensor.untyped_storage().data_ptr()
                for tensor in tree_leaves((args, kwargs))
                if isinstance(tensor, torch.Tensor)
            }
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            out = func(*args, **(kwargs or {}))
            made = {tensor.untyped_storage().data_ptr(): -(-tensor.untyped_storage().nbytes() // 512) * 512
                    for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor) and tensor.is_cuda}  # fmt: skip
            results = sum(size for at, size in made.items() if at not in known)
            extra = torch.cuda.max_memory_allocated() - before - results
            if extra >= 256 << 10 or -extra >= 256 << 10:
                key = f"{func}\t{json.dumps([text(value) for value in args])}\t{json.dumps({k: text(v) for k, v in (kwargs or {}).items()})}"
                seen[key] = max(seen.get(key, -(1 << 60)), extra)
            return out

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Watch():
            _program(name)
    finally:
        with gzip.open(folder / f"{name}.gz", "wt") as file:
            for key, extra in seen.items():
                file.write(f"{extra}\t{key}\n")


if __name__ == "__main__":
    main()
