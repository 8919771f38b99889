"""`oomproof run`: from what was typed to the exit status."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oomproof.alerts.alert_channel import Alerts
from oomproof.cli.background import Announce, run_in_background
from oomproof.cli.run_admission import (
    OnWaiting,
    StartupMessage,
    check_stop_file,
    look_for_twins,
    start_run,
    tell,
)
from oomproof.cli.run_end import GAVE_UP, finish, refusal_in
from oomproof.errors import CANNOT_EXECUTE, NOT_FOUND, USAGE, OomproofError
from oomproof.recording import run_folders
from oomproof.recording.state_files import runtime_folder
from oomproof.records import replace
from oomproof.runner.run_flags import RunSettings, typed
from oomproof.runner.supervise import Order, asked_of
from oomproof.runner.waiting_run import Cancelled

if TYPE_CHECKING:  # what a start does not need
    import argparse

    from oomproof.plans.knobs import Template


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


def run_command(argv: list[str], chosen: RunSettings, arguments: argparse.Namespace) -> int:
    order = _order(argv, chosen, arguments)
    _check_spill(order)
    check_command(order.argv)
    check_stop_file(order.chosen.stop_file)
    report = Path(arguments.report).absolute() if arguments.report else None
    if report is not None and not report.parent.is_dir():
        raise OomproofError(f"--report: no such folder: {report.parent}", f"mkdir -p {report.parent}", USAGE)
    template = None
    if order.chosen.retry:
        from oomproof.cli.run_retries import prepare

        template = prepare(order, asked=arguments.retry is not None)
    with refusal_in(report):
        look_for_twins(order)
    if arguments.detach:
        with contextlib.suppress(OomproofError):
            runtime_folder()  # what is odd about it is told while there is a terminal
        return _detach(order, template, report)
    try:
        with refusal_in(report):
            return _to_its_end(order, template, _startup_message, lambda *_: None, report, order.verbosity)
    except Cancelled as cancelled:
        tell(f"oomproof: {GAVE_UP}")
        return 128 + cancelled.number


def _to_its_end(
    order: Order,
    template: Template | None,
    startup_message: StartupMessage,
    on_waiting: OnWaiting,
    report: Path | None,
    verbosity: int | None,
) -> int:
    """The status the shell sees. Without a verbosity nobody is there to be told."""
    if template is None:
        return finish(start_run(order, startup_message, on_waiting), report, verbosity)
    from oomproof.cli.run_retries import Retries

    return Retries(order, template, verbosity).run_all(startup_message, on_waiting, report)


def _startup_message(
    run: run_folders.Run, order: Order, sentence: str, told: list[str], tell: Callable[[str], None]
) -> None:
    if sentence:
        tell(f"oomproof: run {run.name}: {sentence}")
    for line in told:
        tell(f"oomproof: {line}")
    messenger = _MESSENGERS.get(os.path.basename(order.argv[0]))
    if messenger and order.verbosity >= 0 and order.argv[1:2] != ["--version"]:
        tell(
            f"oomproof: {order.argv[0]} only passes the work on: {messenger}. Its memory is not this run's; "
            "put oomproof inside, before the command that does the work"
        )


def run_alone(argv: list[str], arguments: argparse.Namespace) -> int:
    """The panic switch: the command as if oomproof were not there. No setting is read, so none can be in the way."""
    if arguments.retry is not None:  # its placeholders have values all the same
        from oomproof.cli.run_retries import filled_command

        argv = filled_command(argv, arguments.knob or [])
    check_command(argv)
    if not arguments.quiet:
        tell("oomproof: OOMPROOF_DISABLE is set: not guarded, not limited, not recorded")
    if not arguments.detach:
        os.execvp(argv[0], argv)
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    print(os.posix_spawnp(argv[0], argv, os.environ, file_actions=null, setsid=True))
    return 0


def _order(argv: list[str], chosen: RunSettings, arguments: argparse.Namespace) -> Order:
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


def check_command(argv: list[str]) -> None:
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


def _detach(order: Order, template: Template | None, report: Path | None) -> int:
    """The front goes into the background with the job; this process tells how to follow, and ends."""

    def work(said: Announce) -> int:
        def started(run: run_folders.Run, _: Order, sentence: str, told: list[str], __: object) -> None:
            state = f"running in the background: {sentence}" if order.verbosity >= 0 else sentence
            said(run.id, "\noomproof: ".join(filter(None, [state, *told])))

        def waiting(run: run_folders.Run, sentence: str) -> None:
            said(run.id, f"waiting in the background: {sentence}")

        with refusal_in(report):
            return _to_its_end(order, template, started, waiting, report, None)

    return run_in_background(work, hints=order.verbosity >= 0)
