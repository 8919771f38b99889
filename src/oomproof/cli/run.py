"""Runs any command under watch: recorded, kept inside its memory limit, explained when it dies.

The command's arguments, its terminal and its exit status stay as they are. Without --limit the kernel keeps only the
machine's floor free, so a job that used to run still runs. When memory runs short the job is warned about, paused while
another run can finish and free memory, else asked to save and stop (the stop file, --stop-signal), then ended, before the
kernel picks a victim.

  oomproof run -- python train.py --epochs 3
  oomproof run --limit 20G --name big -- python train.py
  oomproof run --stop-signal USR1 --grace 60 -- python train.py
  oomproof run --detach -- python train.py        then: oomproof logs -f, oomproof wait
  oomproof run --protect -- python train.py       newer runs give way first
  oomproof run --need 19G -- python train.py      starts when 19 GiB are free and reserved by nobody
  oomproof run --need auto -- python train.py     sizes it first, on a virtual GPU, and reserves that
  oomproof run --spill 8G -- python train.py      the one batch that does not fit the GPU runs slowly
  oomproof run --alert-desktop -- python train.py tells you when memory runs short, or it has died

Exit status: the job's own, 128+signal when it was killed; 2 usage, 125 our failure, 126/127 cannot execute/not found,
75 not now, for want of memory (--no-wait, --wait-max; also when the guard asked the job to stop and it exited with code 0)
or the same job runs already, 69 can never fit on this machine. With OOMPROOF_DISABLE=1 in the environment it is the command
alone: no guard, no limit, no recording.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.alerts.alert_channel import Alerts
from oomproof.cli.background import Announce, run_in_background
from oomproof.cli.exit_status import exit_status, tell_end
from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, NOT_NOW, USAGE, OomproofError
from oomproof.guard.guard_actions import STOP_TEXT
from oomproof.guard.host_view import HostView
from oomproof.leaf.command_lines import script_of
from oomproof.ledger.runtime_folder import runtime_folder
from oomproof.printable import printable
from oomproof.recording import run_folders, state_files
from oomproof.records import replace
from oomproof.runner.admission_request import Ticket, ask
from oomproof.runner.front import FORWARDED
from oomproof.runner.guard_settings import guard_settings
from oomproof.runner.run_flags import OUTPUT, SIZE_FIRST, add_flags, of_run, truth, typed
from oomproof.runner.supervise import (
    Order,
    Outcome,
    asked_of,
    describe_run,
    supervise,
    working_folder,
)
from oomproof.runner.waiting_run import Cancelled

if TYPE_CHECKING:  # what a start does not need
    from oomproof.diagnosis.conclusion import Conclusion
    from oomproof.runner.gpu_share import GpuShare


# Programs that hand the work to a daemon which is no child of theirs: what we watch is then only the messenger.
_MESSENGERS = {
    "docker": "the docker daemon runs the container",
    "podman-remote": "the podman service runs the container",
    "nerdctl": "containerd runs the container",
    "tmux": "the tmux server runs the command",
    "screen": "the screen daemon runs the command",
    "ollama": "the ollama server has the model in its memory",
    "sbatch": "Slurm runs the job elsewhere",
    "srun": "Slurm's daemon runs the job",
    "systemd-run": "systemd runs the command",
    "at": "the at daemon runs the command",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof run [options] -- CMD ..."
    output = add_flags(parser)[OUTPUT]
    output.add_argument(
        "--detach",
        action="store_true",
        help="return at once; follow with `oomproof logs -f`, `oomproof wait`",
    )
    output.add_argument("-v", "--verbose", action="store_true", help="say more at the start and at the end")
    output.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="say nothing unless oomproof acted or failed, or the job died of memory",
    )
    output.add_argument("--report", metavar="FILE", help="write the verdict there as JSON (schema 1)")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(arguments: argparse.Namespace) -> int:
    if truth(os.environ.get("OOMPROOF_DISABLE", "")):
        return _run_alone(_command(arguments), arguments)
    order = _order(arguments)
    _check_spill(order)
    _check_command(order.argv)
    _check_stop_file(order.chosen.stop_file)
    report = Path(arguments.report).absolute() if arguments.report else None
    if report is not None and not report.parent.is_dir():
        raise OomproofError(f"--report: no such folder: {report.parent}", f"mkdir -p {report.parent}", USAGE)
    _look_for_twins(order)
    if arguments.detach:
        with contextlib.suppress(OomproofError):
            runtime_folder()  # what is odd about it is told while there is a terminal
        return _detach(order, report)
    try:
        return _finish(_supervise(order, _startup_message, lambda *_: None), report, order.verbosity)
    except Cancelled as cancelled:
        _tell("oomproof: gave up waiting; nothing was started")
        return 128 + cancelled.number


def _supervise(
    order: Order, startup_message: Any, on_waiting: Callable[[run_folders.Run, str], None]
) -> Outcome:
    run = run_folders.new_run()
    # from now on, and as long as this process lives: between waiting and running nobody may take it for a failed start
    with contextlib.suppress(OSError):  # a full disk: what is written next says it in words
        state_files.take_lock(run.guard_lock)
    try:
        ticket = _admit(run, order, lambda text: on_waiting(run, text))
        share = None
        try:
            if ticket.waited:
                _look_for_twins(order)  # it may have been started meanwhile
            if order.chosen.gpu_share:
                share = _wait_for_gpu_turn(run, order, lambda text: on_waiting(run, text))
            return supervise(
                run,
                order,
                lambda sentence, tell: startup_message(
                    run, order, sentence, ticket.told + (ticket.details if order.verbosity > 0 else []), tell
                ),
                ticket,
                share,
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


def _admit(run: run_folders.Run, order: Order, on_waiting: Callable[[str], None]) -> Ticket:
    """Memory for the run, after a wait if need be; while it waits it can be listed and stopped."""

    def waiting(text: str) -> None:
        host = HostView()
        with contextlib.suppress(OomproofError):  # a full disk: it waits all the same
            settings = guard_settings(order.chosen, host)
            state_files.write_json(run.info_file, describe_run(run, order, settings))
        on_waiting(text)

    folder = working_folder()
    if order.chosen.need == SIZE_FIRST:
        _size_first(run, order, folder, waiting)
    if not order.chosen.allow_twin and script_of(order.argv, folder) is not None:
        from oomproof.machine.twins import identity

        order.asked.twin = identity(order.argv, folder, os.environ, gpu_is_here())
    asked = order.asked
    if order.chosen.gpu_share:
        sized = replace(asked.sized, gpu=None) if asked.sized is not None else None
        asked = replace(asked, gpu_need=None, gpu=None, sized=sized)
    return ask(run, order.argv, order.chosen.name, asked, folder, _tell, waiting)


def _size_first(run: run_folders.Run, order: Order, folder: str, on_waiting: Callable[[str], None]) -> None:
    """--need auto. Meanwhile the run is listed as waiting, and Ctrl-C or `oomproof stop` ends it."""
    from oomproof.machine import processes
    from oomproof.runner.waiting_run import ListedAsWaiting
    from oomproof.sizing import need_auto

    me = os.getpid()

    def say(text: str) -> None:
        if order.verbosity >= 0:
            _tell(f"oomproof: {text}")

    def begins(text: str) -> None:
        say(text)
        waiting.write([text])
        on_waiting(text)

    with ListedAsWaiting(run, None, (me, processes.start_time(me))) as waiting:
        sized = need_auto.find(order.argv, folder, order.asked.ledger, say, begins)
    order.asked.sized, order.predicted = sized.need, sized.predicted
    if order.chosen.gpu_share and sized.need is not None and order.asked.gpu_need is None:
        order.asked.gpu_need = sized.need.gpu


def _wait_for_gpu_turn(run: run_folders.Run, order: Order, on_waiting: Callable[[str], None]) -> GpuShare:
    """With --gpu-share: its place on the card, after a wait if need be."""
    from oomproof.runner.gpu_share import join

    def say(text: str) -> None:
        _tell(text)
        on_waiting(text.removeprefix("oomproof: "))

    return join(run.id, order.asked.gpu, order.asked.gpu_need, order.chosen.gpu_turn, say)


def _look_for_twins(order: Order) -> None:
    folder = working_folder()
    if order.chosen.allow_twin or script_of(order.argv, folder) is None:
        return
    from oomproof.machine import twins

    twin_jobs = twins.of(order.argv, folder, os.environ, os.getppid())
    if not twin_jobs:
        return
    closest = twin_jobs[0]
    alike = [twin for twin in twin_jobs if twin.likeness == closest.likeness]
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
    _tell_as_is(printable(text))


def _tell_as_is(text: str) -> None:
    """Straight to the descriptor: a full disk or a closed pipe behind it must cost neither job, guard nor status."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def _startup_message(
    run: run_folders.Run, order: Order, sentence: str, told: list[str], tell: Callable[[str], None]
) -> None:
    if sentence:
        tell(f"oomproof: run {run.name}: {sentence}")
    for line in told:
        tell(f"oomproof: {line}")
    messenger = _MESSENGERS.get(os.path.basename(order.argv[0]))
    if messenger and order.argv[1:2] != ["--version"]:
        tell(
            f"oomproof: {order.argv[0]} only passes the work on: {messenger}. Its memory is not this run's; "
            "put oomproof inside, before the command that does the work"
        )


def _command(arguments: argparse.Namespace) -> list[str]:
    argv: list[str] = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not argv:
        raise OomproofError("no command to run", "oomproof run -- python train.py", USAGE)
    return argv


def _run_alone(argv: list[str], arguments: argparse.Namespace) -> int:
    """The panic switch: the command as if oomproof were not there. No setting is read, so none can be in the way."""
    _check_command(argv)
    if not arguments.quiet:
        _tell("oomproof: OOMPROOF_DISABLE is set: not guarded, not limited, not recorded")
    if not arguments.detach:
        os.execvp(argv[0], argv)
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    print(os.posix_spawnp(argv[0], argv, os.environ, file_actions=null, setsid=True))
    return 0


def _order(arguments: argparse.Namespace) -> Order:
    argv = _command(arguments)
    chosen = of_run(vars(arguments))
    if arguments.quiet and arguments.verbose:
        raise OomproofError("--quiet and --verbose exclude each other", "give one of them", USAGE)
    return Order(
        argv,
        chosen,
        bool(arguments.detach),
        agent=not chosen.no_agent,
        asked=asked_of(chosen),
        typed=typed(vars(arguments)),
        verbosity=int(arguments.verbose) - int(arguments.quiet),
        alerts=Alerts(chosen.alert_settings()),
    )


def _check_spill(order: Order) -> None:
    """Told before anything is pinned; of a settings file, which speaks for many machines, it is left out where there is no card."""
    if order.chosen.spill is None:
        return
    from oomproof.machine.nvidia import driver_present

    if driver_present():
        return
    if "spill" in order.typed:
        raise OomproofError(
            "--spill needs an NVIDIA GPU: what does not fit the card goes to host memory, and there is no card here",
            "leave --spill out",
            USAGE,
        )
    order.chosen = replace(order.chosen, spill=None)
    order.asked.spill = 0


def gpu_is_here() -> bool:
    from oomproof.machine.nvidia import driver_present

    return driver_present() or os.path.exists("/dev/kfd")


def _check_command(argv: list[str]) -> None:
    """Told before anything is made: the same statuses as a shell gives."""
    name = argv[0]
    folders = [""] if "/" in name else os.get_exec_path()
    paths = [path for folder in folders if os.path.exists(path := os.path.join(folder, name))]
    if any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths):
        return
    if not paths:
        raise OomproofError(f"{name}: command not found", _meant(argv), NOT_FOUND)
    if os.path.isdir(paths[0]):
        raise OomproofError(f"{name} is a folder", "name the program inside it", CANNOT_EXECUTE)
    hint = _meant(argv) if name.endswith(".py") else f"chmod +x {paths[0]}"
    raise OomproofError(f"{name}: not executable", hint, CANNOT_EXECUTE)


def _meant(argv: list[str]) -> str:
    """How the command was probably meant: a script without its interpreter, a whole line in quotes, a file of this folder."""
    import shlex

    name, typed = argv[0], shlex.join(argv)
    if os.path.isfile(name):
        return f"oomproof run -- {f'python {typed}' if name.endswith('.py') else f'./{typed}'}"
    with contextlib.suppress(ValueError):  # a quote without its other half
        if len(words := shlex.split(name)) > 1:
            if re.search(r"[|&;<>$`]", name):
                return f"for a line of shell: oomproof run -- sh -c {typed}"
            return f"without the quotes: oomproof run -- {shlex.join([*words, *argv[1:]])}"
    return "check the spelling and PATH"


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
        self._signals = 0
        for number in self._NUMBERS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._signals += 1
        if self._signals == 2:
            raise _Enough

    def close(self) -> None:
        """To the end of the process. Ignored, for the interpreter gives a handler of ours up before it has ended."""
        self._signals = 2
        for number in self._NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def _finish(outcome: Outcome, report: Path | None, verbosity: int | None) -> int:
    """The verdict, and the status the shell sees. Without a verbosity nobody is there to be told."""
    conclusion: Conclusion | None = None
    try:
        signals = _OneSignal()
        try:  # also around the imports: there may be no descriptor left for them
            from oomproof.diagnosis.conclusion import conclude
            from oomproof.reports.verdict_text import at_end

            conclusion = conclude(outcome.run)
            if report is not None:
                from oomproof.reports import report_file

                report_file.save(report, json.dumps(conclusion.as_json, indent=1).encode(), force=True)
            if verbosity is not None:
                if outcome.trouble:
                    _tell(f"oomproof: the recording is not whole: {outcome.trouble}")
                if not outcome.run.exit() and outcome.exit:
                    _tell(
                        f"oomproof: {_ended(outcome.exit)}; nothing of it could be recorded, so there is no verdict"
                    )
                elif text := at_end(conclusion.verdict, sys.stderr, verbosity):
                    _tell_as_is(text)
        except (
            Exception
        ) as error:  # whatever is wrong with our verdict, the job's own status must get through
            _tell(f"oomproof: no verdict ({type(error).__name__}: {error})")
        finally:
            signals.close()
    except _Enough:
        pass
    status = exit_status(outcome.run, conclusion, outcome.exit)
    outcome.alerts.tell = (lambda _: None) if verbosity is None else lambda text: _tell(f"oomproof: {text}")
    tell_end(outcome.alerts, outcome.run, conclusion, status)
    return status


def _ended(record: dict[str, Any]) -> str:
    if record.get("signal") is not None:
        return f"the job was ended by {signal.Signals(record['signal']).name}"
    return f"the job exited with code {record.get('code')}"


def _detach(order: Order, report: Path | None) -> int:
    """The front goes into the background with the job; this process tells how to follow, and ends."""

    def work(said: Announce) -> int:
        def started(run: run_folders.Run, _: Order, sentence: str, told: list[str], __: object) -> None:
            said(run.id, "\noomproof: ".join([f"running in the background: {sentence}", *told]))

        def waiting(run: run_folders.Run, sentence: str) -> None:
            said(run.id, f"waiting in the background: {sentence}")

        return _finish(_supervise(order, started, waiting), report, None)

    return run_in_background(work)
