"""How long a trial takes by recorded runs of the same script that ended well: for trials that print nothing. Pure but for `earlier_runs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median

from oomproof.leaf.command_lines import options, script_of
from oomproof.recording.run_folders import Run, newest_runs
from oomproof.records import dataclass

_RUNS = 200  # that are looked through
_TAKEN = 20  # of the same script: newer ones tell more


@dataclass(frozen=True, slots=True)
class EarlierRun:
    seconds: float
    count: int | None  # its epochs or steps; None: its command names none
    startup: float = 0.0  # of the seconds, those before its first step


def expected_seconds(runs: Sequence[EarlierRun], knob: str, count: int | None) -> tuple[float, str] | None:
    """(of one trial, by what). ``count``: the epochs of a trial, None where they differ or nobody knows."""
    if not runs:
        return None
    same = [run.seconds for run in runs if count is None or run.count == count]
    if same:
        return median(same), _said(len(same), f" with {knob} {count}" if count is not None else "")
    counted = [(run, run.count) for run in runs if run.count]
    if count is None or not counted:
        return None
    numbers = sorted({epochs for _, epochs in counted})
    if len(numbers) > 1:
        low, high = (
            median([run.seconds for run, epochs in counted if epochs == end])
            for end in (numbers[0], numbers[-1])
        )
        pace = max(0.0, (high - low) / (numbers[-1] - numbers[0]))
        startup = max(0.0, low - pace * numbers[0])
        return startup + pace * count, _said(
            len(counted), f" with {knob} {numbers[0]} to {numbers[-1]}, made {count}"
        )
    startup = median([run.startup for run, _ in counted])
    pace = max(0.0, median([run.seconds for run, _ in counted]) - startup) / numbers[0]
    about = "" if startup else " (at most: its start is in each)"
    return startup + pace * count, _said(len(counted), f" with {knob} {numbers[0]}, made {count}{about}")


def _said(count: int, more: str) -> str:
    return ("an earlier run" if count == 1 else f"{count} earlier runs") + " of its script" + more


def earlier_runs(
    words: Sequence[str], folder: str, knob: str, startup: Callable[[Run], float | None]
) -> list[EarlierRun]:
    """Newest first; of any sweep, or of none. ``startup``: seconds before a run's first step."""
    script = script_of(words, folder)
    if script is None:
        return []
    return list(islice(_ended_well(script, knob, startup), _TAKEN))


def _ended_well(script: str, knob: str, startup: Callable[[Run], float | None]) -> Iterator[EarlierRun]:
    for run in newest_runs(_RUNS):
        ended, started = run.exit(), run.started()
        begin, end = started.get("boottime"), ended.get("boottime")
        if ended.get("code") != 0 or run.elsewhere() or run.info.get("adopted") is True:
            continue
        if script_of(run.argv, str(run.info.get("cwd") or "")) != script:
            continue
        if isinstance(begin, float) and isinstance(end, float) and end > begin:
            yield EarlierRun(end - begin, _count(run.argv, knob), startup(run) or 0.0)


def _count(argv: Sequence[str], knob: str) -> int | None:
    values = [value for name, value in options(argv[1:]) if name == knob and value and value.isdecimal()]
    return int(values[-1]) if values and int(values[-1]) > 0 else None
