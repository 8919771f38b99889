"""Guard, sampler, recording and agent over one job that runs: joined together, told about, and ended in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oomproof.alerts.alert_channel import Alerts
from oomproof.guard.action_text import TITLES
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.detect_limit import TREND_WARNING
from oomproof.guard.guard_actions import Actions, TaskThread, action_record
from oomproof.guard.guard_loop import Guard, lock_memory, prepare_threads
from oomproof.guard.guarded_job import GuardedJob, LatestReading
from oomproof.guard.host_view import HostView
from oomproof.guard.job_handle import Job
from oomproof.guard.job_pause import Pause
from oomproof.guard.view import Settings
from oomproof.leaf.action_kinds import GUARD_LEAVES, ON_UNMANAGED, PAUSE, REQUEST, SIGNAL_CAME, TERM, WARN
from oomproof.leaf.small_files import append
from oomproof.ledger.forecast import LiveClaim
from oomproof.machine import nvidia, processes
from oomproof.machine.clock import boottime
from oomproof.printable import printable
from oomproof.recording import run_folders
from oomproof.recording.writer import Writer
from oomproof.runner.agent_feed import AgentFeed
from oomproof.runner.census_watch import AT_STOP, AT_WARNING
from oomproof.runner.job_alerts import JobAlerts
from oomproof.runner.page_cache_watch import PAGE_CACHE
from oomproof.runner.run_flags import RunSettings
from oomproof.runner.sampler import AlertThresholds, Sampler
from oomproof.units import format_duration, format_size

if TYPE_CHECKING:  # they bring subprocess along, which only machines with a GPU need
    from oomproof.runner.gpu_feed import EveryCard, GpuFeed
    from oomproof.runner.gpu_share import GpuShare

_SAVE_EVERY = 3600.0  # seconds between checkpoints that the guard asks for
T = TypeVar("T")


def shall_save(time_to_full: float | None, is_sure: bool, now: float, saved_at: float | None) -> bool:
    """Growth that fills memory within the warning's time and will hardly end by itself; a checkpoint an hour is enough, and a full machine cannot bear more."""
    return (
        time_to_full is not None
        and is_sure
        and time_to_full < TREND_WARNING
        and (saved_at is None or now - saved_at > _SAVE_EVERY)
    )


def or_none(say: Callable[[str], None], what: str, make: Callable[[], T]) -> T | None:
    """A part of the watch that may fail by itself: no thread, no descriptor, no space. Said once; the rest continues."""
    try:
        return make()
    except Exception as error:
        say(f"oomproof: {what} ({error})")
        return None


class Watch:
    """Guard, sampler and recording over one job; used by `run` and, when the guard was lost, by `watch`."""

    def __init__(
        self,
        run: run_folders.Run,
        started: dict[str, Any],
        settings: Settings,
        host: HostView,
        say: Callable[[str], None],
        chosen: RunSettings,
        agent: bool = True,
        gpu: GpuFeed | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        prepare_threads()
        self._say = say
        self._saved_at: float | None = None
        self._run = run
        self._attempt = run.attempt
        self.job = Job(started)  # before all others: with few descriptors the guard's come first
        self.task_thread = TaskThread(self._on_trouble)
        meta = {"boot_id": processes.boot_id(), "wall_offset": repr(time.time() - boottime())}
        self.writer = Writer(self._attempt.recording_file, meta)
        if not self.job.rehearse() and processes.is_alive(self.job.leader, self.job.leader_start):
            say(
                "oomproof: the guard's test at the start could not reach the job; it may not be able to end it"
            )
        # Without a runtime folder this run acts for itself alone, and joins the others when there is one.
        self._live = LiveClaim(
            run.id,
            float(started.get("boottime") or boottime()),
            protected=settings.protected,
            leader=(self.job.leader, self.job.leader_start),
            need=settings.need,
        )
        stop_files = [self._attempt.stop_file, *([chosen.stop_file] if chosen.stop_file else [])]
        self._actions = actions = Actions(
            self.job, self._attempt, self.task_thread, stop_files, chosen.stop_signal, tell=self._on_alert
        )
        actions.keep_file_open()
        thresholds = AlertThresholds(chosen.alert_above, chosen.alert_gpu_above)
        info = run.info
        self._pause = Pause(
            self.job, self._attempt, self.task_thread, self._on_alert, run.argv, info.get("env") or {}
        )
        best_effort = BestEffort(self._on_trouble)
        self.guarded = GuardedJob(
            self.job,
            settings,
            actions,
            self._pause,
            self.writer,
            self._live,
            self._on_action,
            best_effort,
        )
        self.guarded.on_growth = self._on_growth if agent else None
        alerts = alerts or Alerts()
        alerts.tell = self._tell_locally
        self._alerts = JobAlerts(alerts, run, self.guarded)
        or_none(say, "alerts are not delivered", self._alerts.start)
        self.guard = Guard(host, [self.guarded], best_effort, f"run {run.name}")
        self._gpu: GpuFeed | EveryCard | None = gpu
        if gpu is None and nvidia.any_driver_present():
            from oomproof.runner import gpu_feed  # only where a driver is: it brings subprocess along

            self._gpu = or_none(say, "no GPU figures", gpu_feed.EveryCard)
        moment, warm_up = self.guarded.moment, self.guarded.growth.warm_up
        self.sampler = Sampler(
            self.job,
            moment,
            self.writer,
            self._gpu,
            thresholds,
            self._on_event,
            warm_up,
            run.id,
            self._on_leak,
        )
        self.agents: AgentFeed | None = None
        if agent:
            self.agents = or_none(
                say,
                "reports of the agent in the job are not received",
                lambda: AgentFeed(
                    run.id,
                    self._attempt,
                    self.writer,
                    self._tell,
                    self._held,
                    self._note_phase,
                    chosen.census,
                    self._note_pinning,
                    self.job.leader,
                    lambda: moment.is_calm,
                ),
            )
        if self.agents is not None:
            self.guarded.on_change = self.agents.wake
        self._next_step = 0.0
        self._without_thread = False  # the guard's steps are then taken by whoever calls tick

    @property
    def has_ended_it(self) -> bool:
        """Whether the guard told all of the job to end."""
        return self._actions.has_ended

    def _held(self) -> tuple[int, int] | None:
        moment = self.guarded.moment
        return (moment.memory.use, max(0, moment.headroom)) if moment.memory is not None else None

    def _note_phase(self, name: str, step: int | None, since: float, held: int | None) -> None:
        """From the agent's thread, about once a second while the job makes steps."""
        self._live.enter_phase(name, since, held)
        self.guarded.growth.warm_up.note(name, step, boottime())

    def _note_pinning(self, is_pinning: bool) -> None:
        self.guarded.growth.warm_up.pins(is_pinning, boottime())
        self._live.pins(is_pinning)

    def _on_growth(self) -> None:
        if self._shall_save():
            self.task_thread.do(self._ask_to_save)

    def _on_leak(self, headroom: int) -> None:
        """It was told that memory grows without end: now a closer look at what it is."""
        if self.agents is not None:
            agents = self.agents
            self.task_thread.do(lambda: agents.trace(headroom))
        self.task_thread.do(self.sampler.look_at_mappings)
        self._ask_census(AT_WARNING)

    def _shall_save(self) -> bool:
        growth = self.guarded.growth
        return not self.guarded.settings.watch_only and shall_save(
            growth.time_to_full, growth.is_sure, boottime(), self._saved_at
        )

    def start(self) -> None:
        lock_memory()
        try:
            self.guard.start()
        except RuntimeError as error:
            self._without_thread = True
            self._say(
                f"oomproof: the guard has no thread of its own: it acts between pieces of the job's output ({error})"
            )
        or_none(self._say, "processes, GPUs and alerts are not looked at", self.sampler.start)
        if self.agents is not None:
            or_none(self._say, "reports of the agent in the job are not received", self.agents.start)

    def tick(self) -> float | None:
        """For a guard that got no thread: a step when it is due. Seconds to the next; None when it has its thread."""
        if not self._without_thread:
            return None
        now = time.monotonic()
        if now >= self._next_step:
            view = self.guard.step(boottime())
            self._next_step = time.monotonic() + self.guard.seconds_to_next_look(view, boottime())
        return max(0.0, self._next_step - now)

    def share_card(self, share: GpuShare) -> None:
        """Its turns on the card: the job must run while the driver moves its memory, and the host must hold it."""
        from oomproof.guard.gpu_pause import host_memory_problem  # most machines have no card

        moment, margin = self.guarded.moment, self.guarded.settings.margin

        def host_available(size: int) -> str:
            return host_memory_problem(size, moment.available, margin, self.job.limit_left(moment.memory))

        share.attach(
            self._attempt, self.job.pids, host_available, self.job.freezer.is_paused, self._on_turn, self._say
        )

    def _on_turn(self, kind: str, why: str) -> None:
        self.writer.event(boottime(), kind, why)
        line = action_record("guard", kind, why)
        self.task_thread.do(lambda: self._attempt.add_action(line))

    def _on_action(self, kind: str, why: str) -> None:
        text, terms = f"{TITLES[kind]}: {why}" if kind in TITLES else why, ""
        if kind == PAUSE:
            terms = self.guard.pause_terms(self.guarded)
            text += f". {terms}; now: oomproof resume {self._run.name}"
        self._tell(text)
        if kind in TITLES or kind in ON_UNMANAGED:
            self._alerts.action(kind, why, terms)
        if kind == WARN and self.guarded.growth.time_to_full is not None:  # by its own growth
            self._on_leak(self.guarded.moment.headroom)
        elif kind in (WARN, REQUEST):
            self._ask_census(AT_STOP if kind == REQUEST else AT_WARNING)
        if kind in (REQUEST, TERM):
            self.task_thread.do(self.sampler.look_at_mappings)
        if self.agents is not None and kind == REQUEST:
            agents = self.agents
            self.task_thread.do(lambda: agents.ask_stacks(AT_STOP))

    def _ask_census(self, why: str) -> None:
        """Never before SIGTERM or a kill: then memory is gone, and nothing may be waited for. The warning came before."""
        agents = self.agents
        if agents is not None:
            self.task_thread.do(lambda: agents.ask_census(why))

    def _ask_to_save(self) -> None:
        """Before anything is stopped: a checkpoint, from a job that grows towards its end and listens. A request nobody answers is skipped."""
        now, left = boottime(), self.guarded.moment.time_to_full
        if not self._shall_save():
            return
        who = self._attempt.listeners("save")
        if not who:
            return
        self._saved_at = now
        self._attempt.ask_to_save(f"full in about {format_duration(left)}")
        self.writer.event(now, "save", f"asked {who[0]} to save and continue")
        text = f"asked {who[0]} to save and continue: full in about {format_duration(left)}"
        self._tell(text)
        self._alerts.event("save", text)

    def _on_event(self, kind: str, text: str) -> None:
        """From the sampler: what the user asked to be told about, a leak, a killed worker, a job that is slow."""
        self._on_alert(text, PAGE_CACHE if kind == PAGE_CACHE else "alert")
        self._alerts.event(kind, text)

    def _on_alert(self, text: str, kind: str = "alert") -> None:
        self.writer.event(boottime(), kind, text)
        self._tell(text)

    def _on_trouble(self, text: str) -> None:
        """Something of ours fails; the job is guarded all the same. The terminal first: the recording may be what failed."""
        self._tell(text)
        try:
            self.writer.event(boottime(), "trouble", text)
        except Exception:  # the recording may be what failed, and the user has heard it
            pass

    def _tell_locally(self, text: str) -> None:
        """The process that sends has written it down itself."""
        self._say(f"oomproof: {text}")

    def _tell(self, text: str) -> None:
        text = printable(text)
        self._say(f"oomproof: {text}")
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode()
        self.task_thread.do(lambda: append(self._attempt.alerts_file, line))

    def status_line(self) -> str:
        return status_line(self.guarded.moment, self._gpu.latest() if self._gpu else ())

    def let_go(self, signal: str) -> None:
        """That signal came for the job, which cannot hear it while it is paused."""
        self.guard.let_go(self.guarded, SIGNAL_CAME, {"signal": signal})

    def stop(self) -> None:
        """Each by itself: what one of them cannot do must not keep the others from ending."""
        for leave in (self._stop_guard, self._stop_helpers, self._close):
            or_none(self._say, "ending the watch", leave)

    def _stop_guard(self) -> None:
        self.guard.stop()
        if self._pause.by == "guard":  # `watch` leaves, or the job has ended: nobody would resume it
            self.guard.let_go(self.guarded, GUARD_LEAVES, {})

    def _stop_helpers(self) -> None:
        self.sampler.stop()
        if self.agents is not None:
            self.agents.stop()
        if self._gpu is not None:
            self._gpu.close()

    def _close(self) -> None:
        self.task_thread.close()
        self.writer.close()
        self._live.leave()
        self._pause.close()
        self.guard.close()
        self.job.close()
        self._actions.close()  # now there are descriptors again


def status_line(moment: LatestReading, gpus: Any = ()) -> str:
    """RAM, swap, VRAM, time to full: as much as fits on one quiet line."""
    memory = moment.memory
    if memory is None:
        return "oomproof"
    parts = [f"job {format_size(memory.use)}", f"available {format_size(moment.available)}"]
    if moment.paused_since is not None:
        parts.insert(0, f"paused for {format_duration(moment.t - moment.paused_since)}")
    if memory.swap:
        parts.append(f"in swap {format_size(memory.swap)}")
    if moment.limit_headroom is not None:
        parts.append(f"to limit {format_size(moment.limit_headroom)}")
    for device in gpus:
        if device.total:
            parts.append(f"gpu{device.index} {format_size(device.used)}/{format_size(device.total)}")
    if moment.full_at is not None:
        parts.append(f"full in ~{format_duration(max(0.0, moment.full_at - moment.t))}")
    return "oomproof · " + " · ".join(parts)
