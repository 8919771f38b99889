"""One try of a trial: an `oomproof run` of its own, found again after a kill of the sweep, and what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from oomproof.alerts.receivers import OFF
from oomproof.diagnosis.conclusion import Conclusion, conclude_once
from oomproof.diagnosis.verdict import Verdict
from oomproof.errors import OUR_FAILURE, OomproofError
from oomproof.evidence.case_collector import collect
from oomproof.evidence.job_output import tail_text
from oomproof.leaf.proc_files import environment as environment_of
from oomproof.own_command import OWN_COMMAND
from oomproof.plans.death_facts import facts_of
from oomproof.plans.smaller_plans import not_loaded
from oomproof.recording import run_summary
from oomproof.recording.run_folders import ELSEWHERE, Run, list_runs, newest_runs, runs_folder
from oomproof.recording.state_files import make_private, read_json
from oomproof.records import dataclass
from oomproof.sweeps.metric_sources import (
    LOGGED,
    VARIABLE,
    Metric,
    first_of,
    in_text,
    names_in,
    read_file,
    read_logged,
    shown_metric,
    stored_metric,
)
from oomproof.sweeps.search_space import Parameter, Point, shown
from oomproof.sweeps.sweep_folder import Sweep
from oomproof.sweeps.sweep_trials import Trial, Try
from oomproof.sweeps.trial_plans import JSON_FILE, arguments_of, command_of, wandb_config
from oomproof.units import format_duration, format_size


def start_line(trial: Trial, attempt: Try, first: Point, total: int | None) -> str:
    """``first``: the values it has when nothing is made smaller."""
    of = f" of {total}" if total else ""
    smaller = {name: value for name, value in attempt.values.items() if str(first.get(name)) != str(value)}
    with_them = f", run as {shown(smaller)}" if smaller else ""
    again = f" (try {attempt.number})" if attempt.number > 1 else ""
    return f"trial {trial.number}{of}: {shown(trial.values)}{with_them}{again}"


def end_line(trial: Trial, attempt: Try, metric: str | None) -> str:
    figures = [f"held {format_size(attempt.peak)}"] if attempt.peak else []
    figures += [f"{format_size(attempt.gpu_peak)} on the card"] if attempt.gpu_peak else []
    figures += [format_duration(attempt.seconds)] if attempt.seconds is not None else []
    if attempt.outcome == "done":
        told = (
            f"{metric} {shown_metric(attempt.metric)}"
            if metric is not None and attempt.metric is not None
            else "done"
        )
    elif trial.state == "waiting" and not attempt.shrunk:  # its end says nothing of the trial
        told = trial.why + ("" if attempt.stopping else "; it is tried again")
    else:
        told = f"{attempt.outcome.replace('-', ' ')}: {trial.why}"
        told += "; a smaller plan is tried" if attempt.shrunk else ""
    beside = f" ({', '.join(figures)})" if figures else ""
    return f"trial {trial.number}: {told}{beside}"


def source_line(metric: str, told: Metric) -> str:
    return f"metric {metric}: from {told.source}"


def missing_metric_line(number: int, metric: str, others: tuple[str, ...]) -> str:
    printed = f"; it printed {', '.join(others)}" if others else ""
    name = metric if metric.isidentifier() else "NAME"
    return (
        f"trial {number} is done, but reported no {metric}{printed}. A script reports it by printing {metric}=0.5, or with "
        f"oomproof.report_metric({name}=0.5)"
    )


def count_of(trials: int) -> str:
    return "the trial" if trials == 1 else f"the {trials} trials"


Phase = Literal["starting", "waiting", "running", "ended", "refused", "missing"]
_OVER = ("ended", "machine went down", "vanished", "failed to start", ELSEWHERE)
_IDENTITY = "OOMPROOF_SWEEP_TRY"  # a variable: by it a try is found again whatever was killed
_JUDGING = 60.0  # seconds its front may take for the verdict
_TEXT = 4 << 20  # bytes of a job's output in which its metric is looked for
_LOOKED_AT = 100  # runs, the newest
_SEARCH_AGAIN = 30.0  # seconds between two looks at all there are


@dataclass(frozen=True, slots=True)
class Template:
    """What every trial is made of."""

    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    cwd: str
    by_config: bool  # from a file of wandb's: its values also reach wandb.config
    flags: tuple[str, ...]  # of `oomproof run`


@dataclass(frozen=True, slots=True)
class End:
    """What is known of a try that is over."""

    run: str | None
    verdict: Verdict | None  # None: it never was a run
    seconds: float | None = None
    peak: int | None = None
    gpu_peak: int | None = None
    at_own_limit: bool = False
    metric: Metric | None = None
    others: tuple[str, ...] = ()  # metrics of other names that it printed
    refused: tuple[int, str, str] | None = None  # status, message, hint
    not_loaded: tuple[str, ...] = ()  # of a death while loading: kinds of settings that took no part in it


class TrialProcess:
    """``run_name``: as people see it."""

    def __init__(self, sweep: Sweep, trial: int, attempt: int, run_name: str) -> None:
        self.trial, self.run_name = trial, run_name
        self._identity = f"{sweep.token}/{trial}.{attempt}"
        self._folder = sweep.trial_folder(trial, attempt)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._run: Run | None = None
        self._over_since: float | None = None
        self._next_search = time.monotonic() + _SEARCH_AGAIN

    @property
    def run(self) -> Run | None:
        return self._run

    @property
    def _report(self) -> Path:
        return self._folder / "report.json"

    def start(
        self, template: Template, point: Point, further: Mapping[str, str], flags: Sequence[str]
    ) -> None:
        """Raises OomproofError where its folder cannot be written, or no process can be had: a machine may be short of both."""
        folder = self._folder
        make_private(folder.parent)
        make_private(folder)
        arguments = arguments_of(template.parameters, point)
        environment = {
            **os.environ,
            OFF: "1",
            VARIABLE: str(folder / "metric"),
            "OOMPROOF_TRIAL": str(self.trial),
            _IDENTITY: self._identity,
        }
        try:
            (folder / JSON_FILE).write_text(json.dumps(arguments, default=str))
            if template.by_config:
                path = folder / "wandb.yaml"
                path.write_text(wandb_config(arguments))
                environment["WANDB_SWEEP_PARAM_PATH"] = str(path)
            self._report.unlink(missing_ok=True)
            for name in ("metric", f"metric{LOGGED}"):
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise OomproofError(
                f"cannot write {folder}: {error.strerror}", "free some space there"
            ) from error
        command = command_of(template.words, template.parameters, point, further, str(folder / JSON_FILE))
        own = ["run", "--name", self.run_name, "--allow-twin", "--report", str(self._report)]
        try:
            words = [*own, *template.flags, *flags, "--", *command]
            self._process = _start_own(words, env=environment, cwd=template.cwd)
        except OSError as error:
            raise OomproofError(
                f"cannot start trial {self.trial}: {error.strerror}", "later: oomproof sweep resume"
            ) from error

    def look(self) -> Phase:
        if self._process is not None and self._process.poll() is None:
            lives = True
        else:
            lives = self._process is None and self._run is None and _lives(self._identity)
        if self._run is None:
            self._run = self._find()
        run = self._run
        if run is None:
            return "starting" if lives else "refused" if self._process is not None else "missing"
        if not run.folder.exists():  # it waited for memory, and was taken out of the queue
            return "refused" if not lives else "waiting"
        state = run.state()
        if state == "waiting":
            return "waiting"
        if state in _OVER:
            return "ended" if self._is_judged(lives) else "running"
        if state == "unguarded":
            self._guard_again(run)
        return "starting" if state == "starting" else "running"

    def _find(self) -> Run | None:
        if self._process is not None and (run := self._among(newest_runs(_LOOKED_AT))) is not None:
            return run
        # it began long ago, or the clock was set back: ids of before then look newer for ever
        if self._process is None or self._process.poll() is not None or time.monotonic() > self._next_search:
            self._next_search = time.monotonic() + _SEARCH_AGAIN
            return self._among(list_runs())
        return None

    def _among(self, runs: Sequence[Run]) -> Run | None:
        for run in runs:
            if (
                run.info.get("name") == self.run_name
                and (run.info.get("env") or {}).get(_IDENTITY) == self._identity
            ):
                return run
        return None

    def _is_judged(self, lives: bool) -> bool:
        """Its front writes the verdict before it goes; one that hangs is not waited for for ever."""
        self._over_since = self._over_since or time.monotonic()
        run = self._run
        busy = lives or (run is not None and run.guard_lives())
        return not busy or time.monotonic() - self._over_since > _JUDGING

    def _guard_again(self, run: Run) -> None:
        """Its front was killed and the job continues: as `oomproof watch` does by hand."""
        if self._guard is not None and self._guard.poll() is None:
            return
        with contextlib.suppress(OSError):
            self._guard = _start_own(["watch", run.id])

    def end(self, metric: str | None) -> End:
        """Once it is over. Judges and stores the verdict where nobody did."""
        run = self._run
        if run is None or not run.folder.exists() or not run.started():
            return End(None, None, refused=self._refusal())
        conclusion = conclude_once(run)
        summary = run_summary.make(run, conclusion.as_json)
        scopes = [action.get("scope") for action in run.attempt.actions() if action.get("by") == "guard"]
        told: Metric | None = None
        others: tuple[str, ...] = ()
        if metric is not None and conclusion.cause == "finished":
            text = tail_text(run.attempt, _TEXT)
            file = self._folder / "metric"
            told = first_of((read_file(file, metric), read_logged(file, metric), in_text(text, metric)))
            others = tuple(names_in(text)) if told is None else ()
        return End(
            run.id,
            conclusion.verdict,
            summary.seconds,
            summary.peaks.use,
            summary.peaks.gpu,
            bool(scopes) and scopes[-1] == "limit",
            told,
            others,
            not_loaded=_not_loaded(run, conclusion),
        )

    def _refusal(self) -> tuple[int, str, str]:
        refused = read_json(self._report).get("refused")
        if isinstance(refused, dict):
            return (
                int(refused.get("status") or OUR_FAILURE),
                str(refused.get("message")),
                str(refused.get("hint") or ""),
            )
        status = self._process.returncode if self._process is not None else OUR_FAILURE
        return status, "its run did not start", ""

    def stop(self) -> subprocess.Popen[bytes] | None:
        """In order, as `oomproof stop` does; a process of its own that ends when the trial has. None: there is no run yet."""
        return _start_own(["stop", self._run.id]) if self._run is not None else None


def _start_own(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command of oomproof, in a session of its own and without our streams: a kill of the sweep must not end it by
    SIGPIPE, nor Ctrl-C, nor a terminal that is closed."""
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        [*OWN_COMMAND, *words],
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,
        **options,
    )


def _not_loaded(run: Run, conclusion: Conclusion) -> tuple[str, ...]:
    verdict = conclusion.verdict
    if not verdict.kind.memory or verdict.phase != "load" or verdict.step is not None:
        return ()
    return not_loaded(facts_of(conclusion.case or collect(run.attempt), verdict))


def run_of(run_id: str) -> Run:
    return Run(runs_folder() / run_id)


def _lives(identity: str) -> bool:
    """Whether a process was started for it that has no run's folder yet: its sweep was killed a moment ago."""
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit() and environment_of(int(entry)).get(_IDENTITY) == identity:
            return True
    return False


def describe(end: End) -> dict[str, Any]:
    """What of it stands in the sweep's log."""
    return {
        "run": end.run,
        "cause": end.verdict.cause if end.verdict is not None else None,
        "headline": end.verdict.headline
        if end.verdict is not None
        else end.refused[1]
        if end.refused
        else "",
        "seconds": end.seconds,
        "peak": end.peak,
        "gpu_peak": end.gpu_peak,
        "metric": stored_metric(end.metric),
        "metric_source": end.metric.source if end.metric is not None else "",
        "not_loaded": list(end.not_loaded),
    }
