"""One run from start to exit status: its folder, the job's start, the watch over it, its end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oomproof import __version__
from oomproof.alerts.alert_channel import Alerts
from oomproof.guard.guard_actions import action_record
from oomproof.guard.host_view import HostView
from oomproof.guard.view import Settings
from oomproof.leaf.action_kinds import INTERRUPT, OUTPUT_LOST, SIGNAL
from oomproof.ledger import live_runs
from oomproof.machine import processes
from oomproof.machine.clock import boottime
from oomproof.machine.host_identity import host_name, machine_id
from oomproof.recording import run_folders, state_files
from oomproof.recording.attempt import Attempt
from oomproof.recording.secrets import mask_argv, mask_environment
from oomproof.records import dataclass, field
from oomproof.runner import agent_feed, code_identity, leftovers
from oomproof.runner.admission_request import Asked, Ticket
from oomproof.runner.front import Front
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.job_launch import Launch
from oomproof.runner.job_watch import Watch, or_none
from oomproof.runner.output_log import OUTPUT_CAP
from oomproof.runner.run_flags import SIZE_FIRST, RunSettings, to_json
from oomproof.runner.terminal import Terminal

if TYPE_CHECKING:  # they bring subprocess along, which only machines with a GPU need
    from oomproof.runner.gpu_share import GpuShare


_PRESSED = 3
_WITHIN = 10.0  # seconds; a program at work on the first needs no advice, nor does one that is interrupted now and then


class IgnoredInterrupts:
    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_PRESSED)
        self._told = False

    def is_enough(self, t: float) -> bool:
        """Of one more at this time; once in a run."""
        self._times.append(t)
        if self._told or len(self._times) < _PRESSED or t - self._times[0] > _WITHIN:
            return False
        self._told = True
        return True


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
    # with --retry: "plan" of this attempt, "change" from the one before, the "checkpoint" it resumes from
    attempt: dict[str, Any] = field(default_factory=dict)


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
        spill=chosen.spill or 0,
        ledger=chosen.ledger,
    )


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under us
        return "(removed)"


def address_space() -> int | None:
    """The limit of `ulimit -v`, which the job inherits; None: none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return soft if soft != resource.RLIM_INFINITY else None


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
        "address_space": address_space(),
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
        **order.attempt,
    }


_INTERRUPTS = ("Ctrl-C", "SIGINT")
_OF_ATTEMPT = ("schema", "argv", "claim", "predicted", "code")


def describe_attempt(info: dict[str, Any], order: Order) -> dict[str, Any]:
    """attempt.json of a second and later one: what differs from the first."""
    return {**{name: info[name] for name in _OF_ATTEMPT}, **order.attempt}


def write_info(attempt: Attempt, order: Order, info: dict[str, Any]) -> None:
    """run.json says how the run was begun and stays; what a later attempt has of its own stands beside its recording."""
    if (attempt.number or 1) == 1:
        state_files.write_json(run_folders.Run(attempt.run_folder).info_file, info)
    else:
        state_files.write_json(attempt.info_file, describe_attempt(info, order))


@dataclass
class Outcome:
    run: run_folders.Run
    exit: dict[str, Any]
    trouble: str | None  # what the recording misses, in words
    alerts: Alerts = field(default_factory=Alerts)
    release_signals: Callable[[], None] = lambda: None  # for whoever starts another attempt


_limit_before: tuple[int, int] | None = None


def more_descriptors(wanted: int = 256) -> tuple[int, int] | None:
    """Raises our limit of open files where it may be; what it was, for the job of this attempt and of each further one. None: as
    it is."""
    global _limit_before
    if _limit_before is not None:
        return _limit_before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= raised:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        return None
    _limit_before = soft, hard
    return _limit_before


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
    write_info(run.attempt, order, info)
    number = run.attempt.number or 1
    # now: the keeper can hold it also where the disk turns read-only meanwhile
    with contextlib.suppress(OSError):
        run.keeper_lock.touch(mode=0o600)
    environment = {
        **(agent_feed.without(os.environ) if not order.agent else os.environ),
        **(ticket.environment if ticket else {}),
        "OOMPROOF_RUN": run.id,
        "OOMPROOF_STOP_FILE": str(chosen.stop_file or run.attempt.stop_file),
        **(
            agent_feed.environment(run.attempt, run.id, chosen.agent_settings(settings.margin))
            if order.agent
            else {}
        ),
    }
    launch = Launch(
        argv=order.argv,
        environment=environment,
        attempt=run.attempt,
        unit=run.id if number == 1 else f"{run.id}.{number}",
        cap=cap,
        grace=chosen.grace,
        output_cap=order.output_cap,
        watch_only=chosen.watch_only,
        detached=order.detached,
        oom_score_add=0 if chosen.protect else oom_score_by_age(live_runs.count()),
        name=run.name if run_folders.easy_to_type(run.name) else run.id,  # nobody newer has it
    )
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
    host.close()
    return Outcome(run, record, trouble, order.alerts, front.release_signals)


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

    def tell_start() -> None:
        """Before the job's first line, and not before it is guarded: whoever reads our lines may not be reading."""
        or_none(say, "the start could not be told", lambda: on_started(sentence, front.terminal.message))

    watch = or_none(
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
        tell_start()
        return front.relay(None), "the guard could not be started"
    watch.start()
    tell_start()
    if share is not None:
        or_none(say, "no turns on the card", lambda: watch.share_card(share))
    over = threading.Event()
    describing = threading.Thread(
        target=write_down, args=(run, info, order, started, ticket, over), name="code", daemon=True
    )
    try:
        describing.start()  # not among the background tasks: a slow git must not hold up a stop file
    except RuntimeError:
        write_down(run, info, order, started, ticket, over)

    ignored = IgnoredInterrupts()

    def on_interrupt(how: str) -> None:
        if how in _INTERRUPTS and ignored.is_enough(boottime()) and front.makes_signals_of_keys():
            name = run_folders.to_type(run)
            say(f"oomproof: the job does not end at Ctrl-C; from another terminal: oomproof stop {name}")
        watch.let_go(how)
        # made now, before the job hears it: one that has ended is not ended by it
        passed_on = interrupt_record(how)
        watch.task_thread.do(lambda: run.attempt.add_action(passed_on))

    def on_output_lost(error: OSError) -> None:
        watch.task_thread.do(lambda: note_output_lost(run.attempt, error))
        if error.errno != errno.EPIPE:  # `| head` is no news to whoever typed it
            say(
                f"oomproof: the job's output cannot be written: {error.strerror}; from now on the job writes into a closed pipe"
            )

    def on_takeover(text: str) -> None:
        watch.job.keeper = 0  # its number may become somebody else's
        watch.writer.event(boottime(), "keeper", text)

    front.on_interrupt, front.on_takeover = on_interrupt, on_takeover
    front.on_output_lost = on_output_lost
    front.was_ended = lambda: watch.has_ended_it
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
    order: Order,
    started: dict[str, Any],
    ticket: Ticket | None,
    over: threading.Event,
) -> None:
    """The ledger's entry, then the code: git takes its time. After the start, off every path that matters."""
    attempt = run.attempt  # that of now: git may outlive it
    state_files.sync(attempt.started_file)
    with contextlib.suppress(Exception):  # a full disk, no descriptors: the run continues without
        if ticket is not None:
            ticket.started(started, over)
    with contextlib.suppress(Exception):
        leftovers.sweep()
    with contextlib.suppress(Exception):  # the run matters more than its commit
        write_info(attempt, order, {**info, "code": code_identity.describe(order.argv, info["cwd"])})


def interrupt_record(how: str) -> dict[str, Any]:
    return action_record("user", INTERRUPT if how in _INTERRUPTS else SIGNAL, how)


def note_output_lost(attempt: Attempt, error: OSError) -> None:
    """SIGPIPE where its reader went away; another error is the place's that its output goes to."""
    if error.errno == errno.EPIPE:
        attempt.add_action(action_record("front", SIGNAL, "SIGPIPE"))
    else:
        attempt.add_action(action_record("front", OUTPUT_LOST, error.strerror or str(error)))
