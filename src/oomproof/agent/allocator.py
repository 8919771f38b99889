"""PyTorch's CUDA allocator told truly: small samples while the job runs, everything when memory runs out.

The observer runs inside the failing allocation, before the exception travels: the phase, the tensors and the variables
that hold them are still there. It never starts CUDA, and it costs nothing while nothing fails."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ..leaf.allocator_memory import NEW_NAME, OLD_NAME, CudaMemory, asks_expandable, off_text
from ..leaf.attempt_names import ALLOCATOR, TENSORS
from . import allocator_segments, cuda_memory, nvml
from .agent_core import RateLimit, note_failure, write_file
from .cache_release import Releaser, size
from .exceptions import is_memory_error
from .tensor_owners import tensor_owners

_FULL_REPORTS = 3  # of one process: a job that catches the error and tries smaller batches is not slowed down
_SNAPSHOT = 20 << 20  # bytes of a snapshot file
_SAMPLE_EVERY = 1.0  # seconds, with a small burst for phase edges that come together
_SAMPLE_BURST = 4.0
_PIECES_EVERY = 10.0  # seconds between two looks at the single blocks, while there are few of them
_FEW_BLOCKS = 2000  # about 4 ms
# Seconds after which a sample is told although nothing moved, at least, and as a share of the time since the first: a trend has
# fifty looks after two minutes, and a run of a week tells 450. Ranks beside the first tell a tenth of it.
_TELL_AGAIN, _AGAIN_SHARE, _OTHER_RANK = 2.0, 0.02, 10.0
_TOLD = 400  # samples told by one process because something moved; the newest always stands in its file
_RECORD = 1024  # bytes of that file
_MOVED = 0.02
_LEAK_RISES = 12  # in a row, at the same kind of edge
_LEAK_SHARE = 0.05  # of the card


def install(module: Any, agent: Any) -> None:
    watch = Watch(module, agent)
    agent.on_phase(watch.phase_changed)
    agent.on_step(watch.stepped)
    releaser = Releaser(module, agent)
    agent.on_phase(releaser.phase_changed)
    agent.on_step(releaser.stepped)
    agent.around_inference = releaser.inference
    _State.watch = watch
    if not hasattr(module._C, "_cuda_getDeviceCount"):
        return  # a build without CUDA
    # queued by PyTorch until CUDA is started by the job itself; an error in there would break the start
    module.cuda._lazy_call(watch.started)


class _State:
    """Of this process."""

    watch: Watch | None = None


def current() -> Watch | None:
    return _State.watch


class Watch:
    def __init__(self, torch: Any, agent: Any) -> None:
        self.torch, self.agent = torch, agent
        self.reports = 0
        self.observing = False
        self.tracing = False
        self.outside_first: dict[int, int] = {}
        self._pid = os.getpid()
        self._samples = RateLimit(1 / _SAMPLE_EVERY, _SAMPLE_BURST)
        self._samples.filled = time.monotonic()
        self._pieces_at = 0.0
        self._told: dict[int, Any] = {}
        self._rises: dict[str, list[int]] = {}
        self._leak_told = False
        self._told_count, self._first_told = 0, 0.0
        self._settings_seen = False
        self._record_fd: int | None = None
        self._record_pid = 0
        self._uuids: dict[int, str | None] = {}
        self.generating: Any = None  # of the generate() under way: (memory, cached, requested) -> its numbers

    # --- CUDA starts ------------------------------------------------------------------------------------------

    def started(self) -> None:
        try:
            attach = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)
            if attach is not None:
                attach(self.out_of_memory)
                self.observing = True
        except Exception as error:  # cudaMallocAsync has no observers: the uncaught exception is told instead
            self.agent.report("allocator-note", text=f"no observer: {str(error)[:200]}")
        try:
            if self.agent.settings.get("trace_alloc"):
                self.trace("asked for with --trace-alloc")
        except Exception as error:
            self.agent.report("allocator-note", text=f"no allocation lines: {str(error)[:200]}")

    def trace(self, why: str) -> None:
        """From now on each live block knows the line that made it. About 2 µs an allocation."""
        if self.tracing:
            return
        self.tracing = True
        self.torch.cuda.memory._record_memory_history("state", context="state", stacks="python")
        self.agent.report("allocator-note", text=f"allocation lines are recorded: {why}")

    # --- samples ----------------------------------------------------------------------------------------------

    def phase_changed(self, agent: Any, before: str, now: str) -> None:
        self.sample("{}>{}".format(before or "-", now or "-"))

    def stepped(self, agent: Any, step: int) -> None:
        if time.monotonic() - self._samples.filled >= _SAMPLE_EVERY:
            self.sample("step")

    def sample(self, edge: str) -> None:
        """At most about once a second. Never starts CUDA."""
        try:
            if not self.torch.cuda.is_initialized() or not self._samples.allows(time.monotonic()):
                return
            self._tell_ignored()
            for device in cuda_memory.devices(self.torch):
                memory = cuda_memory.read(self.torch, device)
                if memory is not None:
                    first = self.outside_first.setdefault(device, memory.outside)
                    if memory.outside < first:
                        self.outside_first[device] = memory.outside
                    self._write(memory)
                    self._tell(memory, edge)
                    self._suspect(memory, edge)
        except Exception as error:
            note_failure(self.agent, "sample", error)

    def _tell_ignored(self) -> None:
        """Once: a setting that the user believes in, and that is off."""
        if self._settings_seen:
            return
        self._settings_seen = True
        asked = [os.environ.get(name) or "" for name in (NEW_NAME, OLD_NAME)]
        if not any(map(asks_expandable, asked)) or cuda_memory.capturing(self.torch):
            return
        applied = self.torch.cuda.memory._snapshot().get("allocator_settings")
        ignored = cuda_memory.ignored_setting(self.torch, applied)
        if ignored:
            self.agent.tell(off_text(ignored, cuda_memory.version_of(self.torch)))

    def _write(self, memory: CudaMemory) -> None:
        """The newest sample, where a verdict about a neighbour finds it: how much of its memory does this one use?"""
        import json

        if self._record_fd is None or os.getpid() != self._record_pid:
            self._record_pid = os.getpid()
            from .agent_start import open_high

            self._record_fd = open_high(self.agent.file(ALLOCATOR))
        if memory.device not in self._uuids:
            self._uuids[memory.device] = cuda_memory.uuid_of(self.torch, memory.device)
        value = {"wall": time.time(), "phase": self.agent.phase_now, "step": self.agent.step, **told(memory)}
        value["uuid"] = self._uuids[memory.device]
        text = json.dumps(value, separators=(",", ":")).encode()
        if len(text) < _RECORD and self._record_fd >= 0:
            try:
                os.pwrite(self._record_fd, text.ljust(_RECORD - 1) + b"\n", 0)
            except OSError:  # closed by the job's own housekeeping: never write to that number again
                self._record_fd = -1

    def _tell(self, memory: CudaMemory, edge: str) -> None:
        last = self._told.get(memory.device)
        now = time.monotonic()
        if last is not None:
            near = memory.total * _MOVED
            before = last[1]
            still = (
                abs(memory.reserved - before.reserved) < near
                and abs(memory.allocated - before.allocated) < near
                and abs(memory.free - before.free) < near
                and memory.retries == before.retries
                and memory.ooms == before.ooms
            )
            share = _AGAIN_SHARE * len(self._told) * (_OTHER_RANK if self.agent.rank else 1)
            is_due = now - last[0] >= max(_TELL_AGAIN, share * (now - self._first_told))
            if not is_due and (still or self._told_count >= _TOLD):
                return
            self._told_count += not is_due
        else:
            self._first_told = self._first_told or now
        self._told[memory.device] = (now, memory)
        fields = told(memory)
        if (
            now - self._pieces_at >= _PIECES_EVERY
            and memory.backend == "native"
            and self._few_blocks(memory.device)
        ):
            self._pieces_at = now
            pieces = allocator_segments.summarize(self.torch.cuda.memory_snapshot(), memory.device)
            fields["largest_free"] = pieces["largest_free"]
            fields["segments"] = pieces["segments"]
        self.agent.report("allocator", edge=edge, phase=self.agent.phase_now, step=self.agent.step, **fields)

    def _few_blocks(self, device: int) -> bool:
        stats = self.torch.cuda.memory_stats_as_nested_dict(device)
        return sum(int(stats[name]["all"]["current"]) for name in ("active", "inactive_split")) < _FEW_BLOCKS

    def _suspect(self, memory: CudaMemory, edge: str) -> None:
        """Memory in use that rises at every visit to the same point: a leak until shown otherwise."""
        rises = self._rises.setdefault(edge, [])
        if rises and memory.allocated <= rises[-1]:
            del rises[:]
        rises.append(memory.allocated)
        del rises[: -_LEAK_RISES - 1]
        grown = rises[-1] - rises[0]
        if len(rises) > _LEAK_RISES and grown > memory.total * _LEAK_SHARE and not self._leak_told:
            self._leak_told = True
            text = f"GPU {memory.device}: memory in use rose at each of the last {len(rises)} looks, by {size(grown)}"
            self.agent.report(
                "gpu-leak",
                text=text,
                device=memory.device,
                edge=edge,
                grown=grown,
                visits=len(rises),
                step=self.agent.step,
            )
            self.trace(f"memory in use rose at each of the last {len(rises)} looks")

    # --- out of memory ----------------------------------------------------------------------------------------

    def out_of_memory(self, device: int, requested: int, total: int, free: int) -> None:
        """Called by the allocator, without its lock. Whatever happens here, the job gets its own exception."""
        try:
            if os.getpid() != self._pid:
                self._pid, self.reports = os.getpid(), 0
            self.reports += 1
            if self.reports > _FULL_REPORTS:
                if self.reports & (self.reports - 1) == 0:  # the 4th, 8th, 16th…
                    self.agent.report(
                        "cuda-oom-again", device=int(device), requested=int(requested), number=self.reports
                    )
                return
            self.report(int(device), int(requested), int(free))
            self.trace("memory ran out once")
        except BaseException as error:  # a KeyboardInterrupt in here must not replace the job's own error
            try:
                note_failure(self.agent, "observer", error)
            except BaseException:
                pass

    def report(
        self, device: int, requested: int | None, free: int | None = None, error: BaseException | None = None
    ) -> None:
        """One full account: the recording gets the figures, the attempt's folder the snapshot."""
        begun = time.monotonic()
        torch, agent = self.torch, self.agent
        memory = cuda_memory.read(torch, device)
        fields: dict[str, Any] = told(memory) if memory is not None else {}
        if free is not None:
            fields["free"] = free
        fields.update(
            device=device, requested=requested, number=self.reports, phase=agent.phase_now, step=agent.step
        )
        fields["outside_first"] = self.outside_first.get(device)
        fields["uuid"] = cuda_memory.uuid_of(torch, device)
        fields["stack"] = stack()
        fields["torch"] = cuda_memory.version_of(torch)
        fields["settings"] = cuda_memory.settings_text(torch)[:300]
        held = memory.reserved if memory is not None else 0
        own, neighbours = nvml.look(torch, device, held) if nvml.supported() else (None, [])
        fields["own"] = own
        if own is not None and memory is not None:
            fields["context"] = max(0, own - memory.reserved)
            fields["others"] = max(0, memory.outside - fields["context"])
        fields["neighbours"] = [neighbour._asdict() for neighbour in neighbours]
        if memory is not None and memory.backend == "native":
            self._with_snapshot(fields, device)
        fields.update(_owners(torch, "cuda", device, error))
        if memory is not None:
            fields["unseen"] = max(0, memory.allocated + memory.spilled - int(fields.get("seen", 0)))
        if self.generating is not None and memory is not None:
            cached = sum(owner["bytes"] for owner in fields["owners"] if owner["kind"] == "kv-cache")
            try:
                fields["generating"] = self.generating(memory, cached, requested or 0)
            except Exception as problem:
                fields["generating_failed"] = str(problem)[:200]
        fields["took"] = round(time.monotonic() - begun, 3)
        # a datagram may be lost, or come too late
        write_json(agent.file(f"cuda-oom-{self.reports}.json"), fields)
        fields["text"] = headline(fields)
        agent.report("cuda-oom", **fields)

    def _with_snapshot(self, fields: dict[str, Any], device: int) -> None:
        try:
            snapshot = self.torch.cuda.memory._snapshot()
            parts = snapshot["segments"]
            fields["pieces"] = allocator_segments.summarize(parts, device)
            applied = snapshot.get("allocator_settings") or {}
            if isinstance(on := applied.get("expandable_segments"), bool):
                fields["expandable"] = on  # it may be set by the script itself, or be ignored
            fields["ignored"] = cuda_memory.ignored_setting(self.torch, applied)
            lines = allocator_segments.lines_of(parts, device) if self.tracing else []
            if lines:
                fields["lines"] = lines
            fields["snapshot"] = os.path.basename(
                keep(snapshot, self.agent.file(f"cuda-oom-{self.reports}.pickle"))
            )
        except Exception as error:
            fields["no_snapshot"] = f"{type(error).__name__}: {str(error)[:200]}"


def headline(fields: dict[str, Any]) -> str:
    asked = fields.get("requested")
    where = f" in {fields['phase']}" if fields.get("phase") else ""
    words = f"asked for {size(asked)}" if asked else "out of memory"
    return f"GPU {fields.get('device')}{where}: {words}, {size(fields.get('free') or 0)} was free"


def write_json(path: str, value: dict[str, Any]) -> None:
    import json

    data = json.dumps({"pid": os.getpid(), "wall": time.time(), **value}, default=str)
    write_file(path, data.encode())


def told(memory: CudaMemory) -> dict[str, Any]:
    return {
        **memory._asdict(),
        "unused": memory.unused,
        "returnable": memory.returnable,
        "outside": memory.outside,
    }


def keep(snapshot: dict[str, Any], path: str, most: int = _SNAPSHOT) -> str:
    """Written as PyTorch's own memory viewer reads it. Too large: the history goes first, then frames, then the
    smallest segments."""
    import pickle

    kept: dict[str, Any] = dict(snapshot)
    text = pickle.dumps(kept, protocol=4)
    if len(text) > most:
        kept["device_traces"] = [[] for _ in kept.get("device_traces", [])]
        text = pickle.dumps(kept, protocol=4)
    if len(text) > most:
        for segment in kept["segments"]:
            for block in segment.get("blocks", ()):
                block["frames"] = []
        text = pickle.dumps(kept, protocol=4)
    parts = sorted(kept["segments"], key=lambda candidate: -int(candidate.get("total_size", 0)))
    while len(text) > most and parts:
        parts = parts[: int(len(parts) * 0.9 * most / len(text))]
        kept["segments"] = parts
        text = pickle.dumps(kept, protocol=4)
    if len(text) <= most:
        write_file(path, text)
    return path


def stack(most: int = 6) -> list[str]:
    """The user's functions, innermost first; none of the libraries', unless there is nothing else."""
    frame: Any = sys._getframe(1)
    own, all_of_them = [], []
    while frame is not None:
        code = frame.f_code
        text = "{} ({}:{})".format(code.co_name, code.co_filename.rpartition("/")[2], frame.f_lineno)
        if "/oomproof/agent/" not in code.co_filename:
            all_of_them.append(text)
            if not allocator_segments.is_library(code.co_filename):
                own.append(text)
        frame = frame.f_back
    return (own or all_of_them)[:most]


def _owners(
    torch: Any, device_type: str, index: int | None = None, error: BaseException | None = None
) -> dict[str, Any]:
    try:
        owners = tensor_owners(torch, device_type, index, error=error)
        return {"owners": owners["owners"], "seen": owners["seen"], "owners_complete": owners["complete"]}
    except Exception as error:
        return {"owners": [], "seen": 0, "owners_complete": False, "owners_failed": str(error)[:200]}


def memory_owners_report(agent: Any, error: BaseException | None = None) -> None:
    """For whoever sees a memory error that no observer saw: the host's MemoryError and PyTorch's CPU allocator,
    Apple's GPU, cudaMallocAsync. Says what the tensors alive hold. Never raises."""
    try:
        torch = sys.modules.get("torch")
        if torch is None or (error is not None and not is_memory_error(error)):
            return
        text = str(error) if error is not None else ""
        watch = _State.watch
        if "CUDA out of memory" in text:
            if watch is not None and not watch.observing and watch.reports < _FULL_REPORTS:
                watch.reports += 1
                devices = cuda_memory.devices(torch)
                watch.report(devices[0] if devices else 0, None, error=error)
            return
        kind = "mps" if "MPS backend" in text else "cpu"
        fields: dict[str, Any] = {"device_type": kind, "phase": agent.phase_now, "step": agent.step}
        if kind == "mps":
            for name in ("current_allocated_memory", "driver_allocated_memory", "recommended_max_memory"):
                try:
                    fields[name] = int(getattr(torch.mps, name)())
                except Exception:  # an older PyTorch lacks one of the three
                    pass
        fields.update(_owners(torch, kind, error=error))
        write_json(agent.file(TENSORS), fields)
        agent.report("tensors", **fields)
    except Exception:  # the job's own error is on its way: ours must not take its place
        pass
