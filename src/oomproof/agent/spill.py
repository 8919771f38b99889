"""``--spill 8G``: the one batch that does not fit runs slowly instead of ending the job.

As soon as the job has started CUDA, a thread takes host memory, pins it and gives it to PyTorch as a pool for what the card
refuses. Nothing else happens until it is used: the looks after each step cost microseconds. Never raises, never starts CUDA.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from ..leaf.attempt_names import SPILL, SPILL_CLAIM
from ..leaf.proc_files import is_alive, start_time
from . import cuda_memory, gpu_limit
from .agent_core import _anonymous
from .cache_release import size
from .spill_conditions import host_headroom, largest_beside, refusal, samples_in
from .spill_pool import (
    MIB,
    PIECE,
    NotPinned,
    PinnedMemory,
    Spilled,
    SpillPool,
    StepTimes,
    always_text,
    fitting_share,
    small_part,
    text_of,
)

LEAST = 256 * MIB
# seconds between looks for the card that the job uses, of several; and at most
_WAIT, _LONGEST_WAIT = 0.1, 600.0
_LONGEST_PIN = 60.0  # seconds that the first pass waits; 8 GiB take two
_TELL_EVERY = 300.0  # seconds between two spills that are said; all are recorded
_RECORDED, _IN_WORDS = 200, 5  # spills recorded one by one, and in words; later ones are in the sums
_WRITE_EVERY = 1.0  # seconds between two writes of the sums
_LOOK_AT_HOST = 1.0  # seconds between looks whether the host needs the memory back


def install(module: Any, agent: Any) -> None:
    asked = agent.settings.get("spill")
    if not isinstance(asked, int) or asked < LEAST:
        return
    spill = Spill(module, agent, asked)
    why = refusal(module, os.environ)
    if why:
        spill.refuse(why)
        return
    module.cuda._lazy_call(spill.started)  # when the job itself starts CUDA


class Spill:
    def __init__(self, torch: Any, agent: Any, asked: int) -> None:
        self.torch, self.agent, self.asked = torch, agent, asked
        self.margin = int(agent.settings.get("margin") or 0)
        self.pool: SpillPool | None = None
        self._pid = os.getpid()
        self._thread: Any = None
        self._is_pinning = False
        self._device = 0
        self._fraction = 1.0  # that we have set
        self._times = StepTimes()
        self._last = 0.0  # when the last step ended
        self._phased = False  # whether a phase came in between: then this step's time says nothing
        self._entered = 0.0
        self._phase_times: dict[str, StepTimes] = {}
        self._batch: int | None = None
        self._told = -1e9
        self._told_always = False
        self._sums: dict[str, Any] = {"size": 0, "count": 0, "bytes": 0, "seconds": 0.0, "largest": 0}
        self._written = 0.0
        self._host_looked = 0.0

    # --- before its use ---------------------------------------------------------------------------------------

    def started(self) -> None:
        """CUDA has just been started by the job. An error here would be the job's."""
        try:
            self._pid = os.getpid()  # it may have been forked since
            if not self._is_for_this_process() or not self._claim():
                return
            import threading

            self._thread = threading.Thread(target=self._prepare, name="oomproof-spill", daemon=True)
            self.agent.on_step(self.stepped)
            self.agent.on_phase(self.phase_changed)
            self.agent.on_batch.append(self.took_batch)
            self._thread.start()
        except Exception as error:
            self.refuse(f"{type(error).__name__}: {str(error)[:200]}")

    def _is_for_this_process(self) -> bool:
        """A loader's workers and other children of multiprocessing never."""
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            return False
        processes = sys.modules.get("multiprocessing.process")
        return processes is None or processes.parent_process() is None

    def _claim(self) -> bool:
        """One process of the job has it; another only when that one has ended."""
        path = os.path.join(self.agent.folder, SPILL_CLAIM)
        for _ in range(2):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
            except FileExistsError:
                with open(path) as file:
                    words = file.read().split()
                if not words or (all(map(str.isdigit, words)) and is_alive(int(words[0]), int(words[-1]))):
                    self.refuse("another process of this job has it already", tell=False)
                    return False
                os.unlink(path)
                continue
            os.write(fd, f"{os.getpid()} {start_time(os.getpid()) or 0}".encode())
            os.close(fd)
            return True
        return False

    def _prepare(self) -> None:
        """In a thread of its own: taking 8 GiB lasts seconds, and slows no step."""
        try:
            device = self._find_device()
            if device is None:
                self.refuse("the job started CUDA, but used no card")
                return
            self._is_pinning = True
            self._make(device)
        except NotPinned as error:
            self.refuse(f"the host's memory could not be pinned: {error}")
        except Exception as error:
            self.refuse(f"{type(error).__name__}: {str(error)[:300]}")
        finally:
            self._is_pinning = False

    def _wait(self) -> None:
        """Before the first pass, and after the first step: loading continues beside the pinning, but a batch that does not fit would
        end the job in a millisecond."""
        if self._is_pinning and os.getpid() == self._pid:
            begun = time.monotonic()
            self._thread.join(_LONGEST_PIN)
            self.agent.report("spill", did="waited", seconds=round(time.monotonic() - begun, 2))

    def _find_device(self) -> int | None:
        """The only card, or the first on which the job holds something: to ask about another would start a context there."""
        if int(self.torch.cuda.device_count()) == 1:
            return 0
        deadline, pause = time.monotonic() + _LONGEST_WAIT, _WAIT
        while time.monotonic() < deadline:
            devices = cuda_memory.devices(self.torch)
            if devices:
                return devices[0]
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
        return None

    def _make(self, device: int) -> None:
        torch, begun = self.torch, time.monotonic()
        torch.cuda.set_device(device)  # of this thread only
        driver = ctypes.CDLL("libcuda.so.1")
        _allow_beside_captures(driver)
        total = int(torch.cuda.get_device_properties(device).total_memory)
        share = min(cuda_memory.fraction_of_process(torch, device), self._limit_share(device, total))
        whole = min(self.asked, largest_beside(share, total)) // PIECE * PIECE
        if whole < LEAST:
            raise NotPinned(
                f"the GPU limit leaves {size(max(0, whole))} for it: PyTorch counts both, up to the card's {size(total)}"
            )
        large = whole - small_part(whole)
        self.agent.report("spill", did="pinning", bytes=whole)
        memory = PinnedMemory(whole, large)
        memory.take(self._host_left)
        took = time.monotonic() - begun
        memory.pin(driver)
        self._device = device
        cuda_memory.SPILLS[device] = cuda_memory.Pool(memory.size, lambda: 0)
        self._raise_fraction(total, share)
        try:
            pool = SpillPool(torch, device, memory, large)
        except Exception:  # whatever it was, nothing stays taken
            del cuda_memory.SPILLS[device]
            self._raise_fraction(total, share)
            memory.give_back(driver)
            raise
        cuda_memory.SPILLS[device] = cuda_memory.Pool(pool.size, pool.live)
        self.pool = pool
        self._sums["size"] = pool.size
        self._write(force=True)
        seconds = round(time.monotonic() - begun, 2)
        less = (
            f" ({size(self.asked)} were asked for: the GPU limit leaves no more)"
            if whole < self.asked // PIECE * PIECE
            else ""
        )
        self.agent.report(
            "spill", did="ready", text=f"{size(pool.size)} of host memory pinned for GPU {device} in {seconds} s{less}",
            device=device, bytes=pool.size, asked=self.asked, seconds=seconds, taking=round(took, 2),
        )  # fmt: skip
        if less:
            self.agent.tell(f"--spill is {size(whole)}{less}")

    def _host_left(self) -> int | None:
        """A limit that the kernel enforces is in its cgroup; one that it does not is compared with this process alone."""
        left, limit = host_headroom(self.margin), self.agent.settings.get("limit")
        held = _anonymous()
        if isinstance(limit, int) and held is not None:
            own = limit - limit // 10 - held
            left = own if left is None else min(left, own)
        return left

    def _limit_share(self, device: int, total: int) -> float:
        """Of --gpu-limit, which may come after us."""
        limits = gpu_limit.read(self.agent.settings.get("gpu_limit"))
        limit = limits.get(device, limits.get(None))
        return 1.0 if limit is None else gpu_limit.fraction_of(limit, gpu_limit.CONTEXT, total)

    def _raise_fraction(self, total: int, share: float) -> None:
        """The pool counts in what a limit of PyTorch's own allows: the limit is for the card."""
        if share >= 1.0:
            return
        pool = cuda_memory.SPILLS.get(self._device)
        self._fraction = min(1.0, share + (pool.size if pool else 0) / total)
        self.torch.cuda.set_per_process_memory_fraction(self._fraction, self._device)
        if self._device in cuda_memory.FRACTIONS:
            cuda_memory.FRACTIONS[self._device] = self._fraction

    def _follow_fraction(self) -> None:
        """A limit that the script has set itself since."""
        share = cuda_memory.fraction_of_process(self.torch, self._device)
        if share < 1.0 and abs(share - self._fraction) > 1e-9 and self._device not in cuda_memory.FRACTIONS:
            total = int(self.torch.cuda.get_device_properties(self._device).total_memory)
            self._raise_fraction(
                total, min(share, 1.0 - (cuda_memory.spill_size(self._device) + MIB) / total)
            )

    def refuse(self, why: str, tell: bool = True) -> None:
        self.agent.report("spill", did="refused", text=why)
        if tell:
            self._sums["refused"] = why
            self._write(force=True)
            self.agent.tell(f"--spill does nothing here: {why}")

    # --- looks ------------------------------------------------------------------------------------------------

    def took_batch(self, batch: Any) -> None:
        try:
            self._batch = samples_in(batch)
        except Exception:  # a batch of the user's own class
            self._batch = None

    def stepped(self, agent: Any, step: int) -> None:
        self._wait()
        pool = self.pool
        if pool is None or os.getpid() != self._pid or cuda_memory.capturing(self.torch):
            return
        now = time.perf_counter()
        took = now - self._last if self._last and not self._phased else None
        self._last, self._phased = now, False
        if pool.memory.is_changed():
            self._spilled("train", step, took, self._times)
        else:
            if took is not None:
                self._times.add(took, False)
            if now - self._host_looked >= _LOOK_AT_HOST:
                self._host_looked = now
                self._follow_fraction()
                self._look_at_host(pool)

    def phase_changed(self, agent: Any, before: str, now: str) -> None:
        if now in ("train", "eval", "generate"):
            self._wait()
        pool = self.pool
        if pool is None or os.getpid() != self._pid or cuda_memory.capturing(self.torch):
            return
        took = time.perf_counter() - self._entered if self._entered else None
        self._entered = time.perf_counter()
        if before == "train" or not before:
            self._phased = True
            return  # its steps tell
        times = self._phase_times.setdefault(before, StepTimes())
        if pool.memory.is_changed():
            self._spilled(before, agent.step, took, times)
        elif took is not None:
            times.add(took, False)
        self._entered = time.perf_counter()

    def _spilled(self, phase: str, step: int | None, took: float | None, times: StepTimes) -> None:
        """Seldom, and after something slow: now it may cost milliseconds."""
        torch, pool, begun = self.torch, self.pool, time.perf_counter()
        assert pool is not None
        memory = cuda_memory.read(torch, self._device)
        torch.cuda.synchronize(self._device)
        took = took + time.perf_counter() - begun if took is not None else None
        most = pool.memory.written()
        alive = self._most_alive()
        # A PyTorch that asks the pool before it gives free segments back would serve later steps from here as well.
        torch.cuda.empty_cache()
        left = pool.live()
        fits, capacity = None, 0
        if memory is not None:  # what is allocated between two steps is there whatever the batch
            capacity = memory.reserved + memory.free
            capacity = capacity if memory.allowed is None else min(capacity, memory.allowed)
            needed = max(alive, capacity + most)  # gaps between its tensors included
            fits = fitting_share(capacity, memory.allocated + memory.spilled, needed)
        spilled = Spilled(
            phase, step, most, took, times.usual, self._batch, fits, left, 0 < alive <= capacity
        )
        times.add(took or 0.0, True)
        self._count(spilled)
        self._last = self._entered = time.perf_counter()

    def _most_alive(self) -> int:
        """Bytes of tensors at once, on the card and in the spill together: by PyTorch's own peak, which the script may set back."""
        stats = self.torch.cuda.memory_stats_as_nested_dict(self._device)
        return int(stats["allocated_bytes"]["all"].get("peak", 0))

    def _count(self, spilled: Spilled) -> None:
        sums, agent, text, now = self._sums, self.agent, text_of(spilled), time.monotonic()
        sums["count"] += 1
        sums["bytes"] += spilled.bytes
        sums["seconds"] = round(sums["seconds"] + (spilled.slower or 0.0), 3)
        sums["left"] = spilled.left
        if spilled.bytes > sums["largest"]:
            sums.update(largest=spilled.bytes, step=spilled.step, phase=spilled.phase)
            sums.update(share=spilled.fits, slower=spilled.slower)
        if spilled.fitting_batch and spilled.fitting_batch < (sums.get("fits") or 1 << 62):
            sums.update(batch=spilled.batch, fits=spilled.fitting_batch)
        if sums["count"] <= _RECORDED:
            fields = dict(spilled._asdict())
            agent.report(
                "spill",
                did="spilled",
                text=text if sums["count"] <= _IN_WORDS else "",
                slower=spilled.slower,
                fitting=spilled.fitting_batch,
                **fields,
            )
        if self._times.always_spills and not self._told_always:
            self._told_always, self._told, sums["always"] = True, now, True
            agent.tell(always_text(spilled, sums.get("fits")))
        elif now - self._told >= _TELL_EVERY and not self._told_always:
            self._told = now
            agent.tell(text)
        self._write()

    def _write(self, force: bool = False) -> None:
        """The sums, where they outlive a SIGKILL."""
        now = time.monotonic()
        if not force and self._sums["count"] > _RECORDED and now - self._written < _WRITE_EVERY:
            return
        self._written = now
        from .allocator import write_json

        try:
            write_json(self.agent.file(SPILL), self._sums)
        except OSError:  # a full disk
            pass

    def _look_at_host(self, pool: SpillPool) -> None:
        """Unused, it is the first memory to give back when the host is short."""
        left = host_headroom(self.margin // 2)
        if left is None or left >= 0 or not pool.withdraw(ctypes.CDLL("libcuda.so.1")):
            return
        self.pool = None
        self._sums["given_back"] = pool.size
        self._write(force=True)
        text = f"host memory is short: the unused spill of {size(pool.size)} was given back; a batch that does not fit now ends the job"
        self.agent.report("spill", did="given back", text=text, bytes=pool.size)
        self.agent.tell(text)


def _allow_beside_captures(driver: Any) -> None:
    """This thread's calls neither fail nor spoil a CUDA graph that another thread captures meanwhile."""
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
