"""The end of an attempt: its verdict, told and stored, while signals are heard and not obeyed; and the status the shell sees."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomproof.alerts.alert import QUIET
from oomproof.alerts.alert_channel import WAIT_AT_END, Alerts
from oomproof.cli.run_admission import tell, tell_as_is
from oomproof.errors import NOT_NOW, OUR_FAILURE, OomproofError
from oomproof.recording.run_folders import Run, fixes_were_applied
from oomproof.records import dataclass
from oomproof.runner.front import FORWARDED
from oomproof.runner.supervise import Outcome
from oomproof.runner.waiting_run import Cancelled

if TYPE_CHECKING:  # what a start does not need
    from oomproof.diagnosis.conclusion import Conclusion

if TYPE_CHECKING:
    from oomproof.diagnosis.conclusion import Conclusion


def exit_status(run: Run, conclusion: Conclusion | None, ended: dict[str, Any] | None = None) -> int:
    """The job's own, 128+signal when it was killed, --oom-exit-code when it died of memory and one was given.

    75 for the 0 of a job that the guard asked to stop: what comes after `&&` must not take half a result for a whole one."""
    wanted = (run.info.get("settings") or {}).get("oom_exit_code")
    if wanted is not None and conclusion is not None and conclusion.died_of_memory:
        return int(wanted)
    ended = ended or run.exit()
    if not ended or (ended.get("code") is None and ended.get("signal") is None):
        return OUR_FAILURE  # nobody knows: the keeper vanished, or it was adopted and is another's child
    if ended["code"] is None:
        return 128 + int(ended["signal"])
    stopped = conclusion is not None and conclusion.verdict.kind.stopped_by == "guard"
    return NOT_NOW if stopped and ended["code"] == 0 else int(ended["code"])


def tell_end(alerts: Alerts, run: Run, conclusion: Conclusion | None, status: int) -> None:
    """Waits two seconds at most; what is not delivered by then is delivered without us. Never fails: the status matters more."""
    if not alerts.is_on:
        return
    awaited = True
    try:
        from oomproof.reports.end_alert import end_alert

        alert = end_alert(run, conclusion, status)
        alerts.send(alert)
        awaited = alert.level != QUIET or alerts.hears_every_end
    except Exception:  # whatever is wrong with the message, those who wait for us are not to wait longer
        pass
    alerts.close(WAIT_AT_END if awaited else 0.0)


GAVE_UP = "gave up waiting; nothing was started"
TellIt = Callable[[Outcome, "Conclusion", bool], None]  # the last: whether a signal has come since its end


@dataclass
class Judged:
    conclusion: Conclusion | None
    signals: EndSignals | None  # still heard where another attempt may follow; None: the user has had enough


class _Enough(BaseException):
    """A second signal after the job's end: the user does not want to read the verdict."""


class EndSignals:
    """After the job's end signals are heard, not obeyed: the second one only cuts the verdict short."""

    _NUMBERS = (*FORWARDED, signal.SIGHUP)

    def __init__(self) -> None:
        self.heard = 0
        self._cuts_short = True
        for number in self._NUMBERS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:  # a terminal was closed: nobody said that it is enough
            return
        self.heard += 1
        if self.heard == 2 and self._cuts_short:
            raise _Enough

    def only_count(self) -> None:
        """From now on, until somebody else handles them: the verdict is told."""
        self._cuts_short = False

    def close(self) -> None:
        """To the end of the process. Ignored, for the interpreter gives a handler of ours up before it has ended."""
        self.heard = 2
        for number in self._NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def judge_end(outcome: Outcome, report: Path | None, tell_it: TellIt, retried: bool = False) -> Judged:
    """The verdict, stored and told. ``retried``: another attempt may follow, and signals are then not ignored from here on."""
    conclusion: Conclusion | None = None
    signals: EndSignals | None = None
    try:
        signals = EndSignals()
        try:  # also around the imports: there may be no descriptor left for them
            from oomproof.diagnosis.conclusion import conclude

            conclusion = conclude(outcome.run)
            tell_it(outcome, conclusion, signals.heard > 0)
            if report is not None:
                _write_report(report, outcome, conclusion)
        except (
            Exception
        ) as error:  # whatever is wrong with our verdict, the job's own status must get through
            told = conclusion is not None and isinstance(error, OomproofError)  # only the report is missing
            tell(f"oomproof: {error}" if told else f"oomproof: no verdict ({type(error).__name__}: {error})")
        finally:
            signals.only_count() if retried else signals.close()
    except _Enough:
        return Judged(None, None)
    return Judged(conclusion, signals)


def tell_verdict(
    outcome: Outcome, conclusion: Conclusion, verbosity: int | None, retried: bool = False
) -> None:
    """``retried``: what to do next is being done. Without a verbosity nobody is there to be told."""
    from oomproof.reports.verdict_text import at_end

    if verbosity is None:
        return
    if outcome.trouble:
        tell(f"oomproof: the recording is incomplete: {outcome.trouble}")
    if not outcome.run.exit() and outcome.exit:
        tell(f"oomproof: {_ended(outcome.exit)}; nothing of it could be recorded, so there is no verdict")
    elif text := at_end(conclusion.verdict, sys.stderr, verbosity, following=not retried):
        tell_as_is(text)


def _write_report(report: Path, outcome: Outcome, conclusion: Conclusion) -> None:
    from oomproof.reports import report_file

    value = conclusion.as_json
    if outcome.run.retries():
        from oomproof.reports.run_tables import attempts_json

        value = {**value, "attempts": attempts_json(outcome.run)}
    report_file.save(report, json.dumps(value, indent=1).encode(), force=True)


@contextlib.contextmanager
def refusal_in(report: Path | None) -> Iterator[None]:
    """Whoever reads --report learns also why nothing was started."""
    try:
        yield
    except (OomproofError, Cancelled) as error:
        if report is not None:
            from oomproof.reports import report_file

            refused = {"status": getattr(error, "status", None), "message": GAVE_UP, "hint": ""}
            if isinstance(error, OomproofError):
                refused.update(message=error.message, hint=error.hint)
            else:
                refused.update(status=128 + error.number)
            with contextlib.suppress(OomproofError):  # a full disk: it is said on the terminal
                data = json.dumps({"schema": 1, "verdict": None, "refused": refused}, indent=1)
                report_file.save(report, data.encode(), force=True)
        raise


def leave(outcome: Outcome, conclusion: Conclusion | None, verbosity: int | None) -> int:
    """The last word to those who are told, and the status."""
    if conclusion is not None:
        _tell_fixes(outcome, conclusion, verbosity)
    status = exit_status(outcome.run, conclusion, outcome.exit)
    outcome.alerts.tell = (lambda _: None) if verbosity is None else lambda text: tell(f"oomproof: {text}")
    tell_end(outcome.alerts, outcome.run, conclusion, status)
    return status


def _tell_fixes(outcome: Outcome, conclusion: Conclusion, verbosity: int | None) -> None:
    """How changes of `oomproof fix` fare that waited for a run of this command."""
    with contextlib.suppress(Exception):  # worth less than the status
        if not fixes_were_applied():
            return
        from oomproof.cli.fix import note_fixes

        for sentence in note_fixes(Run(outcome.run.folder), conclusion.cause):
            if verbosity is not None:
                tell(f"oomproof: {sentence}")


def finish(outcome: Outcome, report: Path | None, verbosity: int | None) -> int:
    """Of a run of one attempt."""
    judged = judge_end(
        outcome, report, lambda outcome, conclusion, _: tell_verdict(outcome, conclusion, verbosity)
    )
    return leave(outcome, judged.conclusion, verbosity)


def _ended(record: dict[str, Any]) -> str:
    if record.get("signal") is not None:
        return f"the job was ended by {signal.Signals(record['signal']).name}"
    return f"the job exited with code {record.get('code')}"
