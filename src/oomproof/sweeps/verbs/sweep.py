"""Runs a sweep on this machine without dying of memory: trials that cannot fit are skipped or made smaller before they cost
anything, a death teaches the search, and after a kill or a reboot it continues without repeating or losing a trial.

Each trial is an `oomproof run` of its own. Values come from --param or from a sweep file of Weights & Biases; --method bayes is
Optuna's (pip install 'oomproof[sweep]'), grid and random need nothing. The metric is read from what the script prints (loss=0.5, JSON, the Trainer's
dictionaries, Lightning's table), from oomproof.report_metric(loss=0.5), or from the file OOMPROOF_METRIC_FILE names.

  oomproof sweep --param lr=1e-5..1e-3:log --param batch=16,32,64 \\
      --trials 20 --metric loss -- \\
      python train.py --lr {lr} --batch-size {batch}
  oomproof sweep --param batch=64,128 --limit 8G -- \\
      python train.py --batch-size {batch} --accum {accum}
  oomproof sweep sweep.yaml --parallel 4              a file of wandb's: program, method, metric, parameters
  oomproof sweep resume [NAME]                        after a kill, a reboot, Ctrl-C; with --trials 40 for more
  oomproof sweep resume --retry-failed                also what failed or was skipped
  oomproof sweep status [NAME]                        done, running, waiting, skipped and why, the best, the time left
  oomproof sweep estimate [NAME]                      hours a trial, days in all, what fewer epochs would save
  oomproof sweep stop [NAME]                          in order; --finish lets running trials finish
  oomproof sweep list

With {accum} in the command a batch that does not fit is split, and the effective batch stays. {trial} is the trial's number,
for an output folder of its own. Ctrl-C starts nothing more and waits for what runs; again, it is stopped in order; a third
time it is left running, for `resume` to take over.

Exit status: 0 when it came to its end and a trial is done; 1 when none is, or it was given up (its reason is told);
2 usage; 130 interrupted or stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time

from oomproof.cli.command_parser import refuse
from oomproof.cli.run_command import check_command
from oomproof.errors import INTERRUPTED, USAGE, OomproofError, did_you_mean
from oomproof.leaf.command_lines import short_name
from oomproof.printable import tell_line, terminal_columns
from oomproof.recording.secrets import mask_argv
from oomproof.recording.state_files import write_json
from oomproof.sweeps import sweep_folder
from oomproof.sweeps.optuna_engine import check_installed
from oomproof.sweeps.screens import sweep_screen
from oomproof.sweeps.sweep_folder import ACTIONS, Sweep, SweepOrder, order_of
from oomproof.sweeps.sweep_loop import Interrupts, SweepLoop
from oomproof.sweeps.sweep_trials import QUEUED, SETTINGS, SweepLog, take
from oomproof.sweeps.verbs.sweep_flags import CHANGEABLE, NEW, add_flags, changed_settings, new_sweep
from oomproof.units import parse_duration

_ESTIMATE = "5m"
_TICK = 0.2


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof sweep [FILE | ACTION] [options] -- CMD ..."
    parser.set_defaults(command=[])  # what stands behind --
    parser.add_argument(
        "words",
        nargs="*",
        metavar="FILE|ACTION",
        help="a sweep file; or resume, status, estimate, stop, list, with the sweep's name (default: the newest)",
    )
    add_flags(parser)
    actions = parser.add_argument_group("actions")
    actions.add_argument(
        "--retry-failed",
        action="store_true",
        help="with resume: run trials again that failed or were skipped",
    )
    actions.add_argument("--finish", action="store_true", help="with stop: let running trials finish")
    actions.add_argument(
        "--max-time",
        metavar="TIME",
        help=f"with estimate of a new sweep: run its first trial for so long (default {_ESTIMATE})",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON")


def run(arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words
    action = words[0] if words and words[0] in ACTIONS else "new"
    rest = words[1:] if action != "new" else words
    if len(rest) > 1:
        raise OomproofError(
            f"unknown argument {rest[1]!r}", "one name, or one file; -- before the command", USAGE
        )
    name = rest[0] if rest else None
    _refuse(arguments, action)
    if action == "new":
        return _new(arguments, name)
    if action == "estimate" and (
        arguments.command or arguments.param or (name or "").endswith((".yaml", ".yml", ".json"))
    ):
        return _new(arguments, name, parse_duration(arguments.max_time or _ESTIMATE))
    verbs = {"resume": _resume, "status": _status, "estimate": _estimate, "stop": _stop, "list": _list}
    return verbs[action](arguments, name)


def _refuse(arguments: argparse.Namespace, action: str) -> None:
    """Flags that would do nothing here."""
    if action != "resume":
        refuse(arguments, ("retry_failed",), "belongs to resume", "oomproof sweep resume --retry-failed")
    if action != "stop":
        refuse(arguments, ("finish",), "belongs to stop", "oomproof sweep stop --finish")
    if action != "estimate":
        refuse(
            arguments, ("max_time",), "belongs to estimate", "oomproof sweep estimate --max-time 5m -- CMD"
        )
    if action in ("resume", "status", "stop", "list"):
        refuse(arguments, NEW, "belongs to a new sweep", f"oomproof sweep {action}")
    if action in ("status", "stop", "list"):
        refuse(arguments, (*CHANGEABLE, "command"), f"does nothing with {action}", f"oomproof sweep {action}")


def _new(arguments: argparse.Namespace, file: str | None, first_only: float | None = None) -> int:
    if file is not None and not os.path.exists(file):
        near = did_you_mean(file, ACTIONS)
        raise OomproofError(
            f"{file}: no such file, and no action{near}", f"known: {', '.join(ACTIONS)}", USAGE
        )
    made = new_sweep(arguments, file, arguments.command)
    check_command(made.first)
    check_installed(made.order.space)
    info = {**made.order.as_json(), "secret": made.secret}
    if made.secret:
        info["command"] = mask_argv(made.order.words)
    sweep = sweep_folder.create(made.name, info)
    lock = sweep.take()
    for note in made.notes:
        tell_line(note)
    total = made.order.total
    tell_line(
        f"sweep {made.name}: {made.order.space.method} search, {_trials(total)} of "
        f"{short_name(list(made.order.words))}; after a kill or a reboot: oomproof sweep resume {made.name}"
    )
    if made.order.space.metric is None:
        tell_line("no --metric: every trial runs, none of them is called the best")
    return _drive(sweep, SweepLog(), arguments.json, lock, made.order.words, first_only)


def _trials(count: int | None) -> str:
    return "trials" if count is None else "one trial" if count == 1 else f"{count} trials"


def _resume(arguments: argparse.Namespace, name: str | None) -> int:
    sweep = sweep_folder.find(name)
    if host := sweep.elsewhere():
        raise OomproofError(
            f"sweep {sweep.name} was started on {host}: its trials cannot be seen from here",
            f"ssh {host}",
            USAGE,
        )
    info = sweep.info()
    if not os.path.isdir(str(info.get("cwd"))):
        raise OomproofError(
            f"its folder {info.get('cwd')} is gone", "make it again, with the script in it", USAGE
        )
    os.chdir(str(info["cwd"]))  # scripts and settings files are looked for there
    words = _secret_words(sweep, info, arguments.command)
    settings = changed_settings(arguments)
    lock = sweep.take()
    sweep.mend()
    log = sweep.log()
    order_of(sweep, log)
    if settings:
        take(log, sweep.record(SETTINGS, settings=settings))
    if arguments.retry_failed:
        for trial in log.by_state("failed", "out-of-memory", "skipped", "stopped"):
            take(log, sweep.record(QUEUED, trial=trial.number, why="--retry-failed"))
    tell_line(f"sweep {sweep.name}: {sweep_screen.counts_line(order_of(sweep, log), log, time.time())}")
    return _drive(sweep, log, arguments.json, lock, words)


def _secret_words(sweep: Sweep, info: dict[str, object], command: list[str]) -> tuple[str, ...] | None:
    """A command with a secret in it was stored masked, and is given again."""
    stored = info.get("command")
    if not info.get("secret"):
        if command:
            raise OomproofError(
                "the command of a sweep stays as it is", "leave it out, or start a new sweep", USAGE
            )
        return None
    if not command:
        raise OomproofError(
            "the command holds a secret and was not stored",
            f"give it again: oomproof sweep resume {sweep.name} -- CMD ...",
            USAGE,
        )
    if mask_argv(command) != stored:
        raise OomproofError(
            "that is not the command of this sweep", "give the same one, or start a new sweep", USAGE
        )
    return tuple(command)


def _drive(
    sweep: Sweep,
    log: SweepLog,
    as_json: bool,
    lock: int,
    words: tuple[str, ...] | None,
    first_only: float | None = None,
) -> int:
    interrupts = Interrupts()
    try:
        loop = SweepLoop(sweep, log, tell_line, interrupts, words)
        whole = loop.run(first_only)
    finally:
        with contextlib.suppress(OSError):
            os.close(lock)
    if first_only is not None and not interrupts.level:
        return _print_estimate(sweep, loop.order, log, as_json)
    if loop.reason and not whole and loop.reason != "stopped":
        tell_line(f"given up: {loop.reason}")
        tell_line(f"when that is corrected: oomproof sweep resume {sweep.name} --retry-failed")
    elif loop.reason and whole:
        tell_line(loop.reason)
    _print_status(sweep, loop.order, log, as_json)
    if interrupts.number:
        return 128 + (interrupts.number if interrupts.number != signal.SIGHUP else signal.SIGINT)
    if not whole:
        return INTERRUPTED if loop.reason in ("", "stopped") else 1
    return 0 if log.by_state("done") else 1


def _print_status(sweep: Sweep, order: SweepOrder, log: SweepLog, as_json: bool) -> None:
    driven = sweep.is_driven()
    if as_json:
        print(json.dumps(sweep_screen.as_json(sweep.name, order, log, driven, time.time()), indent=1))
        return
    by = sweep.driver() if driven else ""
    print(sweep_screen.as_text(sweep.name, order, log, by, terminal_columns(120), time.time()), flush=True)


def _status(arguments: argparse.Namespace, name: str | None) -> int:
    sweep = sweep_folder.find(name)
    log = sweep.log()
    _print_status(sweep, order_of(sweep, log), log, arguments.json)
    return 0


def _list(arguments: argparse.Namespace, name: str | None) -> int:
    if name is not None:
        raise OomproofError("list takes no name", f"oomproof sweep status {name}", USAGE)
    rows = []
    for sweep in sweep_folder.list_sweeps():
        with contextlib.suppress(OomproofError):  # a damaged one hides no other
            log = sweep.log()
            rows.append((sweep.name, order_of(sweep, log), log, sweep.is_driven()))
    if arguments.json:
        listed = [sweep_screen.as_json(*row, time.time()) for row in rows]
        print(json.dumps({"schema": 1, "sweeps": listed}, indent=1))
    elif rows:
        print(sweep_screen.list_text(rows, terminal_columns(140), time.time()))
    else:
        print("no sweeps yet")
    return 0


def _estimate(arguments: argparse.Namespace, name: str | None) -> int:
    refuse(
        arguments,
        (*NEW, *CHANGEABLE),
        "belongs to a new sweep",
        "oomproof sweep estimate --param ... -- CMD ...",
    )
    refuse(arguments, ("max_time",), "belongs to the estimate of a new sweep", "oomproof sweep estimate NAME")
    sweep = sweep_folder.find(name)
    log = sweep.log()
    return _print_estimate(sweep, order_of(sweep, log), log, arguments.json)


def _print_estimate(sweep: Sweep, order: SweepOrder, log: SweepLog, as_json: bool) -> int:
    from oomproof.sweeps.time_estimate import measured_estimate, nothing_told

    told = measured_estimate(order, log, str(sweep.info().get("cwd") or ""), time.time())
    if told is None:
        raise OomproofError(
            *nothing_told(sweep.name, order.space, order.words, log, order.total, time.time()), 1
        )
    if as_json:
        print(json.dumps({"schema": 1, "sweep": sweep.name, **told.as_json()}, indent=1))
    else:
        print(sweep_screen.estimate_text(sweep.name, told, terminal_columns(100)))
    return 0


def _stop(arguments: argparse.Namespace, name: str | None) -> int:
    """Whoever drives it does it; where nobody does, we take its place for that."""
    sweep = sweep_folder.find(name)
    running = len(sweep.log().running)
    if not sweep.is_driven():
        if not running:
            tell_line(f"sweep {sweep.name} does not run")
            return 0
        if arguments.finish:
            tell_line(
                f"no further trials of {sweep.name} are started; {running} running ones continue to their own end"
            )
            return 0
        return _stop_undriven(sweep)
    write_json(sweep.stop_file, "finish" if arguments.finish else "now")
    tell_line(f"asked {sweep.driver()} to {'finish' if arguments.finish else 'stop'}; waiting for it")
    while sweep.is_driven():
        time.sleep(_TICK)
    tell_line(f"sweep {sweep.name} has stopped; it continues with: oomproof sweep resume {sweep.name}")
    return 0


def _stop_undriven(sweep: Sweep) -> int:
    from oomproof.sweeps.trial_process import TrialProcess

    lock = sweep.take()
    sweep.mend()
    log = sweep.log()
    for trial in log.running:
        assert trial.last is not None
        process = TrialProcess(sweep, trial.number, trial.last.number, trial.last.name)
        process.look()
        sweep.record("stopping", trial=trial.number)
        if (stopping := process.stop()) is not None:
            stopping.wait()
    os.close(lock)
    tell_line(f"sweep {sweep.name} has stopped; it continues with: oomproof sweep resume {sweep.name}")
    return 0
