"""Guards the whole machine: the job that fills it is paused before anything dies, also where nobody started it with oomproof.

When memory runs short it names the job that grows. If that is yours, and nobody else would feel it (it serves no socket,
window, mount or container and leads no session), it is paused, its terminal is told why and until when, and it resumes by
itself when memory is free again, after an hour at the latest. Anything else is only warned of; nothing is ever ended, unless you
allow that.

  oomproof guard                       until Ctrl-C
  oomproof guard --dry-run             only say what it would do
  oomproof guard --protect 'postgres|my_server.py'
  oomproof guard install               a service of yours
  sudo oomproof guard install --system for all users
  oomproof guard status
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.alerts.alert import Alert
from oomproof.alerts.alert_channel import Alerts
from oomproof.errors import USAGE, OomproofError
from oomproof.guard.best_effort import BestEffort
from oomproof.guard.host_view import HostView
from oomproof.guard.machine_guard import CARDS_EVERY, MachineGuard
from oomproof.guard.machine_guard import run as run_guard
from oomproof.guard.unmanaged_guard import Choice
from oomproof.guard.view import JobKey
from oomproof.leaf.action_kinds import ON_UNMANAGED, WARN
from oomproof.ledger import guard_lease, paused_jobs
from oomproof.ledger.paused_jobs import SYSTEM_FOLDER
from oomproof.machine import daemons, nvidia
from oomproof.own_command import OWN_COMMAND
from oomproof.recording.state_files import runtime_folder
from oomproof.records import asdict, replace
from oomproof.remedies import system_advice
from oomproof.runner import guard_service
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.run_flags import RunSettings, add_receiver_flags, receivers_of, seconds, size
from oomproof.settings import PERSONAL
from oomproof.units import format_duration, format_size

if TYPE_CHECKING:
    from oomproof.runner.gpu_feed import GpuFeed

_ACTIONS = ("install", "uninstall", "status")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=_ACTIONS, metavar="ACTION", help="install, uninstall or status"
    )
    parser.add_argument("--dry-run", action="store_true", help="act on nothing; say what would be done")
    parser.add_argument(
        "--protect",
        action="append",
        default=[],
        metavar="REGEX",
        help="never touch a job whose command line matches (may be given several times)",
    )
    parser.add_argument(
        "--prefer",
        action="append",
        default=[],
        metavar="REGEX",
        help="of the jobs that grow, pause one whose command line matches before the others",
    )
    parser.add_argument(
        "--may-kill-unmanaged",
        action="store_true",
        help="end a job that fills the machine where pausing it did not help: SIGTERM, then SIGKILL",
    )
    parser.add_argument("--margin", metavar="SIZE", help="warn below this much RAM and disk swap")
    parser.add_argument(
        "--floor",
        metavar="SIZE",
        help="pause the job that grows below this (default: 4 %% of RAM, at least 512 MiB)",
    )
    parser.add_argument(
        "--pause-max", metavar="SECONDS", help="a pause lasts at most this long (default 3600)"
    )
    parser.add_argument("--system", action="store_true", help="for all users; needs root")
    parser.add_argument(
        "--no-desktop",
        action="store_true",
        help="with install --system: do not keep the desktop's own memory in RAM (memory.low)",
    )
    parser.add_argument("--print", action="store_true", help="with install: show the unit, install nothing")
    parser.add_argument("--json", action="store_true", help="with status: machine-readable output")
    add_receiver_flags(parser, ends=False)


def run(arguments: argparse.Namespace) -> int:
    if arguments.print and arguments.action != "install":
        raise OomproofError("--print belongs to install", "oomproof guard install --print", USAGE)
    if arguments.no_desktop and not (arguments.action == "install" and arguments.system):
        raise OomproofError(
            "--no-desktop belongs to install --system", "oomproof guard install --system --no-desktop", USAGE
        )
    if arguments.json and arguments.action != "status":
        raise OomproofError("--json belongs to status", "oomproof guard status --json", USAGE)
    choice = _choice(arguments)
    if arguments.action == "status":
        return _status(arguments.json)
    if arguments.system and os.getuid() != 0 and not arguments.print:
        raise OomproofError(
            "a guard for all users needs root", "sudo oomproof guard … --system; or leave out --system"
        )
    if arguments.action == "install":
        return _install(arguments)
    if arguments.action == "uninstall":
        tell(guard_service.uninstall(arguments.system))
        return 0
    return _guard(arguments, choice)


def _choice(arguments: argparse.Namespace) -> Choice:
    patterns: list[re.Pattern[str] | None] = []
    for name in ("protect", "prefer"):
        try:
            patterns.append(_compiled(getattr(arguments, name)))
        except re.error as error:
            raise OomproofError(
                f"--{name} {error.pattern!r} is no regular expression: {error.msg}",
                "quote it: 'my_server.py'",
                USAGE,
            ) from None
    protect, prefer = patterns
    return Choice(protect, prefer, arguments.system, arguments.dry_run)


def _compiled(patterns: list[str]) -> re.Pattern[str] | None:
    """One pattern that matches where any of them does; raises re.error."""
    for pattern in patterns:
        re.compile(pattern)  # so that the message is about this one
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def _guard(arguments: argparse.Namespace, choice: Choice) -> int:
    chosen = RunSettings()
    if arguments.margin is not None:
        chosen = replace(chosen, margin=size(arguments.margin))
    if arguments.floor is not None:
        chosen = replace(chosen, floor=size(arguments.floor))
    if arguments.pause_max is not None:
        chosen = replace(chosen, pause_max=seconds("--pause-max")(arguments.pause_max))
    host = HostView()
    settings = replace(guard_settings(chosen, host), may_end_unmanaged=arguments.may_kill_unmanaged)
    if arguments.pause_max is not None:
        settings = replace(settings, unmanaged_pause_max=chosen.pause_max)
    folder = _system_folder() if arguments.system else runtime_folder()
    alerts = Alerts(receivers_of(vars(arguments)), tell)
    lock = guard_lease.take(folder, arguments.dry_run, settings.floor)
    alerts.start()

    def on_action(kind: str, text: str, job: JobKey) -> None:
        tell(text)
        if kind in (WARN, "gpu-full") or kind in ON_UNMANAGED:
            alerts.send(Alert(kind, "this machine", text))

    stop, wake = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(wake, b"."))
    left = format_size(sum(host.headroom()))
    what = "only says whom it would pause" if arguments.dry_run else "pauses the job that grows"
    tell(
        f"guarding this machine: {left} of RAM and disk swap left; warns below {format_size(settings.margin)}, "
        f"{what} below {format_size(settings.floor)}"
    )
    best_effort = BestEffort(tell)
    best_effort("looking for other guards", lambda: _tell_other_guards(settings.floor, host), None)
    keeping = _KillKeeper(arguments.system)
    keeping.keep()
    feed = best_effort("starting the GPU helper", _card_feed, None)
    cards = feed.latest if feed is not None else None
    guard = MachineGuard(host, settings, choice, on_action, best_effort, lambda: folder, keeping.keep, cards)
    try:
        run_guard(guard, stop, best_effort)
    finally:
        if feed is not None:
            feed.close()
        alerts.close()
        guard_lease.leave(folder)
        os.close(lock)
    tell("the guard has ended; nothing is paused by it any more")
    return 0


def _card_feed() -> GpuFeed | None:
    """Only where a driver is: it brings subprocess and a helper process along."""
    if not nvidia.driver_present():
        return None
    from oomproof.runner.gpu_feed import start

    return start(CARDS_EVERY)


def _tell_other_guards(floor: int, host: HostView) -> None:
    thresholds = daemons.thresholds(daemons.running())
    for line in system_advice.lines(thresholds, floor, host.mem_total, host.swap_total, host.inside_a_limit):
        tell(line)


class _KillKeeper:
    """Writes down who was killed, in a process of its own: reading logs takes memory that a guard should not hold."""

    def __init__(self, system: bool) -> None:
        self._words = [*OWN_COMMAND, "runs", "kills", "--keep", *(["--system"] if system else [])]
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return  # it is at it; what it misses the next one finds
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(self._words, stdin=null, stdout=null, stderr=null)


def _system_folder() -> Path:
    SYSTEM_FOLDER.mkdir(mode=0o755, exist_ok=True)
    if SYSTEM_FOLDER.lstat().st_uid != 0 or SYSTEM_FOLDER.is_symlink():
        raise OomproofError(f"{SYSTEM_FOLDER} is not root's", "remove it")
    return SYSTEM_FOLDER


def _install(arguments: argparse.Namespace) -> int:
    if any(getattr(arguments, name, None) for name in PERSONAL):
        raise OomproofError(
            "a service has its receivers of alerts from your settings file: an address may be secret, a unit is not",
            "write them there: oomproof config shows where it is; see docs/alerts.md",
            USAGE,
        )
    flags = []
    for name in ("protect", "prefer"):
        flags += [word for pattern in getattr(arguments, name) for word in (f"--{name}", pattern)]
    for name in ("margin", "floor", "pause_max"):
        if (value := getattr(arguments, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", value]
    flags += ["--dry-run"] if arguments.dry_run else []
    flags += ["--may-kill-unmanaged"] if arguments.may_kill_unmanaged else []
    unit = guard_service.unit(flags, arguments.system)
    desktop = {}
    if arguments.system and not arguments.no_desktop:
        desktop = guard_service.slice_files(HostView().mem_total)
    if arguments.print:
        print(unit, end="")
        for path, text in desktop.items():
            print(f"\n# {path}\n{text}", end="")
        return 0
    tell(guard_service.install(unit, arguments.system, desktop))
    if desktop:
        tell(
            "the desktop's own memory is kept in RAM from the next login on (docs/guard.md); --no-desktop leaves that out"
        )
    return 0


def _status(as_json: bool) -> int:
    leases = [
        lease for lease in (guard_lease.read(SYSTEM_FOLDER, True), guard_lease.own()) if lease is not None
    ]
    paused = paused_jobs.read()
    host = HostView()
    floor = next((lease.floor for lease in leases if lease.floor), 0)
    floor = floor or guard_settings(RunSettings(), host).floor
    thresholds, sizes = daemons.thresholds(daemons.running()), (host.mem_total, host.swap_total)
    if as_json:
        others = [
            {
                "name": threshold.daemon.name,
                "pid": threshold.daemon.pid,
                "acts_below_bytes": system_advice.acts_below(threshold, *sizes),
                "acts_first": system_advice.is_first(threshold, floor, *sizes),
            }
            for threshold in thresholds
        ]
        guards, jobs = [asdict(lease) for lease in leases], [asdict(job) for job in paused]
        print(json.dumps({"schema": 1, "guards": guards, "paused": jobs, "oom_daemons": others}))
        return 0
    for lease in leases:
        whose = "the guard for all users" if lease.system else "your guard"
        since = format_duration(time.time() - lease.since)
        what = "only says whom it would pause" if lease.dry_run else "pauses the job that grows"
        below = f" below {format_size(lease.floor)}" if lease.floor else ""
        print(f"{whose} runs (pid {lease.pid}, for {since}): it {what}{below}")
    if not leases:
        print("no guard of the machine runs; each `oomproof run` looks after its own job")
        print("  start one: oomproof guard install")
    for line in system_advice.lines(thresholds, floor, *sizes, host.inside_a_limit):
        print(line)
    for job in paused:
        until = time.strftime("%H:%M", time.localtime(job.until))
        print(f"paused by {job.by} until {until}: {job.name} (pid {job.pid}); now: oomproof resume {job.pid}")
    return 0 if leases else 1


def tell(text: str) -> None:
    with contextlib.suppress(OSError):  # whoever read it has gone; the guard stays
        print(f"oomproof: {text}", file=sys.stderr, flush=True)
