"""Runs any command under watch: recorded, kept inside its memory limit, explained when it dies.

The command's arguments, its terminal and its exit status stay as they are. Without --limit the kernel keeps only the
machine's floor free, so a job that used to run still runs. When memory runs short the job is warned about, paused while
another run can finish and give room, else asked to save and stop (the stop file, --stop-signal), then ended, before the
kernel picks a victim.

  oomproof run -- python train.py --epochs 3
  oomproof run --limit 20G --name big -- python train.py
  oomproof run --stop-signal USR1 --grace 60 -- python train.py
  oomproof run --detach -- python train.py        then: oomproof logs -f, oomproof wait
  oomproof run --protect -- python train.py       the younger runs make room first
  oomproof run --need 19G -- python train.py      starts when 19 GiB are free and promised to nobody

Exit status: the job's own, 128+signal when it was killed; 2 usage, 125 our failure, 126/127 cannot execute/not found,
75 no room now (--no-wait, --wait-max) or the same job runs already, 69 can never fit on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.cli import run_gpu
from oomproof.cli.background import Said, into_the_background
from oomproof.cli.status import exit_status
from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, NOT_NOW, USAGE, OomproofError
from oomproof.guard.actions import STOP_TEXT
from oomproof.guard.host_view import HostView
from oomproof.guard.view import FREEZE_MAX
from oomproof.ledger.runtime import runtime_folder
from oomproof.machine.arguments import script_of
from oomproof.printable import printable
from oomproof.recording import runs
from oomproof.runner.admission import Asked, Ticket, ask
from oomproof.runner.front import FORWARDED
from oomproof.runner.sampler import Alerts
from oomproof.runner.supervise import GPU_TURN, Order, Outcome, describe_run, supervise, working_folder
from oomproof.runner.waiting import Cancelled
from oomproof.settings import Resolved, resolve
from oomproof.units import MIB, format_size, parse_duration, parse_gpu_need, parse_size

if TYPE_CHECKING:  # what a start does not need
    from oomproof.reports.after import Conclusion
    from oomproof.runner.gpu_share import GpuShare

_SMALLEST_LIMIT = 16 * MIB  # Python 3.11 takes about 9 MiB of its own to start, 14 with the usual imports

# Programs that hand the work to a daemon which is no child of theirs: what we watch is then only the messenger.
_MESSENGERS = {
    "docker": "the docker daemon runs the container",
    "podman-remote": "the podman service runs the container",
    "nerdctl": "containerd runs the container",
    "tmux": "the tmux server runs the command",
    "screen": "the screen daemon runs the command",
    "ollama": "the ollama server holds the model",
    "sbatch": "Slurm runs the job elsewhere",
    "srun": "Slurm's daemon runs the job",
    "systemd-run": "systemd runs the command",
    "at": "the at daemon runs the command",
}

SETTINGS = {
    "limit", "name", "margin", "floor", "grace", "alert_above", "alert_gpu_above", "alert_swap_growth",
    "stop_file", "stop_signal", "watch_only", "oom_exit_code", "protect", "freeze_max",
    "need", "gpu_need", "priority", "no_wait", "wait_max", "not_before", "allow_twin", "ledger",
    "gpu_share", "gpu_turn",
    "no_agent",
} | run_gpu.SETTINGS  # fmt: skip


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof run [options] -- CMD ..."
    add = parser.add_argument
    add(
        "--limit",
        metavar="SIZE",
        help="the job may hold this much, such as 20G (default: all but the machine's floor)",
    )
    add(
        "--need",
        metavar="SIZE",
        help="start when this much is free and promised to nobody (default: what this command held before)",
    )
    add(
        "--gpu-need",
        metavar="SIZE[:GPU]",
        help="the same for GPU memory (12G: the card with the most room, 12G:1: GPU 1)",
    )
    add("--priority", metavar="N", help="turn in the queue: higher first (default 0)")
    add("--no-wait", action="store_true", default=None, help="no room now: exit with 75 instead of waiting")
    add("--wait-max", metavar="TIME", help="wait at most this long, such as 2h, then exit with 75")
    add("--not-before", metavar="CLOCK", help="start no sooner than this, such as 22:00 or 2030-01-31T06:00")
    add(
        "--allow-twin",
        action="store_true",
        default=None,
        help="start although the same job runs already (same output folder, or same arguments on the same GPU)",
    )
    add("--name", metavar="NAME", help="a name to call this run by")
    add(
        "--margin",
        metavar="SIZE",
        help="warn when less than this is available (default 5G, at most a quarter of RAM)",
    )
    add(
        "--floor",
        metavar="SIZE",
        help="act when less than this is available (default 4 %% of RAM, at least 512M, at most the margin)",
    )
    add(
        "--grace",
        metavar="SECONDS",
        help="time to save between asking and ending (default 30); also what left-behind processes get",
    )
    add("--alert-above", metavar="SIZE", help="tell when the job holds more than this")
    add("--alert-gpu-above", metavar="SIZE", help="tell when the job holds more than this of GPU memory")
    add("--alert-swap-growth", action="store_true", default=None, help="tell when the job's swap grows")
    add(
        "--stop-file",
        metavar="PATH",
        help="a file the job already watches: created to ask it to save and stop",
    )
    add("--stop-signal", metavar="SIG", help="a signal on which the job saves and stops, such as USR1")
    add("--watch-only", action="store_true", default=None, help="record and warn, never limit or end the job")
    add(
        "--no-agent",
        action="store_true",
        default=None,
        help="look at the job from outside only: no phases, no steps, no Python stacks",
    )
    run_gpu.add_flags(parser)
    add(
        "--protect",
        action="store_true",
        default=None,
        help="never pause this run, and end it for the machine's sake only after all others",
    )
    add(
        "--freeze-max",
        metavar="SECONDS",
        help="a pause for want of memory lasts at most this long (default 21600, six hours; 0: never pause)",
    )
    add(
        "--gpu-share",
        action="store_true",
        default=None,
        help="take turns on the GPU with other such runs when they do not fit together (driver 570 or newer)",
    )
    add(
        "--gpu-turn",
        metavar="SECONDS",
        help="with --gpu-share: how long a turn lasts while another waits (default 120)",
    )
    add(
        "--detach",
        action="store_true",
        help="return at once; follow with `oomproof logs -f`, `oomproof wait`",
    )
    add("--report", metavar="FILE", help="write the verdict there as JSON (schema 1)")
    add(
        "--oom-exit-code",
        metavar="N",
        help="exit with N when the job died of memory, for engines that act on codes",
    )
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --")


def run(arguments: argparse.Namespace) -> int:
    order = _order(arguments)
    _check_command(order.argv[0])
    _check_stop_file(order.stop_file)
    report = Path(arguments.report).absolute() if arguments.report else None
    if report is not None and not report.parent.is_dir():
        raise OomproofError(
            f"--report: there is no folder {report.parent}", f"mkdir -p {report.parent}", USAGE
        )
    _look_for_twins(order)
    if arguments.detach:
        with contextlib.suppress(OomproofError):
            runtime_folder()  # what is odd about it is told while there is a terminal
        return _detach(order, report)
    try:
        return _finish(_supervise(order, _hello, lambda *_: None), report, quiet=False)
    except Cancelled as cancelled:
        _tell("oomproof: gave up waiting; nothing was started")
        return 128 + cancelled.number


def _supervise(order: Order, hello: Any, on_waiting: Callable[[runs.Run, str], None]) -> Outcome:
    run = runs.new_run()
    # from now on, and as long as this process lives: between waiting and running nobody may take it for a failed start
    with contextlib.suppress(OSError):  # a full disk: what is written next says it in words
        runs.take_lock(run.folder / "guard.lock")
    try:
        ticket = _admit(run, order, lambda text: on_waiting(run, text))
        share = None
        try:
            if ticket.waited:
                _look_for_twins(order)  # it may have been started meanwhile
            if order.gpu_share:
                share = _turn_on_the_card(run, order, lambda text: on_waiting(run, text))
            return supervise(
                run, order, lambda sentence: hello(run, order, sentence, ticket.told), ticket, share
            )
        except (OomproofError, KeyboardInterrupt):
            ticket.drop()
            raise
        finally:
            if share is not None:
                share.close()
    except (OomproofError, Cancelled, KeyboardInterrupt):
        from shutil import rmtree

        if not run.started():
            rmtree(run.folder, ignore_errors=True)  # nothing was run: leave no trace that looks like a run
        raise


def _admit(run: runs.Run, order: Order, on_waiting: Callable[[str], None]) -> Ticket:
    """Room for the run, after a wait if need be; while it waits it can be listed and stopped."""

    def waiting(text: str) -> None:
        host = HostView()
        with contextlib.suppress(OomproofError):  # a full disk: it waits all the same
            settings = order.settings(host.ram, host.inside_a_limit)
            runs.write_json(run.folder / "run.json", describe_run(run, order, settings))
        on_waiting(text)

    folder = working_folder()
    if not order.allow_twin and script_of(order.argv, folder) is not None:
        from oomproof.machine.twins import identity

        order.asked.twin = identity(order.argv, folder, os.environ, gpu_is_here())
    asked = replace(order.asked, gpu_need=None, gpu=None) if order.gpu_share else order.asked
    return ask(run, order.argv, order.name, asked, folder, _tell, waiting)


def _turn_on_the_card(run: runs.Run, order: Order, on_waiting: Callable[[str], None]) -> GpuShare:
    """With --gpu-share: its place on the card, after a wait if need be."""
    from oomproof.runner.gpu_share import join

    def say(text: str) -> None:
        _tell(text)
        on_waiting(text.removeprefix("oomproof: "))

    return join(run.id, order.asked.gpu, order.asked.gpu_need, order.gpu_turn, say)


def _look_for_twins(order: Order) -> None:
    folder = working_folder()
    if order.allow_twin or script_of(order.argv, folder) is None:
        return
    from oomproof.machine import twins

    found = twins.of(order.argv, folder, os.environ, os.getppid())
    if not found:
        return
    closest = found[0]
    alike = [twin for twin in found if twin.likeness == closest.likeness]
    pids = " and ".join(str(twin.pid) for twin in alike)
    pids = f"pid {pids}" if len(alike) == 1 else f"pids {pids}"
    if closest.likeness == "output":
        raise OomproofError(
            f"the same job runs already and writes to the same folder {closest.output}: {pids}",
            "wait for it, give another output folder, or add --allow-twin",
            NOT_NOW,
        )
    if closest.likeness == "arguments" and gpu_is_here():
        raise OomproofError(
            f"the same job runs already with the same arguments on the same GPU: {pids}",
            "wait for it, set CUDA_VISIBLE_DEVICES to another card, or add --allow-twin",
            NOT_NOW,
        )
    how = "the same arguments" if closest.likeness == "arguments" else "other arguments"
    _tell(f"oomproof: the same script runs already with {how}: {pids}")


def _tell(text: str) -> None:
    """Straight to the descriptor: a full disk or a closed pipe behind it must cost neither job, guard nor status."""
    with contextlib.suppress(OSError):
        os.write(2, (printable(text) + "\n").encode())


def _hello(run: runs.Run, order: Order, sentence: str, told: list[str]) -> None:
    _tell(f"oomproof: run {run.id}: {sentence}")
    for line in told:
        _tell(f"oomproof: {line}")
    messenger = _MESSENGERS.get(os.path.basename(order.argv[0]))
    if messenger and order.argv[1:2] != ["--version"]:
        _tell(
            f"oomproof: {order.argv[0]} only passes the work on: {messenger}. Its memory is not this run's; "
            "put oomproof inside, before the command that does the work"
        )


def _order(arguments: argparse.Namespace) -> Order:
    argv = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise OomproofError("there is no command to run", "oomproof run -- python train.py", USAGE)
    if arguments.command[:1] != ["--"] and argv[0].startswith("-"):
        raise OomproofError(f"unknown option {argv[0]}", "see: oomproof run --help", USAGE)
    given = resolve(vars(arguments), SETTINGS)
    sizes = {
        name: _read(given, name, parse_size)
        for name in ("limit", "margin", "floor", "alert_above", "alert_gpu_above", "need")
    }
    if sizes["limit"] is not None and sizes["limit"] < _SMALLEST_LIMIT:
        raise OomproofError(
            f"--limit {given['limit']} is {format_size(sizes['limit'])}: Python cannot even start in that",
            f"give at least {format_size(_SMALLEST_LIMIT)}; --limit 2G is 2 GiB",
            USAGE,
        )
    code = given["oom_exit_code"]
    if code is not None and not (str(code).isdigit() and 0 <= int(code) <= 255):
        raise OomproofError(f"--oom-exit-code {code} is no exit status", "give a number from 0 to 255", USAGE)
    return Order(
        argv=argv,
        name=given["name"],
        limit=sizes["limit"],
        margin=sizes["margin"],
        floor=sizes["floor"],
        grace=seconds_of("--grace", given["grace"], 30.0),
        alerts=Alerts(sizes["alert_above"], sizes["alert_gpu_above"], _truth(given["alert_swap_growth"])),
        stop_file=Path(given["stop_file"]).absolute() if given["stop_file"] else None,
        stop_signal=signal_of(given["stop_signal"]),
        watch_only=_truth(given["watch_only"]),
        agent=not _truth(given["no_agent"]),
        agent_settings=run_gpu.agent_settings(given, with_agent=not _truth(given["no_agent"])),
        detached=bool(arguments.detach),
        oom_exit_code=int(code) if code is not None else None,
        protect=_truth(given["protect"]),
        freeze_max=seconds_of("--freeze-max", given["freeze_max"], FREEZE_MAX),
        asked=_asked(given, sizes),
        gpu_share=_truth(given["gpu_share"]),
        gpu_turn=seconds_of("--gpu-turn", given["gpu_turn"], GPU_TURN),
        allow_twin=_truth(given["allow_twin"]),
    )


def _read(given: Resolved, name: str, parse: Callable[[str], Any]) -> Any:
    """The value, parsed; an error names the flag, or the file and its line."""
    if given[name] is None:
        return None
    try:
        return parse(str(given[name]))
    except OomproofError as error:
        raise OomproofError(f"{given.origin(name)}: {error.message}", error.cure, error.status) from error


def _asked(given: Resolved, sizes: dict[str, int | None]) -> Asked:
    gpu_need = _read(given, "gpu_need", parse_gpu_need) or (None, None)
    for name, size in (("need", sizes["need"]), ("gpu_need", gpu_need[0])):
        if size == 0:
            raise OomproofError(
                f"{given.origin(name)}: a need of nothing reserves nothing",
                "leave it out, or give a size",
                USAGE,
            )
    return Asked(
        need=sizes["need"],
        gpu_need=gpu_need[0],
        gpu=gpu_need[1],
        priority=_read(given, "priority", _priority) or 0,
        wait=not _truth(given["no_wait"]),
        wait_max=_read(given, "wait_max", parse_duration),
        not_before=_read(given, "not_before", clock_time),
        margin=sizes["margin"],
        limit=sizes["limit"],
        ledger=str(given["ledger"]) if given["ledger"] else None,
    )


def _priority(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 1000
    if not -100 <= number <= 100:
        raise OomproofError(f"{text!r} is no priority", "give a whole number from -100 to 100", USAGE)
    return number


def clock_time(text: str, now: float | None = None) -> float:
    """Wall seconds of ``22:00`` (the next one) or ``2030-01-31T06:00``."""
    now = time.time() if now is None else now
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text.strip())
    if match and int(match[1]) < 24 and int(match[2]) < 60:
        today = time.localtime(now)
        for day in (0, 1):  # mktime knows when a day has 23 hours
            wanted = (*today[:2], today[2] + day, int(match[1]), int(match[2]), 0, 0, 0, -1)
            if (seconds := time.mktime(wanted)) >= now:
                return seconds
    with contextlib.suppress(ValueError):
        from datetime import datetime

        return datetime.fromisoformat(text.strip()).timestamp()
    raise OomproofError(f"cannot read {text!r} as a time of day", "write 22:00 or 2030-01-31T06:00", USAGE)


def gpu_is_here() -> bool:
    from oomproof.machine.nvidia import driver_present

    return driver_present() or os.path.exists("/dev/kfd")


def seconds_of(flag: str, value: Any, default: float) -> float:
    if value is None:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise OomproofError(f"{flag} {value} is no time", f"give seconds, such as {flag} 60", USAGE)
    return seconds


def _truth(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")


def signal_of(value: Any) -> int | None:
    if value is None:
        return None
    name = str(value).upper().removeprefix("SIG")
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name}", None)
    if not isinstance(number, int) or not 0 < number < 65 or number in (signal.SIGKILL, signal.SIGSTOP):
        raise OomproofError(
            f"--stop-signal {value}: no signal a job can answer", "name one: --stop-signal USR1", USAGE
        )
    return int(number)


def _check_command(name: str) -> None:
    """Told before anything is made: the same statuses as a shell gives."""
    folders = [""] if "/" in name else os.get_exec_path()
    found = [path for folder in folders if os.path.exists(path := os.path.join(folder, name))]
    if any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in found):
        return
    if not found:
        raise OomproofError(f"{name}: command not found", "check the spelling and PATH", NOT_FOUND)
    if os.path.isdir(found[0]):
        raise OomproofError(f"{name} is a folder", "name the program inside it", CANNOT_EXECUTE)
    cure = f"oomproof run -- python {name}" if name.endswith(".py") else f"chmod +x {found[0]}"
    raise OomproofError(f"{name}: not executable", cure, CANNOT_EXECUTE)


def _check_stop_file(path: Path | None) -> None:
    """One left from an earlier run would stop this one at its first step. Ours is removed; another's is not."""
    if path is None or not path.exists():
        return
    try:
        ours = path.read_bytes().startswith(STOP_TEXT.encode())
    except OSError:
        ours = False
    if not ours:
        raise OomproofError(
            f"--stop-file {path} is already there: the job would stop at once", f"rm {path}", USAGE
        )
    path.unlink()


class _Enough(BaseException):
    """A second signal after the job's end: the user does not want to read the verdict."""


class _OneSignal:
    """After the job's end signals are heard, not obeyed: the second one only cuts the verdict short."""

    _NUMBERS = (*FORWARDED, signal.SIGHUP)

    def __init__(self) -> None:
        self._heard = 0
        for number in self._NUMBERS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        self._heard += 1
        if self._heard == 2:
            raise _Enough

    def close(self) -> None:
        """To the end of the process. Ignored, for the interpreter gives a handler of ours up before it has ended."""
        self._heard = 2
        for number in self._NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def _finish(outcome: Outcome, report: Path | None, quiet: bool) -> int:
    """The verdict, and the status the shell sees."""
    conclusion: Conclusion | None = None
    try:
        signals = _OneSignal()
        try:  # also around the imports: there may be no descriptor left for them
            from oomproof.reports import saving
            from oomproof.reports.after import conclude
            from oomproof.reports.verdict import fitted

            conclusion = conclude(outcome.run)
            if report is not None:
                saving.save(report, json.dumps(conclusion.as_json, indent=1).encode(), force=True)
            if not quiet:
                if outcome.trouble:
                    _tell(f"oomproof: the recording is not whole: {outcome.trouble}")
                _tell(fitted(conclusion.text, sys.stderr))
        except (
            Exception
        ) as error:  # whatever is wrong with our verdict, the job's own status must get through
            _tell(f"oomproof: no verdict ({type(error).__name__}: {error})")
        finally:
            signals.close()
    except _Enough:
        pass
    return exit_status(outcome.run, conclusion, outcome.exit)


def _detach(order: Order, report: Path | None) -> int:
    """The front goes into the background with the job; this process tells how to follow, and ends."""

    def work(said: Said) -> int:
        def started(run: runs.Run, _: Order, sentence: str, told: list[str]) -> None:
            said(run.id, "\noomproof: ".join([f"running in the background: {sentence}", *told]))

        def waiting(run: runs.Run, sentence: str) -> None:
            said(run.id, f"waiting in the background: {sentence}")

        return _finish(_supervise(order, started, waiting), report, quiet=True)

    return into_the_background(work)
