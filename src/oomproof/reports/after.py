"""What is said after a run: collects the evidence, judges, keeps the verdict beside the recording."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.kept import mistaken
from oomproof.diagnosis.verdict import MEMORY_CAUSES
from oomproof.errors import OomproofError
from oomproof.evidence.collect import collect
from oomproof.ledger import history
from oomproof.machine.identity import host_name
from oomproof.recording import runs, state_files
from oomproof.reports import summary_file
from oomproof.reports.verdict import three_lines


@dataclass(frozen=True)
class Conclusion:
    as_json: dict[str, Any]
    text: str

    @property
    def cause(self) -> str:
        return str(self.as_json["verdict"]["cause"])

    @property
    def died_of_memory(self) -> bool:
        return self.cause in MEMORY_CAUSES


def conclude(run: runs.Run) -> Conclusion:
    """The verdict of a run that has ended; written down once, so that later readers see the same."""
    case = collect(run.attempt)
    verdict = judge(case)
    as_json = verdict.to_json()
    found = Conclusion(as_json, three_lines(verdict))
    if case.elsewhere is not None:
        return found  # its own host knows more: nothing said from here is kept
    try:
        kept = {**as_json, "lines": found.text, "host": host_name()}
        state_files.write_json(run.attempt.verdict_file, kept)
    except OomproofError:
        pass  # a full disk: said on the terminal all the same
    gpu = run.attempt.recording().peaks().gpu if case.gpus else None
    history.keep(run, case.job_peak, gpu, whole=found.cause == "finished")
    with contextlib.suppress(Exception):  # worth less than the verdict: `oomproof runs` makes it otherwise
        summary = summary_file.make(run, as_json)
        if summary.state == "ended" and summary.problem is None:
            summary_file.keep(run, summary)
    return found


def verdict_of(run: runs.Run) -> Conclusion | None:
    """The kept verdict, or a fresh one when nobody was there to judge; None while the run goes on."""
    kept = run.attempt.verdict()
    if _is_whole(kept.get("verdict")) and not mistaken(kept, run.attempt):
        return Conclusion(kept, str(kept.get("lines", "")))
    if run.state() in ("running", "frozen", "lost its guard", "starting", "waiting", runs.ELSEWHERE):
        return None
    return conclude(run)


def _is_whole(verdict: object) -> bool:
    """What the tables show of a kept verdict is there; a damaged one is judged anew."""
    if not isinstance(verdict, dict):
        return False
    victim = verdict.get("victim")
    sizes = (
        [value for name, value in victim.items() if name.endswith("_bytes")]
        if isinstance(victim, dict)
        else []
    )
    return (
        all(isinstance(verdict.get(name), str) for name in ("cause", "headline", "why"))
        and (victim is None or isinstance(victim, dict))
        and all(size is None or isinstance(size, int) for size in sizes)
    )
