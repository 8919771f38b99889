"""Runs a job with one thing changed at a time, and says which of them its death by memory follows.

Each experiment is an `oomproof run` of its own, one after the other: the baseline (the first value of each factor), then one
factor changed at a time, then, where none of them turns the outcome, two at a time. A death counts by the verdict's cause;
what fails for another reason counts neither as dying nor as living.

  oomproof bisect --vary bs=32,8,4 --vary accum=16,1 -- \\
      python train.py --bs {bs} --accum {accum}
  oomproof bisect --limit 8G --max-time 10m --vary workers=8,0 -- \\
      python train.py --workers {workers}
  oomproof bisect --vary bs=32,8 --env OMP_NUM_THREADS=1 -- \\
      python train.py --bs {bs}
  oomproof bisect --vary fast=--fast, -- python train.py {fast}     with the switch, and without
  oomproof bisect --resume ...                                  the same again: what has ended is not run twice

{bs} in the command is replaced by the value; {{bs}} is {bs} as it stands. No shell reads it. Every other setting of `run`
comes from oomproof.toml or OOMPROOF_*.

Exit status: 0 when the death follows one of the factors, or some of them together; 1 when it follows none of them, or
nothing could be compared; 130 interrupted; that of `oomproof run` where an experiment could not be started.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Thread

from oomproof.alerts.receivers import OFF
from oomproof.diagnosis.conclusion import conclude_once
from oomproof.errors import INTERRUPTED, OUR_FAILURE, USAGE, OomproofError, did_you_mean
from oomproof.own_command import OWN_COMMAND
from oomproof.plans import knobs
from oomproof.plans.knobs import NAME
from oomproof.printable import tell_line, terminal_columns
from oomproof.recording.run_folders import Run, list_runs, newest_runs
from oomproof.reports.run_tables import summarize
from oomproof.runner.run_flags import limit, seconds
from oomproof.sweeps.experiments.experiment_conclusion import eliminate, settings
from oomproof.sweeps.experiments.experiment_plan import (
    FAILED,
    Experiment,
    Factor,
    Values,
    most_experiments,
    next_experiment,
    outcome_of,
)
from oomproof.sweeps.screens.experiment_table import as_json, as_markdown, as_text, end_of
from oomproof.units import parse_duration

_TICK = 0.1


def run_experiment(
    name: str,
    flags: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    max_time: float | None,
    tell: Callable[[str], None],
) -> tuple[Run, bool]:
    """(the run, whether it was ended because its time was over). Raises OomproofError when it did not start; on
    KeyboardInterrupt the job is ended in order first, and the exception raised again."""
    before = {run.id for run in newest_runs(100)}
    process = subprocess.Popen(
        # what a settings file says of retries would change what is being varied
        [*OWN_COMMAND, "run", "--name", name, "--retry", "0", *flags, "--", *command],
        env={**environment, OFF: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # it is in output.log
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us: we end it in order
    )
    tail: deque[bytes] = deque(maxlen=8)
    assert process.stderr is not None
    chunks = iter(partial(process.stderr.read1, 4096), b"")  # type: ignore[attr-defined]  # a progress bar has no lines
    reader = Thread(target=tail.extend, args=(chunks,), daemon=True)
    reader.start()
    run: Run | None = None
    timed_out = False
    try:
        while run is None and process.poll() is None:
            run = _new_run(name, before)
            time.sleep(_TICK)
        if run is not None:
            timed_out = _wait(process, run, max_time, tell)
    except KeyboardInterrupt:
        tell("ending the experiment in order; Ctrl-C again kills it")
        _end(process, run or _new_run(name, before))
        raise
    run = run or _new_run(name, before)
    if run is not None and run.keeper_lives():  # its front was killed: the next must not run beside it
        _stop(run)
    reader.join(5.0)
    if run is None or not run.started():
        text = b"".join(tail).decode(errors="replace").strip().removeprefix("oomproof: ")
        raise OomproofError(text or "an experiment did not start", "", process.returncode or OUR_FAILURE)
    return run, timed_out


def _new_run(name: str, before: set[str]) -> Run | None:
    return next(
        (run for run in newest_runs(100) if run.id not in before and run.info.get("name") == name), None
    )


def _wait(
    process: subprocess.Popen[bytes], run: Run, max_time: float | None, tell: Callable[[str], None]
) -> bool:
    """To its end, or to the end of its time, which begins with the job and not with the wait for memory."""
    waits = False
    deadline = None
    while process.poll() is None:
        if deadline is None and run.started():
            deadline = time.monotonic() + max_time if max_time is not None else float("inf")
        if not waits and (reasons := run.waits_for()):
            waits = True
            tell(f"waiting for memory: {'; '.join(reasons)}")
        if deadline is not None and time.monotonic() >= deadline:
            _end(process, run)
            return True
        time.sleep(_TICK)
    return False


def _end(process: subprocess.Popen[bytes], run: Run | None) -> None:
    """As `oomproof stop` does: asked, SIGTERM, killed. A Ctrl-C meanwhile goes straight to the kill."""
    try:
        if run is not None:
            _stop(run)
        if process.poll() is None and (run is None or not run.exit()):
            process.terminate()  # just starting, or waiting for memory
        process.wait()
    except KeyboardInterrupt:
        if run is not None:
            _stop(run, "--kill")
        process.wait()
        raise


def _stop(run: Run, *flags: str) -> None:
    with contextlib.suppress(OSError):
        subprocess.run(
            [*OWN_COMMAND, "stop", *flags, run.id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )


UNSET = "unset"
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


def factors_of(vary: Sequence[str], env: Sequence[str], command: Sequence[str]) -> list[Factor]:
    """Checked, also against the command. Raises OomproofError."""
    factors = [_factor(text, "--vary") for text in vary] + [_factor(text, "--env") for text in env]
    if not factors:
        raise OomproofError("nothing to vary", "add --vary bs=32,8 and put {bs} into the command", USAGE)
    names = [factor.name for factor in factors]
    for name in names:
        if names.count(name) > 1:
            raise OomproofError(f"{name} is given twice", f"give all its values at once: {name}=a,b,c", USAGE)
    _check_placeholders([factor.name for factor in factors if not factor.is_env], command)
    return factors


def _factor(text: str, flag: str) -> Factor:
    is_env = flag == "--env"
    example = "--env OMP_NUM_THREADS=1" if is_env else "--vary bs=32,8"
    name, equals, listed = text.partition("=")
    if not equals or not re.fullmatch(NAME, name):
        raise OomproofError(f"cannot read {flag} {text!r}", f"write NAME=VALUE,VALUE: {example}", USAGE)
    values = knobs.listed_values(listed)
    if is_env and len(values) == 1 and values != (UNSET,):
        values = (UNSET, *values)
    if len(values) == 1:
        raise OomproofError(
            f"{flag} {text} has one value: nothing is varied",
            f"add others: {name}={values[0]},VALUE; a value that stays belongs into the command",
            USAGE,
        )
    if len(set(values)) < len(values):
        raise OomproofError(f"{flag} {text} has a value twice", "give each value once", USAGE)
    return Factor(name, values, is_env)


def _check_placeholders(names: Sequence[str], command: Sequence[str]) -> None:
    used = knobs.placeholders(command)
    for name in used:
        if name not in names:
            near = did_you_mean(name, names)
            hint = f"add --vary {name}=VALUE,VALUE; for braces as they stand write {{{{{name}}}}}"
            raise OomproofError(f"nothing varies {{{name}}}{near}", hint, USAGE)
    for name in names:
        if name not in used:
            raise knobs.unused(name)


def filled(command: Sequence[str], factors: Sequence[Factor], values: Values) -> list[str]:
    known = {factor.name: value for factor, value in zip(factors, values, strict=True) if not factor.is_env}
    return knobs.filled(command, known)


def environment_of(factors: Sequence[Factor], values: Values, environment: dict[str, str]) -> dict[str, str]:
    changed = dict(environment)
    for factor, value in zip(factors, values, strict=True):
        if factor.is_env and value == UNSET:
            changed.pop(factor.name, None)
        elif factor.is_env:
            changed[factor.name] = value
    return changed


def run_name(factors: Sequence[Factor], values: Values, identity: Sequence[str]) -> str:
    """``bisect:bs=8,accum=16:k3f2``: what was tried, and four letters of all that makes it the same experiment."""
    shown = [
        f"{factor.name}={re.sub(r'[^A-Za-z0-9._+-]', '_', value)[-20:]}"
        for factor, value in zip(factors, values, strict=True)
    ]
    exact = "\0".join([*identity, *(factor.name for factor in factors), *values])
    digest = hashlib.sha256(exact.encode(errors="surrogateescape")).digest()
    return f"bisect:{','.join(shown)}:{''.join(_LETTERS[byte % 31] for byte in digest[:4])}"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.usage = "oomproof bisect [options] -- CMD ..."
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="a factor and its values, the baseline's first; {NAME} in the command is replaced (\\, is a comma)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="the same for an environment variable; one value alone is compared with unset",
    )
    parser.add_argument(
        "--limit", metavar="SIZE", help="of each experiment, such as 8G (default: as for run)"
    )
    parser.add_argument(
        "--max-time",
        metavar="TIME",
        help="end an experiment that lived this long, such as 10m (default: never)",
    )
    parser.add_argument(
        "--grace", metavar="SECONDS", help="time to save between asking and ending (default 30)"
    )
    parser.add_argument("--all", action="store_true", help="every combination of the values")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="take over experiments that have ended, instead of running them again",
    )
    parser.add_argument("--json", action="store_true", help="print schema 1 JSON")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a report")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command, after --"
    )


def run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise OomproofError(
            "no command to run", "oomproof bisect --vary bs=32,8 -- python train.py --bs {bs}", USAGE
        )
    if arguments.json and arguments.markdown:
        raise OomproofError("--json and --markdown exclude each other", "give one of them", USAGE)
    factors = factors_of(arguments.vary, arguments.env, command)
    series = _Series(arguments, factors, command)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        series.run()
    except (OomproofError, KeyboardInterrupt) as error:
        if series.done or isinstance(error, KeyboardInterrupt):
            _print(arguments, factors, series.done, complete=False)
        if isinstance(error, KeyboardInterrupt):
            tell_line("interrupted; the same command with --resume continues")
            return INTERRUPTED
        raise
    _print(arguments, factors, series.done, complete=True)
    return 0 if eliminate(factors, series.done).follows else 1


class _Series:
    """The experiments of one command, one after the other."""

    def __init__(self, arguments: argparse.Namespace, factors: list[Factor], command: list[str]) -> None:
        self.factors, self.command = factors, command
        self.everything, self.resume = arguments.all, arguments.resume
        self.done: list[Experiment] = []
        self._flags: list[str] = []
        self._max_time = _max_time(arguments.max_time)
        for flag, check in (("limit", limit), ("grace", seconds("--grace"))):
            if (value := getattr(arguments, flag)) is not None:
                check(value)
                self._flags += [f"--{flag}", value]
        self._identity = [arguments.limit or "", os.getcwd()]

    def run(self) -> None:
        for factor in self.factors:
            if factor.is_env and factor.values[0] == UNSET and factor.name in os.environ:
                tell_line(f"{factor.name} is set in your environment; the baseline is without it")
        if self._max_time is None:
            tell_line("no --max-time: each experiment runs to its own end")
        while (values := next_experiment(self.factors, self.done, self.everything)) is not None:
            number = f"experiment {len(self.done) + 1}"
            most = most_experiments(self.factors, self.everything)
            tell_line(f"{number} of at most {most}: {settings(self.factors, values)}")
            experiment = self._experiment(values)
            self.done.append(experiment)
            tell_line(f"{number}: {end_of(experiment)}")

    def _experiment(self, values: Values) -> Experiment:
        words = filled(self.command, self.factors, values)
        name = run_name(self.factors, values, [*self._identity, *words])
        if self.resume and (earlier := self._earlier(values, name)):
            return earlier
        environment = environment_of(self.factors, values, dict(os.environ))
        run, timed_out = run_experiment(name, self._flags, words, environment, self._max_time, tell_line)
        return _experiment_of(values, run, timed_out)

    def _earlier(self, values: Values, name: str) -> Experiment | None:
        """The newest of that name that ended by itself, or lived as long as it is to live now; the script unchanged."""
        for run in list_runs():
            if run.info.get("name") != name or run.state() != "ended" or summarize(run).script_changed:
                continue
            experiment = _experiment_of(values, run, self._lived_long_enough(run), earlier=True)
            if experiment.outcome != FAILED:
                return experiment
        return None

    def _lived_long_enough(self, run: Run) -> bool:
        """Stopped, but not before its time was over: not by a Ctrl-C."""
        lasted = summarize(run).seconds
        if lasted is None or self._max_time is None or lasted < self._max_time:
            return False
        return conclude_once(run).verdict.kind.stopped_by == "person"


def _max_time(text: str | None) -> float | None:
    if text is None:
        return None
    if not (seconds_given := parse_duration(text)):
        raise OomproofError(f"--max-time {text} leaves no time", "give a time, such as 10m", USAGE)
    return seconds_given


def _experiment_of(values: Values, run: Run, timed_out: bool, earlier: bool = False) -> Experiment:
    conclusion = conclude_once(run)
    summary = summarize(run, conclusion)
    outcome, end = outcome_of(conclusion.verdict, timed_out)
    return Experiment(
        values,
        outcome,
        end,
        cause=conclusion.cause,
        headline=conclusion.verdict.headline,
        seconds=summary.seconds,
        peak=summary.peaks.use,
        gpu_peak=summary.peaks.gpu,
        run=run.id,
        name=run.name,
        timed_out=timed_out,
        earlier=earlier,
    )


def _print(
    arguments: argparse.Namespace, factors: list[Factor], done: list[Experiment], *, complete: bool
) -> None:
    if arguments.json:
        text = json.dumps(as_json(factors, done, complete), indent=2)
    elif arguments.markdown:
        text = as_markdown(factors, done)
    else:
        text = as_text(factors, done, terminal_columns(100))
    print(text, flush=True)
