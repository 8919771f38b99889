"""Runs any command under watch: recorded, kept inside its memory limit, explained when it dies.

The command's arguments, its terminal and its exit status stay as they are. Without --limit the kernel keeps only the
machine's floor free, so a job that used to run still runs. When memory runs short the job is warned about, asked to
save and stop (the stop file, --stop-signal), then ended, before the kernel picks a victim.

  oomproof run -- python train.py --epochs 3
  oomproof run --limit 20G --name big -- python train.py
  oomproof run --stop-signal USR1 --grace 60 -- python train.py
  oomproof run --detach -- python train.py        then: oomproof logs -f, oomproof wait

Exit status: the job's own, 128+signal when it was killed; 2 usage, 125 our failure, 126/127 cannot execute/not found.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from oomproof.cli import run_gpu
from oomproof.cli.status import exit_status
from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, OUR_FAILURE, USAGE, OomproofError
from oomproof.guard.actions import STOP_TEXT
from oomproof.recording import runs
from oomproof.runner.sampler import Alerts
from oomproof.runner.supervise import Order, Outcome, supervise
from oomproof.settings import resolve
from oomproof.units import MIB, format_size, parse_size

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

_SETTINGS = {
    "limit", "name", "margin", "floor", "grace", "alert_above", "alert_gpu_above", "alert_swap_growth",
    "stop_file", "stop_signal", "watch_only", "oom_exit_code", "no_agent",
} | run_gpu.SETTINGS  # fmt: skip


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof run [options] -- CMD ..."
    add = parser.add_argument
    add(
        "--limit",
        metavar="SIZE",
        help="the job may hold this much, such as 20G (default: all but the machine's floor)",
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
    if arguments.detach:
        return _detach(order, report)
    return _finish(_supervise(order, _hello), report, quiet=False)


def _supervise(order: Order, hello: Any) -> Outcome:
    run = runs.new_run()
    try:
        return supervise(run, order, lambda sentence: hello(run, order, sentence))
    except OomproofError:
        from shutil import rmtree

        rmtree(run.folder, ignore_errors=True)  # nothing was run: leave no trace that looks like a run
        raise


def _tell(text: str) -> None:
    """Straight to the descriptor: a full disk or a closed pipe behind it must cost neither job, guard nor status."""
    with contextlib.suppress(OSError):
        os.write(2, (text + "\n").encode(errors="backslashreplace"))


def _hello(run: runs.Run, order: Order, sentence: str) -> None:
    _tell(f"oomproof: run {run.id}: {sentence}")
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
    given = resolve(vars(arguments), _SETTINGS)
    sizes = {
        name: parse_size(str(given[name])) if given[name] is not None else None
        for name in ("limit", "margin", "floor", "alert_above", "alert_gpu_above")
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
        grace=_seconds(given["grace"]),
        alerts=Alerts(sizes["alert_above"], sizes["alert_gpu_above"], _truth(given["alert_swap_growth"])),
        stop_file=Path(given["stop_file"]).absolute() if given["stop_file"] else None,
        stop_signal=_signal(given["stop_signal"]),
        watch_only=_truth(given["watch_only"]),
        agent=not _truth(given["no_agent"]),
        agent_settings=run_gpu.agent_settings(given, with_agent=not _truth(given["no_agent"])),
        detached=bool(arguments.detach),
        oom_exit_code=int(code) if code is not None else None,
    )


def _seconds(value: Any) -> float:
    if value is None:
        return 30.0
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise OomproofError(f"--grace {value} is no time", "give seconds, such as --grace 60", USAGE)
    return seconds


def _truth(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")


def _signal(value: Any) -> int | None:
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


def _finish(outcome: Outcome, report: Path | None, quiet: bool) -> int:
    """The verdict, and the status the shell sees."""
    from oomproof.reports.after import Conclusion, conclude

    conclusion: Conclusion | None = None
    try:
        conclusion = conclude(outcome.run)
        if report is not None:
            runs.write_json(report, conclusion.as_json)
        if not quiet:
            if outcome.trouble:
                _tell(f"oomproof: the recording is not whole: {outcome.trouble}")
            _tell(conclusion.text)
    except Exception as error:  # whatever is wrong with our verdict, the job's own status must get through
        _tell(f"oomproof: no verdict ({type(error).__name__}: {error})")
    return exit_status(outcome.run, conclusion, outcome.exit)


def _detach(order: Order, report: Path | None) -> int:
    """The front goes into the background with the job; this process tells how to follow, and ends."""
    read_end, write_end = os.pipe()
    first = os.fork()
    if first:
        os.close(write_end)
        os.waitpid(first, 0)
        with os.fdopen(read_end) as answer:
            text = answer.read()
        kind, _, rest = text.partition("\n")
        if kind == "ok":
            run_id, _, sentence = rest.partition("\n")
            print(run_id)
            print(
                f"oomproof: running in the background: {sentence}\n"
                f"  follow:  oomproof logs -f {run_id}\n  wait:    oomproof wait {run_id}\n"
                f"  stop:    oomproof stop {run_id}",
                file=sys.stderr,
            )
            return 0
        number, _, message = rest.partition("\n")
        raise OomproofError(message or "the run did not start", "", int(number or OUR_FAILURE))
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(read_end)
    status = 0
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        answer = os.fdopen(write_end, "w")

        def started(run: runs.Run, _: Order, sentence: str) -> None:
            answer.write(f"ok\n{run.id}\n{sentence}")
            answer.close()

        try:
            status = _finish(_supervise(order, started), report, quiet=True)
        except OomproofError as error:
            if not answer.closed:
                answer.write(f"error\n{error.status}\n{error}")
                answer.close()
    finally:
        os._exit(status)
