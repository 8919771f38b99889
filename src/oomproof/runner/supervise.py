"""One run from start to exit status: folder, keeper, guard, sampler, recording, joined together."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oomproof import __version__
from oomproof.alerts.alert_channel import Alerts
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.detect_limit import TREND_WARNING, default_limit_floor
from oomproof.guard.gpu_pause import host_memory_problem
from oomproof.guard.guard_actions import Actions, TaskThread, action_record
from oomproof.guard.guard_loop import Guard, lock_memory
from oomproof.guard.guarded_job import GuardedJob, Moment
from oomproof.guard.host_view import HostView
from oomproof.guard.job_handle import Job
from oomproof.guard.job_pause import Pause
from oomproof.guard.view import Settings
from oomproof.leaf.small_files import append
from oomproof.ledger import live_runs
from oomproof.ledger.budget import default_floor, default_margin
from oomproof.ledger.forecast import LiveClaim
from oomproof.ledger.needs import AT_LEAST
from oomproof.machine import nvidia, processes
from oomproof.machine.clock import boottime
from oomproof.machine.host_identity import host_name, machine_id
from oomproof.printable import printable
from oomproof.recording import requests, run_folders, state_files
from oomproof.recording.attempt import Attempt
from oomproof.recording.secrets import mask_argv, mask_environment
from oomproof.recording.writer import Writer
from oomproof.records import dataclass, field
from oomproof.runner import agent_feed, code_identity, leftovers
from oomproof.runner.admission_request import Asked, Ticket
from oomproof.runner.agent_feed import AgentFeed
from oomproof.runner.census_watch import AT_STOP, AT_WARNING
from oomproof.runner.front import Front, Launch
from oomproof.runner.job_alerts import JobAlerts
from oomproof.runner.output_log import OUTPUT_CAP
from oomproof.runner.run_flags import SIZE_FIRST, RunSettings, to_json
from oomproof.runner.sampler import AlertThresholds, Sampler
from oomproof.runner.terminal import Terminal
from oomproof.units import MIB, format_duration, format_size

if TYPE_CHECKING:  # they bring subprocess along, which only machines with a GPU need
    from oomproof.runner.gpu_feed import GpuFeed
    from oomproof.runner.gpu_share import GpuShare

_SAVE_EVERY = 3600.0  # seconds between checkpoints that the guard asks for
T = TypeVar("T")


@dataclass
class Order:
    """What is to be run, and how."""

    argv: list[str]
    chosen: RunSettings = field(default_factory=RunSettings)
    detached: bool = False
    agent: bool = True
    output_cap: int = OUTPUT_CAP
    asked: Asked = field(default_factory=Asked)
    # the flags of the command line: the next one has them too
    typed: dict[str, str] = field(default_factory=dict)
    verbosity: int = 0  # -1: only what oomproof did or could not do; 1: details too
    alerts: Alerts = field(default_factory=Alerts)  # closed by whoever tells the end
    predicted: dict[str, Any] | None = None  # by --need auto


def asked_of(chosen: RunSettings) -> Asked:
    """What admission is asked."""
    gpu_need, gpu = chosen.gpu_need
    return Asked(
        need=None if chosen.need == SIZE_FIRST else chosen.need,
        gpu_need=gpu_need,
        gpu=gpu,
        priority=chosen.priority,
        wait=not chosen.no_wait,
        wait_max=chosen.wait_max,
        not_before=chosen.not_before,
        margin=chosen.margin,
        limit=chosen.limit,
        ledger=chosen.ledger,
    )


def guard_settings(chosen: RunSettings, host: HostView, claim: dict[str, Any] | None = None) -> Settings:
    """What the guard goes by: of a run that starts, of a process that is adopted, of a run that is guarded again."""
    margin = chosen.margin if chosen.margin is not None else default_margin(host.ram)
    usual = max(32 * MIB, host.ram * 4 // 100) if host.inside_a_limit else default_floor(host.ram)
    floor = chosen.floor if chosen.floor is not None else min(usual, margin)
    return Settings(
        margin=max(margin, floor),
        floor=floor,
        grace=chosen.grace,
        limit=chosen.limit,
        limit_floor=default_limit_floor(chosen.limit) if chosen.limit else 0,
        watch_only=chosen.watch_only,
        protected=chosen.protect,
        pause_max=chosen.pause_max,
        need=known_need(claim),
        usual_peak=usual_peak(claim),
        pause_unmanaged=not chosen.leave_unmanaged,
    )


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under us
        return "(removed)"


def describe_run(
    run: run_folders.Run, order: Order, settings: Settings, claim: dict[str, Any] | None = None
) -> dict[str, Any]:
    """run.json: what stands before the start. Nothing secret."""
    return {
        "schema": run_folders.SCHEMA,
        "id": run.id,
        "name": order.chosen.name,
        "argv": mask_argv(order.argv),
        "cwd": working_folder(),
        "env": mask_environment(os.environ),
        "created": time.time(),
        "boot_id": processes.boot_id(),
        "host": host_name(),
        "machine": machine_id(),
        "user": os.getuid(),
        "version": __version__,
        "settings": to_json(order.chosen, settings.margin, settings.floor),
        "flags": order.typed,
        "claim": claim,
        "predicted": order.predicted,
        "code": None,
    }


def shall_save(time_to_full: float | None, is_sure: bool, now: float, saved_at: float | None) -> bool:
    """Growth that fills memory within the warning's time and will hardly end by itself; a checkpoint an hour is enough, and a full machine cannot bear more."""
    return (
        time_to_full is not None
        and is_sure
        and time_to_full < TREND_WARNING
        and (saved_at is None or now - saved_at > _SAVE_EVERY)
    )


def _or_none(say: Callable[[str], None], what: str, make: Callable[[], T]) -> T | None:
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
        self._say = say
        self._saved_at: float | None = None
        self._run = run
        self._attempt = run.attempt
        self.job = Job(started)  # before all others: with few descriptors the guard's come first
        self.task_thread = TaskThread(self._on_trouble)
        meta = {"boot_id": processes.boot_id(), "wall_offset": repr(time.time() - boottime())}
        self.writer = Writer(self._attempt.recording_file, meta)
        if not self.job.rehearse() and processes.is_alive(self.job.leader, self.job.leader_start):
            say("oomproof: the guard could not reach the job in its rehearsal; it may not be able to end it")
        # Without a runtime folder this run acts for itself alone, and joins the others when there is one.
        self._live = LiveClaim(
            run.id,
            float(started.get("boottime") or boottime()),
            protected=settings.protected,
            leader=(self.job.leader, self.job.leader_start),
            reserved=settings.need is not None,
        )
        stop_files = [self._attempt.stop_file, *([chosen.stop_file] if chosen.stop_file else [])]
        self._actions = actions = Actions(
            self.job, self._attempt, self.task_thread, stop_files, chosen.stop_signal, tell=self._on_alert
        )
        actions.keep_file_open()
        thresholds = AlertThresholds(chosen.alert_above, chosen.alert_gpu_above, chosen.alert_swap_growth)
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
        _or_none(say, "alerts reach nobody", self._alerts.start)
        self.guard = Guard(host, [self.guarded], best_effort, f"run {run.name}")
        self._gpu = gpu
        if gpu is None and nvidia.driver_present():
            from oomproof.runner import gpu_feed  # only where a driver is: it brings subprocess along

            self._gpu = _or_none(say, "no GPU figures", gpu_feed.start)
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
            self.agents = _or_none(
                say,
                "nobody listens to the agent in the job",
                lambda: AgentFeed(
                    run.id,
                    self._attempt,
                    self.writer,
                    self._tell,
                    self._use,
                    self._note_phase,
                    chosen.census,
                ),
            )
        self._next_step = 0.0
        self._without_thread = False  # the guard's steps are then taken by whoever calls tick

    def _use(self) -> int | None:
        memory = self.guarded.moment.memory
        return memory.use if memory is not None else None

    def _note_phase(self, name: str, step: int | None) -> None:
        """From the agent's thread, about once a second while the job makes steps."""
        self._live.phase = name
        self.guarded.growth.warm_up.note(name, step, boottime())

    def _on_growth(self) -> None:
        if self._shall_save():
            self.task_thread.do(self._ask_to_save)

    def _on_leak(self, headroom: int) -> None:
        """It was told that memory grows without end: now a closer look at what it is."""
        if self.agents is not None:
            traces = self.agents.traces
            self.task_thread.do(lambda: traces.ask(headroom))
        self.task_thread.do(self.sampler.look_at_mappings)
        self._ask_census(AT_WARNING)

    def _shall_save(self) -> bool:
        growth = self.guarded.growth
        return not self.guarded.settings.watch_only and shall_save(
            growth.time_to_full, growth.is_sure, boottime(), self._saved_at
        )

    def start(self) -> None:
        try:
            self.guard.start()
        except RuntimeError as error:
            self._without_thread = True
            self._say(f"oomproof: no thread for the guard: it acts between the job's output ({error})")
        _or_none(self._say, "processes, GPUs and alerts are not looked at", self.sampler.start)
        if self.agents is not None:
            _or_none(self._say, "nobody listens to the agent in the job", self.agents.start)

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
        moment, margin = self.guarded.moment, self.guarded.settings.margin

        def host_available(size: int) -> str:
            return host_memory_problem(size, moment.available, margin, self.job.limit_left(moment.memory))

        share.attach(
            self._attempt, self.job.pids, host_available, self.job.freezer.is_frozen, self._on_turn, self._say
        )

    def _on_turn(self, kind: str, why: str) -> None:
        self.writer.event(boottime(), kind, why)
        line = action_record("guard", kind, why)
        self.task_thread.do(lambda: self._attempt.add_action(line))

    def _on_action(self, kind: str, why: str) -> None:
        words = {
            "warn": "memory is getting short",
            "ask": "asked the job to save and stop",
            "term": "sent SIGTERM to the job",
            "kill": "killed all processes of the job",
            "freeze": "paused",
            "thaw": "resumed",
            "withdraw": "took back the request to save and stop",
        }
        text, terms = f"{words[kind]}: {why}" if kind in words else why, ""
        if kind == "freeze":
            terms = self.guard.pause_terms(self.guarded)
            text += f". {terms}; now: oomproof resume {self._run.name}"
        self._tell(text)
        if kind in words or kind.endswith("-unmanaged"):
            self._alerts.action(kind, why, terms)
        if kind == "warn" and self.guarded.growth.time_to_full is not None:  # by its own growth
            self._on_leak(self.guarded.moment.headroom)
        elif kind in ("warn", "ask"):
            self._ask_census(AT_STOP if kind == "ask" else AT_WARNING)
        if kind in ("ask", "term"):
            self.task_thread.do(self.sampler.look_at_mappings)
        if self.agents is not None and kind == "ask":
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
        who = requests.listeners(self._attempt, "save")
        if not who:
            return
        self._saved_at = now
        requests.ask_to_save(self._attempt, f"full in about {format_duration(left)}")
        self.writer.event(now, "save", f"asked {who[0]} to save and continue")
        text = f"asked {who[0]} to save and continue: full in about {format_duration(left)}"
        self._tell(text)
        self._alerts.event("save", text)

    def _on_event(self, kind: str, text: str) -> None:
        """From the sampler: what the user asked to be told about, a leak, a killed worker."""
        self._on_alert(text)
        self._alerts.event(kind, text)

    def _on_alert(self, text: str) -> None:
        self.writer.event(boottime(), "alert", text)
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

    def let_go(self, why: str) -> None:
        self.guard.let_go(self.guarded, why)

    def stop(self) -> None:
        """Each by itself: what one of them cannot do must not keep the others from ending."""
        for leave in (self._stop_guard, self._stop_helpers, self._close):
            _or_none(self._say, "ending the watch", leave)

    def _stop_guard(self) -> None:
        self.guard.stop()
        if self._pause.by == "guard":  # `watch` leaves, or the job has ended: nobody would let it go on
            self.let_go("its guard leaves")

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
        self._actions.write_the_rest()  # now there are descriptors again


def status_line(moment: Moment, gpus: Any = ()) -> str:
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


@dataclass
class Outcome:
    run: run_folders.Run
    exit: dict[str, Any]
    trouble: str | None  # what the recording misses, in words
    alerts: Alerts = field(default_factory=Alerts)


def more_descriptors(wanted: int = 256) -> tuple[int, int] | None:
    """Raises our limit of open files where it may be; what it was, for the job. None: as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= raised:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        return None
    return soft, hard


def known_need(claim: dict[str, Any] | None) -> int | None:
    """What the run will hold at most, declared or from its history: a pause then ends when that much is available."""
    need = (claim or {}).get("need")
    return need if isinstance(need, int) else None


def usual_peak(claim: dict[str, Any] | None) -> int | None:
    """The same, unless all that is known of it is where it was ended before."""
    return None if str((claim or {}).get("basis")).startswith(AT_LEAST) else known_need(claim)


def oom_score_by_age(older: int) -> int:
    """What is added to the job's oom_score_adj: the more runs are older, the sooner the kernel takes this one.

    Never lowered again, for that would need privileges: a run that has become the oldest keeps what it got. The kernel
    counts 100 as a tenth of RAM and swap. In I0 the training held 19 of 31 GB, the loader 11 when memory ended: less than
    260 would not have saved the training. 300 is also what browsers give their tabs, which then are no sooner victims.
    """
    return min(500, 200 + 100 * older) if older else 0


def supervise(
    run: run_folders.Run,
    order: Order,
    on_started: Callable[[str, Callable[[str], None]], None],
    ticket: Ticket | None = None,
    share: GpuShare | None = None,
) -> Outcome:
    """Starts the job and stays until it has ended. Raises only when it could not be started. The caller has the guard's lock.

    Signals stay caught when it returns: the caller still has the verdict to tell and the job's status to return.
    """
    host = HostView()
    chosen = order.chosen
    claim = ticket.as_json() if ticket else None
    settings = guard_settings(chosen, host, claim)
    # Half the floor below the guard's line: the kernel is the last resort, not the guard's rival.
    cap = chosen.limit if chosen.limit is not None else max(host.ram - settings.floor // 2, host.ram // 2)
    info = describe_run(run, order, settings, claim)
    state_files.write_json(run.info_file, info)
    environment = {
        **(agent_feed.without(os.environ) if not order.agent else os.environ),
        **(ticket.environment if ticket else {}),
        "OOMPROOF_RUN": run.id,
        "OOMPROOF_STOP_FILE": str(chosen.stop_file or run.attempt.stop_file),
        **(agent_feed.environment(run.attempt, run.id, chosen.agent_settings()) if order.agent else {}),
    }
    launch = Launch(
        argv=order.argv,
        environment=environment,
        attempt=run.attempt,
        unit=run.id,
        cap=cap,
        grace=chosen.grace,
        output_cap=order.output_cap,
        watch_only=chosen.watch_only,
        detached=order.detached,
        oom_score_add=0 if chosen.protect else oom_score_by_age(live_runs.count()),
    )
    threading.stack_size(256 * 1024)  # the guard's threads are shallow
    launch.nofile = more_descriptors()
    front = Front(launch, Terminal(quiet=order.verbosity < 0))
    front.catch_signals()
    try:
        started = front.start()
    except BaseException:
        front.release_signals()
        raise
    # The signals stay caught after the end too: one that comes now must not replace the job's status.
    record, trouble = _stay(run, order, front, settings, host, info, started, on_started, ticket, share)
    return Outcome(run, record, trouble, order.alerts)


def _stay(
    run: run_folders.Run,
    order: Order,
    front: Front,
    settings: Settings,
    host: HostView,
    info: dict[str, Any],
    started: dict[str, Any],
    on_started: Callable[[str, Callable[[str], None]], None],
    ticket: Ticket | None = None,
    share: GpuShare | None = None,
) -> tuple[dict[str, Any], str | None]:
    """From the job's start to its end; from here on nothing may stop us but the end. (exit record, trouble)"""
    say = front.say
    sentence = front.backend.sentence(order.chosen.limit is not None, order.verbosity)
    _or_none(say, "the start could not be told", lambda: on_started(sentence, front.terminal.message))
    watch = _or_none(
        say,
        "NOT GUARDED, nor recorded",
        lambda: Watch(
            run,
            started,
            settings,
            host,
            say,
            order.chosen,
            agent=order.agent,
            gpu=share.feed if share else None,
            alerts=order.alerts,
        ),
    )
    if watch is None:
        return front.relay(None), "the guard could not be started"
    lock_memory()
    watch.start()
    if share is not None:
        _or_none(say, "no turns on the card", lambda: watch.share_card(share))
    over = threading.Event()
    describing = threading.Thread(
        target=write_down, args=(run, info, order.argv, started, ticket, over), name="code", daemon=True
    )
    try:
        describing.start()  # not among the background tasks: a slow git must not hold up a stop file
    except RuntimeError:
        write_down(run, info, order.argv, started, ticket, over)

    def on_interrupt(how: str) -> None:
        watch.let_go(f"{how} came for it")  # a paused job cannot hear it
        watch.task_thread.do(lambda: note_interrupt(run.attempt, how))

    def on_output_lost(error: OSError) -> None:
        watch.task_thread.do(lambda: note_output_lost(run.attempt, error))
        if error.errno != errno.EPIPE:  # `| head` is no news to whoever typed it
            say(
                f"oomproof: the job's output cannot be written: {error.strerror}; from now on it meets a closed pipe"
            )

    def on_takeover(text: str) -> None:
        watch.job.keeper = 0  # its number may become somebody else's
        watch.writer.event(boottime(), "keeper", text)

    front.on_interrupt, front.on_takeover = on_interrupt, on_takeover
    front.on_output_lost = on_output_lost
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    front.on_output_full = lambda: watch.task_thread.do(lambda: note_output_lost(run.attempt, full))
    try:
        record = front.relay(watch.status_line if front.terminal.tty_numbers else None, watch.tick)
    finally:
        over.set()
        watch.stop()
        if describing.is_alive():
            describing.join(1.0)
    front.close()
    return record, watch.writer.trouble


def write_down(
    run: run_folders.Run,
    info: dict[str, Any],
    argv: list[str],
    started: dict[str, Any],
    ticket: Ticket | None,
    over: threading.Event,
) -> None:
    """The ledger's entry, then the code: git takes its time. After the start, off every path that matters."""
    state_files.sync(run.attempt.started_file)
    with contextlib.suppress(Exception):  # a full disk, no descriptors: the run goes on without
        if ticket is not None:
            ticket.started(started, over)
    with contextlib.suppress(Exception):
        leftovers.sweep()
    with contextlib.suppress(Exception):  # the run matters more than its commit
        state_files.write_json(run.info_file, {**info, "code": code_identity.describe(argv, info["cwd"])})


def note_interrupt(attempt: Attempt, how: str) -> None:
    action = "interrupt" if how in ("Ctrl-C", "SIGINT") else "signal"
    attempt.add_action(action_record("user", action, how))


def note_output_lost(attempt: Attempt, error: OSError) -> None:
    """SIGPIPE where its reader went away; another error is the place's that its output goes to."""
    if error.errno == errno.EPIPE:
        attempt.add_action(action_record("front", "signal", "SIGPIPE"))
    else:
        attempt.add_action(action_record("front", "output-lost", error.strerror or str(error)))
