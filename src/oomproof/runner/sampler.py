"""Samples what the guard's loop must not wait for: each process, shared pages, /dev/shm, the GPUs, the alerts, leaks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oomproof.guard.best_effort import BestEffort
from oomproof.guard.guarded_job import LatestReading
from oomproof.guard.job_handle import Job
from oomproof.guard.poll_interval import SAMPLE_STILL
from oomproof.leaf.command_lines import SHELLS
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.recording.row_filter import RowFilter
from oomproof.recording.writer import Writer
from oomproof.records import dataclass
from oomproof.runner.leak_watch import LeakWatch, TrendQuestion
from oomproof.runner.lost_programs import PROGRAM_LOST, LostPrograms, UncountedKills, kill_text
from oomproof.runner.page_cache_watch import PAGE_CACHE, Held, PageCacheWatch
from oomproof.trend.growth import WarmUp
from oomproof.units import MIB, format_size

if TYPE_CHECKING:
    # it brings subprocess along, which only machines with a GPU need
    from oomproof.runner.gpu_feed import EveryCard, GpuFeed
    from oomproof.runner.mapping_watch import MappingWatch

_PSS_EVERY = 30.0  # seconds; the kernel walks page tables for it
_GROWN, _GROWN_SHARE = 32 * MIB, 20  # of the job, or a share of what it held: then sooner
_PSS_SHARE = 0.01  # of the time at most: a 100 GB job takes 0.1 s a look
_PROCESSES = 64  # recorded per sample, heaviest first
_LIBRARIES_FIRST, _LIBRARIES_EVERY = 10.0, 300.0  # seconds; the libraries of a training are loaded by then
_LIBRARIES_OF = 4  # heaviest processes; maps of a torch process take 3 ms to read
_SHORTEST = 0.2  # seconds between samples, however thin the headroom
_SHARE = 0.005  # of a core at most: 500 processes take 20 ms a sample
_LONGEST = 30.0
_CALM_PAUSE = 20.0  # seconds; the guard wakes it as soon as the job changes
_UNTOLD = (
    "memory has grown all the time since loading, and would be full before long: oomproof trend may tell more"
)
_CACHE_EVERY = 2.0  # seconds between looks at the counters of page cache
_SETTLED = 20.0  # seconds after the first steps: then its mappings are what it works with
_WITHOUT = "single processes may be missing in the recording"


@dataclass(frozen=True)
class AlertThresholds:
    """What the user asked to be told about."""

    above: int | None = None
    gpu_above: int | None = None


class Sampler:
    def __init__(
        self,
        job: Job,
        moment: LatestReading,
        writer: Writer,
        gpu: GpuFeed | EveryCard | None,
        thresholds: AlertThresholds,
        alert: Callable[[str, str], None],
        warm_up: WarmUp,
        run_id: str,
        on_leak: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._job, self._moment, self._writer, self._gpu = job, moment, writer, gpu
        self._thresholds, self._alert, self._warm_up, self._on_leak = thresholds, alert, warm_up, on_leak
        self._stop = threading.Event()
        self._next_pss = self._soonest_pss = 0.0
        self._pss_pause = 1.0
        self._walked = 0.0  # seconds of CPU, in the present sample
        self._use_then = 0  # what the job held when shared pages were last looked at
        self._shells_own: set[str] = set()
        self._next_libraries = boottime() + _LIBRARIES_FIRST
        self._rows = RowFilter()
        self._shared: dict[int, int] = {}  # pid → what of its memory others count too, as of the last walk
        self._alerted: set[str] = set()
        self._kills = job.kernel_kills()  # `watch` comes to a job whose old kills were told
        self._programs = LostPrograms(job.leader)
        self._uncounted = None if job.counts_kills else UncountedKills(job.leader)
        self._gpu_held: dict[int, tuple[int, int]] = {}  # card → what the job holds there, and what is free
        self._leaks, self._gpu_leaks = LeakWatch(), dict[int, LeakWatch]()
        self._question = TrendQuestion(run_id)
        self._page_cache, self._next_page_cache = PageCacheWatch(), 0.0
        self._mappings: MappingWatch | None = None
        self._mappings_from = boottime() + _SETTLED
        self._heaviest = 0  # pid
        self._try = BestEffort(self._trouble)
        self._thread = threading.Thread(target=self._loop, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._moment.hurry.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._question.close()
        if text := self._page_cache.whole():
            self._writer.event(boottime(), PAGE_CACHE, text)

    def _trouble(self, text: str) -> None:
        self._writer.event(boottime(), "trouble", text)

    def _loop(self) -> None:
        while True:
            spent = self._take_sample()
            # Rarer than the guard's own rows: a wake-up costs 0.5 ms of cold caches. With a GPU its tick decides.
            eager = self._gpu is not None or self._thresholds != AlertThresholds()
            rows = self._moment.sample_seconds
            pause = min(rows, SAMPLE_STILL) if eager else min(4 * rows, _CALM_PAUSE)
            waits_from = time.monotonic()
            self._moment.hurry.wait(pause)
            self._moment.hurry.clear()
            least = max(_SHORTEST, min(_LONGEST, spent / _SHARE)) - (time.monotonic() - waits_from)
            if self._stop.wait(max(0.0, least)):
                return

    def _take_sample(self) -> float:
        """Seconds of CPU that it took, without a walk over page tables: that has a share of its own, and after one of 0.15 s
        nothing was sampled for half a minute, in which a job of two workers filled its limit."""
        begun, self._walked = time.thread_time(), 0.0
        self._try("a sample of the processes", lambda: self.sample(boottime()), None, _WITHOUT)
        return time.thread_time() - begun - self._walked

    def sample(self, t: float) -> None:
        pids = self._job.known_pids()
        known = [process for process in map(processes.memory, pids) if process is not None]
        # one that holds nothing, not even of its program, has ended and is only not waited for yet
        samples = [
            process for process in known if process.anon or process.shmem or process.file or process.swap
        ]
        self._shells_own = self._run_by_a_shell(known)
        samples.sort(key=lambda sample: sample.anon + sample.shmem + sample.swap, reverse=True)
        all_known = {process.pid for process in samples} <= self._shared.keys()
        if t >= (self._next_pss if all_known and not self._has_grown(samples) else self._soonest_pss):
            self._look_at_shared_pages(t, samples)
        if t >= self._next_libraries:
            self._look_at_libraries(t, samples)
        self._heaviest = samples[0].pid if samples else 0
        for process in samples[:_PROCESSES]:
            share = self._share(process)
            held = process.anon + process.shmem + process.swap if share is None else share
            if self._rows.is_news(t, (process.pid, process.start), held):
                self._writer.put(
                    "process",
                    (t, process.pid, process.start, self._role(process), process.name, process.anon, process.shmem,
                     process.file, process.swap, share),
                )  # fmt: skip
        self._rows.forget(t)
        largest = max((process.largest_rss for process in samples), default=0)
        self._moment.largest_rss = max(self._moment.largest_rss, largest)
        # the guard writes them with its row
        self._moment.processes, self._moment.shm = len(samples), self._shm(samples[:1])
        self._moment.counted_use = self._moment.memory.use if self._moment.memory is not None else 0
        self._look_at_kills(t, samples)
        gpu_use = self._sample_gpu(t, set(pids))
        self._check_alerts(t, gpu_use)
        self._look_for_a_leak(t)
        self._look_at_page_cache(t, pids)

    def _run_by_a_shell(self, known: list[processes.ProcessMemory]) -> set[str]:
        """The names of what the leader runs, where it is a shell: `python train.py | tee log` has no workers. Several of one
        name may be."""
        leader = next((process.name for process in known if process.pid == self._job.leader), "")
        if leader not in SHELLS:
            return set()
        children = [process.name for process in known if process.parent == self._job.leader]
        return {name for name in children if children.count(name) == 1}

    def _role(self, process: processes.ProcessMemory) -> str:
        if process.pid == self._job.leader:
            return "main"
        if process.name.startswith("pt_data_worker"):
            return "worker"
        is_child = process.parent == self._job.leader
        return "worker" if is_child and process.name not in self._shells_own else "other"

    def _has_grown(self, samples: list[processes.ProcessMemory]) -> bool:
        """Several processes together, by a good part: which of them did, only a new look at what they share tells."""
        use = self._moment.memory.use if self._moment.memory is not None and len(samples) > 1 else 0
        return use - self._use_then >= max(_GROWN, self._use_then // _GROWN_SHARE)

    def _look_at_shared_pages(self, t: float, samples: list[processes.ProcessMemory]) -> None:
        begun = time.thread_time()  # not by the clock: on a busy machine it shows how long others ran
        self._use_then = self._moment.memory.use if self._moment.memory is not None else 0
        found = self._job.shared(samples[:_PROCESSES])
        self._shared = {process.pid: found.get(process.pid, 0) for process in samples}
        spent = self._walked = time.thread_time() - begun
        # Soon at first (workers are forked in the first seconds), then ever rarer.
        self._pss_pause = min(_PSS_EVERY, self._pss_pause * 2)
        # the soonest, for a process that was just forked: it shares nearly all it has
        self._soonest_pss = t + spent / _PSS_SHARE
        self._next_pss = max(t + self._pss_pause, self._soonest_pss)

    def _share(self, process: processes.ProcessMemory) -> int | None:
        """Its part of the job's memory: pages that several processes share are divided among them (PSS)."""
        if process.pid not in self._shared:
            return None
        return max(0, process.anon + process.shmem + process.swap - self._shared[process.pid])

    def _look_at_libraries(self, t: float, samples: list[processes.ProcessMemory]) -> None:
        """Two OpenMP runtimes in one process: noted once, for the day it crashes in native code."""
        self._next_libraries = t + _LIBRARIES_EVERY
        for process in samples[:_LIBRARIES_OF]:
            loaded = processes.openmp_runtimes(process.pid)
            if len(loaded) > 1:
                text = f"{process.name} (pid {process.pid}) has loaded {len(loaded)} OpenMP runtimes: "
                text += ", ".join(loaded[name] for name in sorted(loaded))
                self._writer.event(t, "openmp", text, pid=process.pid, runtimes=loaded)
                self._next_libraries = float("inf")
                return

    def _look_at_kills(self, t: float, samples: list[processes.ProcessMemory]) -> None:
        """A pool that lost a worker hangs without a word: said while it hangs, not when somebody has had enough of it."""
        gone = self._programs.note(samples)
        if self._uncounted is not None and (said := self._uncounted.look(t, samples, gone)) is not None:
            self._alert("worker-killed", said)
        kills = self._job.kernel_kills()
        if kills > self._kills:
            self._kills = kills
            text, program = kill_text(gone, kills)
            if program is not None:
                says = f"{program.shown} was killed by the kernel for memory"
                self._writer.event(t, PROGRAM_LOST, says, pid=program.pid, held=program.held)
            self._alert("worker-killed", text)

    def _shm(self, heaviest: list[processes.ProcessMemory]) -> tuple[int, int] | None:
        """/dev/shm as the job sees it: in a container or a mount namespace it is another one than ours, and than its
        shell's."""
        pids = [*(process.pid for process in heaviest), self._job.leader]
        for path in (*(f"/proc/{pid}/root/dev/shm" for pid in pids), "/dev/shm"):
            try:
                shm_stat = os.statvfs(path)
            except OSError:
                continue
            return shm_stat.f_blocks * shm_stat.f_frsize, shm_stat.f_bavail * shm_stat.f_frsize
        return None

    def _sample_gpu(self, t: float, ours: set[int]) -> int:
        total = 0
        self._gpu_held = {}
        for device in self._gpu.latest() if self._gpu else ():
            mine = [
                process.used
                for process in device.processes
                if process.pid in ours and process.used is not None
            ]
            used = sum(mine)
            self._writer.put(
                "gpu", (t, device.index, device.used, device.total, used if device.processes else None)
            )
            total += used
            if used and device.total is not None and device.used is not None:
                self._gpu_held[device.index] = (used, max(0, device.total - device.used))
        return total

    def _check_alerts(self, t: float, gpu_use: int) -> None:
        memory = self._moment.memory
        if memory is None:
            return
        above = self._thresholds.above
        self._once(
            "above", above is not None and memory.use > above,
            f"the job held {format_size(memory.use)}, above {format_size(above)}",
        )  # fmt: skip
        gpu_above = self._thresholds.gpu_above
        self._once(
            "gpu-above", gpu_above is not None and gpu_use > gpu_above,
            f"the job held {format_size(gpu_use)} of GPU memory, above {format_size(gpu_above)}",
        )  # fmt: skip

    def _look_for_a_leak(self, t: float) -> None:
        moment = self._moment
        if not self._warm_up.is_over(t):  # growth there is no trend
            self._leaks, self._gpu_leaks = LeakWatch(), {}
            self._mappings_from = t + _SETTLED
            return
        if t >= self._mappings_from:
            self._mappings_from = float("inf")
            self._begin_mappings()
        if moment.memory is None or moment.paused_since is not None:
            return
        self._leaks.note(t, moment.memory.use)
        suspected = self._leaks.suspects(t, moment.headroom)
        for index, (used, free) in self._gpu_held.items():
            watch = self._gpu_leaks.setdefault(index, LeakWatch())
            watch.note(t, used)
            suspected = watch.suspects(t, free) or suspected
        if suspected:
            self._question.ask(t)
        if (trend := self._question.answer(t)) is not None:
            self._tell_trend(t, trend)
        if not self._leaks.is_told:
            moment.full_at = None

    def _tell_trend(self, t: float, trend: dict[str, Any]) -> None:
        """``alert`` is None where the trend, which knows more, sees nothing to tell; not there where no trend could be had."""
        from oomproof.trend.leaks import GROWING, STEPS  # whoever suspected it has loaded it

        moment, grows = self._moment, {GROWING, STEPS}
        alert, full = trend.get("alert", _UNTOLD), trend.get("full_in_seconds")
        cards = trend.get("gpus") or ()
        kinds = {trend.get("kind"), *(card.get("kind") for card in cards if isinstance(card, dict))}
        if not isinstance(alert, str):
            wrong = not kinds & grows  # else: it ends before memory is full
            for watch in (self._leaks, *self._gpu_leaks.values()) if wrong else ():
                watch.was_wrong(t)
            return
        if trend.get("kind") in grows and isinstance(full, dict):
            left, end = full.get("expected"), trend.get("last_sample_boottime")
            moment.full_at = (
                (end if isinstance(end, float) else t) + left if isinstance(left, float) else None
            )
        self._alert("leak", alert)
        self._on_leak(moment.headroom)

    def _look_at_page_cache(self, t: float, pids: list[int]) -> None:
        memory, moment = self._moment.memory, self._moment
        if memory is None or t < self._next_page_cache or (faults := self._job.cache_faults(pids)) is None:
            return
        self._next_page_cache = t + _CACHE_EVERY
        limit = self._job.limit if self._job.is_exact and moment.limit_headroom is not None else None
        held = Held(memory.use, memory.charged, memory.file, limit, moment.available)
        if text := self._page_cache.look(t, faults, held, loading=not self._warm_up.is_over(t)):
            self._alert(PAGE_CACHE, text)

    def _begin_mappings(self) -> None:
        from oomproof.runner.mapping_watch import MappingWatch  # most runs are over by then

        self._mappings = self._mappings or MappingWatch(self._writer)
        self._mappings.begin(self._heaviest)

    def look_at_mappings(self) -> None:
        """When growth was told: whether it is one kind of mapping that became more."""
        if self._heaviest and self._mappings is not None:
            self._mappings.look(boottime(), self._heaviest)

    def _once(self, name: str, now: bool, text: str) -> None:
        """``name`` is the alert's kind. Tell when a line is crossed, and again only after it was crossed back."""
        if now and name not in self._alerted:
            self._alerted.add(name)
            self._alert(name, text)
        elif not now:
            self._alerted.discard(name)
