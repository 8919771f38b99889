"""The status a shell sees for a run that has ended, and the last word to those who are told of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomproof.alerts.alert import QUIET
from oomproof.alerts.alert_channel import WAIT_AT_END, Alerts
from oomproof.errors import NOT_NOW, OUR_FAILURE
from oomproof.recording.run_folders import Run

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
