"""`oomproof run --retry`: attempts of one run, one after the other, each judged before the next is begun."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.alerts.alert import NEWS, Alert
from oomproof.cli.command_knobs import hydra_problem, knobs_of, script_text
from oomproof.cli.run_admission import (
    OnWaiting,
    StartupMessage,
    check_stop_file,
    look_for_twins,
    start_attempt,
    start_run,
    tell,
    tell_as_is,
)
from oomproof.cli.run_end import EndSignals, judge_end, leave, tell_verdict
from oomproof.errors import USAGE, OomproofError
from oomproof.evidence.checkpoint_finder import Found, newest_checkpoint
from oomproof.ledger.ledger_entries import Need
from oomproof.machine import processes
from oomproof.plans.death_facts import facts_of
from oomproof.plans.knobs import Template, parse_knob, sacrifice_order, template_of
from oomproof.plans.plan import Plan, effective_batch
from oomproof.plans.resume_arguments import (
    ResumeArgument,
    loading_hint,
    parse_resume_argument,
    resume_argument,
)
from oomproof.plans.smaller_plans import NoRetry, Retry, argument_name, decide, first_plan
from oomproof.recording.attempt import Attempt
from oomproof.recording.run_folders import Run, to_type
from oomproof.records import replace
from oomproof.runner.run_flags import RunSettings
from oomproof.runner.supervise import Order, Outcome, working_folder
from oomproof.runner.waiting_run import Cancelled, ListedAsWaiting, listen_between_attempts
from oomproof.units import format_duration

if TYPE_CHECKING:
    from oomproof.diagnosis.conclusion import Conclusion
    from oomproof.evidence.case_file import CaseFile

_TICK = 0.2


def template_for(argv: list[str], chosen: RunSettings) -> Template:
    """What of the command may change. Raises OomproofError where that is nothing, or cannot be read."""
    template = knobs_of(argv, chosen.knob, working_folder())
    sacrifice_order(template.knobs, chosen.order)
    if chosen.resume_arg:
        parse_resume_argument(chosen.resume_arg)
    kinds = {knob.kind for knob in template.knobs}
    if kinds <= {"accum"}:
        problem = hydra_problem(argv, working_folder())
        raise OomproofError(
            "--retry has nothing to change: no argument of the command is a batch or a number of workers"
            + (f"; {problem}" if problem else ""),
            "name what may change: --knob batch=64..4 -- python train.py --batch-size {batch} --accum {accum}",
            USAGE,
        )
    batch = template.knob("batch")
    if kinds == {"batch"} and batch is not None and not batch.described:
        name = argument_name(template, batch.name)
        raise OomproofError(
            f"--retry has nothing to change: a smaller {name} alone would change the effective batch",
            f"add an argument for gradient accumulation, or allow it: --knob {batch.name}={batch.first}..1",
            USAGE,
        )
    return template


def prepare(order: Order, asked: bool) -> Template | None:
    """The template, and the order with its first plan. ``asked``: on the command line; what a settings file says of many commands
    is no error for one that has nothing to change."""
    try:
        template = template_for(order.argv, order.chosen)
        plan = first_plan(template, order.argv)
    except OomproofError:
        if asked:
            raise
        return None
    order.argv = template.command(plan.as_dict()) if template.typed else order.argv
    order.attempt = _described(template, plan)
    if template.typed:  # the command that advice names has no placeholders
        words = ("retry", "knob", "order", "resume_arg")
        order.typed = {name: value for name, value in order.typed.items() if name not in words}
    return template


def _described(template: Template, plan: Plan) -> dict[str, Any]:
    names = {knob.name: argument_name(template, knob.name) for knob in template.knobs}
    return {"plan": plan.as_dict(), "names": names}


def filled_command(argv: list[str], knobs: list[str]) -> list[str]:
    """The command as its first attempt has it."""
    template = template_of(argv, [parse_knob(text) for text in knobs], folder=working_folder())
    return template.command(first_plan(template, argv).as_dict()) if template.typed else argv


class Retries:
    """What was tried, and what comes next."""

    def __init__(self, order: Order, template: Template, verbosity: int | None) -> None:
        self._order, self._template, self._verbosity = order, template, verbosity
        self._plans = [Plan.of(order.attempt["plan"])]
        self._stdin = _place_of_stdin()
        self._begun = time.time()
        self._following: Retry | NoRetry = NoRetry("there is no verdict")

    def run_all(self, startup_message: StartupMessage, on_waiting: OnWaiting, report: Path | None) -> int:
        outcome = start_run(self._order, startup_message, on_waiting)
        while True:
            self._forget()
            judged = judge_end(outcome, report, self._decide, retried=True)
            outcome.alerts.tell = self._say
            following, begun = self._following, None
            if isinstance(following, Retry) and judged.conclusion is not None and judged.signals is not None:
                begun = self._try_again(outcome, judged.conclusion, judged.signals, following, on_waiting)
            if begun is None:
                return self._leave(outcome, judged.conclusion)
            outcome = begun

    def _forget(self) -> None:
        self._following = NoRetry("there is no verdict")

    def _decide(self, outcome: Outcome, conclusion: Conclusion, interrupted: bool) -> None:
        self._following = following = self._next(conclusion, interrupted)
        tell_verdict(outcome, conclusion, self._verbosity, retried=isinstance(following, Retry))
        self._tell_no_retry(conclusion, following)

    def _next(self, conclusion: Conclusion, interrupted: bool) -> Retry | NoRetry:
        if interrupted or conclusion.case is None:
            return NoRetry("it was stopped by a person")
        facts = facts_of(conclusion.case, conclusion.verdict)
        chosen = self._order.chosen
        following = decide(self._template, self._plans, facts, chosen.retry, chosen.order)
        if isinstance(following, NoRetry) and facts.loading:
            hint = loading_hint(script_text(self._order.argv, working_folder()), self._order.argv)
            following = replace(following, hint=hint or following.hint)
        return following

    def _say(self, text: str) -> None:
        if self._verbosity is not None:
            tell(f"oomproof: {text}")

    def _tell_no_retry(self, conclusion: Conclusion, following: Retry | NoRetry) -> None:
        """Silent where the verdict says it all: it finished, or a person ended it."""
        kind = conclusion.verdict.kind
        if (
            isinstance(following, Retry)
            or kind.good
            or kind.stopped_by == "person"
            or (self._verbosity or 0) < 0
        ):
            return
        self._say(f"not tried again: {following.reason}")
        if following.hint:
            self._say(f"hint: {following.hint}")

    def _try_again(
        self,
        outcome: Outcome,
        conclusion: Conclusion,
        signals: EndSignals,
        following: Retry,
        on_waiting: OnWaiting,
    ) -> Outcome | None:
        """Stays until the next attempt has ended; None where there is none: it was called off, or could not be started."""
        try:
            order, told = self._prepared(outcome.run, conclusion, following)
        except Exception as error:  # whatever is wrong with our plans, the job's own status must get through
            self._say(f"not tried again: {type(error).__name__}: {error}")
            return None
        self._say(told)
        if following.note:
            self._say(following.note)
        self._alert(outcome, conclusion, told)
        folder = outcome.run.folder / str(len(self._plans) + 1)
        try:
            listen_between_attempts(outcome.release_signals)
            if signals.heard:
                raise KeyboardInterrupt
            begun = self._wait(outcome.run, following, told)
            check_stop_file(order.chosen.stop_file)
            look_for_twins(order)
            _rewind_stdin(self._stdin)
            ended = start_attempt(begun, order, _second_message, on_waiting)
        except (Cancelled, KeyboardInterrupt):
            self._say("not tried again: cancelled")
        except OomproofError as error:
            self._say(f"not tried again: {error}")
        else:
            self._plans.append(following.plan)
            return ended
        if not Attempt(folder).was_begun():
            from shutil import rmtree

            rmtree(folder, ignore_errors=True)
        return None

    def _prepared(self, run: Run, conclusion: Conclusion, following: Retry) -> tuple[Order, str]:
        """(what is run next, that in words)"""
        assert conclusion.case is not None
        argv = self._template.command(following.plan.as_dict())
        resume, checkpoint, words = self._resume(argv, conclusion.case, run)
        if resume is not None and checkpoint is not None:
            argv = resume.command(argv, checkpoint)
        number, most = len(self._plans) + 1, self._order.chosen.retry + 1
        told = f"attempt {number} of at most {most}: {self._change_text(following)}; {words}"
        described = {
            **_described(self._template, following.plan),
            "change": following.change,
            "why": following.why,
            "resumed_from": checkpoint if resume is not None else None,
        }
        return replace(self._order, argv=argv, asked=self._asked(following), attempt=described), told

    def _alert(self, outcome: Outcome, conclusion: Conclusion, told: str) -> None:
        run, verdict = Run(outcome.run.folder), conclusion.verdict
        outcome.alerts.send(
            Alert(
                "retry",
                run.name,
                f"{verdict.headline}. {verdict.why}",
                run=run.id,
                level=NEWS,
                next=told,
                command=f"oomproof stop {to_type(run)}",
                cause=verdict.cause,
            )
        )

    def _wait(self, run: Run, following: Retry, told: str) -> Run:
        """Listed as waiting until the next attempt's folder is there: nobody may take it for a run that has ended."""
        me = os.getpid()
        with ListedAsWaiting(run, following.need, (me, processes.start_time(me))) as waiting:
            waiting.write([f"in {format_duration(following.pause)}: {told}"])
            end = time.monotonic() + following.pause
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(_TICK, left))
            return run.new_attempt()

    def _asked(self, following: Retry) -> Any:
        """For a death by others: what it held is waited for; that is no declaration, only what is known of it."""
        asked = replace(self._order.asked, not_before=None)
        if following.change or asked.need is not None:
            return asked
        if following.need or following.gpu_need:
            need = following.need or 1
            asked.sized = Need(
                need, need, "at least: what it held when others filled the memory", following.gpu_need
            )
        return asked

    def _change_text(self, following: Retry) -> str:
        if not following.change:
            return f"unchanged, when there is memory again ({following.why})"
        known = "" if self._template.typed else ", recognised by name"
        text = f"{following.change} ({following.why}{known})"
        kept = effective_batch(self._template, following.plan)
        if kept is not None and kept == effective_batch(self._template, self._plans[0]):
            text += f"; the effective batch stays {kept}"
        return text

    def _resume(
        self, argv: list[str], case: CaseFile, run: Run
    ) -> tuple[ResumeArgument | None, str | None, str]:
        """(how, from which checkpoint, that in words)"""
        folder = working_folder()
        found = newest_checkpoint(
            run.attempts(),
            argv,
            folder,
            self._begun,
            case.exit.status.wall if case.exit.status else None,
            _saving_since(case),
        )
        argument = resume_argument(argv, folder, self._order.chosen.resume_arg)
        return _resume_text(found, argument, folder)

    def _leave(self, outcome: Outcome, conclusion: Conclusion | None) -> int:
        EndSignals().close()
        if len(self._plans) > 1 and self._verbosity is not None:
            with contextlib.suppress(Exception):  # worth less than the status
                from oomproof.printable import printable, terminal_columns
                from oomproof.reports.run_tables import attempt_lines

                width = terminal_columns(140) if sys.stderr.isatty() else 140
                tell_as_is(printable("\n".join(attempt_lines(Run(outcome.run.folder), width))))
        return leave(outcome, conclusion, self._verbosity)


def _resume_text(
    found: Found, argument: ResumeArgument | None, folder: str
) -> tuple[ResumeArgument | None, str | None, str]:
    cut = f" ({_shown(found.cut[0], folder)} is cut short and left alone)" if found.cut else ""
    newest = found.newest
    if newest is None:
        return None, None, f"from the beginning: it wrote no checkpoint{cut}"
    shown = _shown(newest.path, folder)
    if argument is None:
        hint = '--resume-arg "--resume_from_checkpoint {checkpoint}"'
        return (
            None,
            None,
            f"from the beginning: how to resume from {shown} is not known ({hint} says it){cut}",
        )
    return argument, newest.path, f"resumes from {shown}{cut}"


def _shown(path: str, folder: str) -> str:
    return shlex.quote(os.path.relpath(path, folder) if path.startswith(folder.rstrip("/") + "/") else path)


def _saving_since(case: CaseFile) -> float | None:
    """When it began to save, if it died in that; wall seconds."""
    if (
        case.agent.phase != "save"
        or case.agent.step_time is None
        or case.exit.started is None
        or case.exit.started_wall is None
    ):
        return None
    return case.exit.started_wall + case.agent.step_time - case.exit.started


def _second_message(run: Run, order: Order, sentence: str, told: list[str], tell_line: Any) -> None:
    """How the limit is enforced was said at the first."""
    for line in [sentence, *told] if order.verbosity > 0 else told:
        if line:
            tell_line(f"oomproof: {line}")


def _place_of_stdin() -> int | None:
    """Of a file that the command reads: the next attempt begins there again."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(0).st_mode) else None
    except OSError:
        return None


def _rewind_stdin(place: int | None) -> None:
    if place is not None:
        with contextlib.suppress(OSError):
            os.lseek(0, place, os.SEEK_SET)
