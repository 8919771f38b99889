"""The trend of a recorded run: after loading, by phases and steps, up to its limit or what the machine had left."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from oomproof.evidence.heap_growth import warm_since
from oomproof.evidence.memory_growth import job_growth
from oomproof.evidence.run_trend import RunTrend, run_trend
from oomproof.recording.reader import open_recording
from oomproof.recording.series import PhaseMark
from oomproof.recording.sqlite_files import INSERTS
from oomproof.recording.writer import Writer
from oomproof.reports import trend_text
from oomproof.reports.trend_text import Answer, alert_text, trend_json, trend_lines
from oomproof.trend.leaks import FLAT, GROWING, STEPS, UNKNOWN, Range, Trend
from oomproof.units import GIB, MIB

LOADED = 2000 * MIB


class Rows:
    """Straight into the file: the writer's queue drops rows when they come faster than a disk takes them."""

    def __init__(self, path: Path) -> None:
        Writer(path, {"boot_id": "b", "wall_offset": "1000.0"}).close()
        self._connection = sqlite3.connect(path)

    def put(self, table: str, row: tuple[object, ...]) -> None:
        self._connection.execute(INSERTS[table], row)

    def event(self, t: float, kind: str, text: str, **data: object) -> None:
        self.put("event", (t, kind, text, json.dumps(data)))

    def close(self) -> None:
        self._connection.commit()
        self._connection.close()


def recorded(
    folder: Path,
    keeps_in_eval: int = 0,
    keeps_in_step: int = 0,
    limit: int | None = None,
    plan: dict[str, int] | None = None,
    seconds: int = 7200,
    files: int = 0,
) -> Path:
    """Ten minutes of loading, then two hours: a step each two seconds, an evaluation of 30 s every five minutes."""
    path = folder / "recording.sqlite"
    writer = Rows(path)
    if plan is not None:
        writer.event(600.0, "agent:plan", "", pid=7, **plan)

    def put(t: float, use: int) -> None:
        headroom = None if limit is None else limit - use
        writer.put("job", (t, use, 0, 5 * GIB + int(files * t), 0, 0, headroom, 1, None, None))
        writer.put("host", (t, 64 * GIB, 50 * GIB - use, 0, 0, 0, None, None))

    writer.put("phase", (0.0, "load", None, 7, None, None))
    for t in range(0, 600, 5):
        put(float(t), LOADED * t // 600)
    held, step = LOADED, 0
    for t in range(600, 600 + seconds, 2):
        in_eval = t % 300 >= 270
        if in_eval and t % 300 == 270:
            writer.put("phase", (float(t), "eval", step, 7, None, None))
            held += keeps_in_eval
        if not in_eval:
            step += 1
            held += keeps_in_step
            writer.put("phase", (float(t), "train", step, 7, None, None))
        put(float(t), held + (300 * MIB if in_eval else (step % 20) * 5 * MIB))
    writer.close()
    return path


def trend(path: Path, limit: int | None = None) -> RunTrend:
    with open_recording(path).series() as series:
        found = run_trend(series, limit)
    assert found is not None
    return found


def test_a_leak_in_the_evaluation(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_eval=40 * MIB))
    assert found.trend.kind == STEPS and found.trend.rate is not None
    assert found.cycle is not None and (found.cycle.name, found.phase) == ("eval", "eval")
    assert found.cycle.seconds == pytest.approx(300, rel=0.02)
    assert found.trend.period == pytest.approx(300, rel=0.02)
    assert found.trend.rate.expected * 300 == pytest.approx(40 * MIB, rel=0.05)
    assert found.limit_from == "what the machine had left" and found.limit == pytest.approx(
        50 * GIB, rel=0.01
    )
    assert found.trend.full_in is not None
    left = (50 * GIB - 300 * MIB - found.trend.held) / (40 * MIB / 300)
    assert found.trend.full_in.low < left < found.trend.full_in.high


def lines(found: RunTrend, is_over: bool = False) -> str:
    facts = (found.trend, found.limit, found.limit_from, found.seen, found.end + 1_790_000_000)
    return "\n".join(trend_lines("x", Answer(*facts, found, is_over)))


def test_told_in_epochs_steps_and_time(tmp_path: Path) -> None:
    """135 steps from one evaluation to the next: that is an epoch, and the trainer has planned fifty."""
    plan = {"steps": 50 * 135, "epoch_steps": 135}
    found = trend(recorded(tmp_path, keeps_in_eval=40 * MIB, limit=4 * GIB, plan=plan))
    assert found.trend.kind == STEPS and found.cycle is not None and found.cycle.name == "epoch"
    left = (4 * GIB - LOADED - 24 * 40 * MIB - 300 * MIB) / (40 * MIB)  # evaluations that still fit
    epochs, steps = found.full_in_cycles, found.full_in_steps
    assert epochs is not None and epochs.low <= left <= epochs.high and epochs.high - epochs.low <= 6
    assert steps is not None and steps.low <= left * 135 <= steps.high
    assert found.ends is not None and found.ends.total == 6750 and found.ends.told_by == "its trainer"
    assert found.ends.seconds == pytest.approx((6750 - 3240) * 300 / 135, rel=0.05)
    assert found.is_full_first is True
    said = lines(found)
    assert "x: growing in steps: each eval keeps something" in said
    assert "  grows    +40 MiB per epoch in eval (+8.0 MiB/min); " in said
    assert re.search(
        r"full     4\.0 GiB \(its limit\) in \d+ to \d+ epochs, [\d,]+ to [\d,]+ steps, .* \(.* to .*\), 4 times in 5",
        said,
    )
    assert (
        "ends     in about 2 h " in said
        and "at step 6,750 (3,240 made, as its trainer tells): memory is full before" in said
    )


def test_a_run_that_ends_first_is_told_so_and_not_warned_of(tmp_path: Path) -> None:
    found = trend(
        recorded(tmp_path, keeps_in_eval=40 * MIB, limit=8 * GIB, plan={"steps": 3300, "epoch_steps": 0})
    )
    assert found.cycle is not None and found.cycle.name == "eval", "an epoch of which nobody told the length"
    assert found.is_full_first is False and "before memory is full" in lines(found)
    facts = (found.trend, found.limit, found.limit_from, found.seen, None)
    assert alert_text(Answer(*facts, found)) is None
    assert "ends" not in lines(found, is_over=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (4 * GIB + 2 * MIB, "full     4.0 GiB (its limit) in "),  # as everywhere else, not what is left of it
        (5 * GIB, "full     5.0 GiB (its limit; 1.0 GiB of it not the job's own: page cache and the kernel's) in "),
    ],
)  # fmt: skip
def test_the_limit_is_told_as_it_was_given(given: int, said: str, tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_eval=40 * MIB, limit=4 * GIB))
    facts = found.trend, found.limit, found.limit_from, found.seen, None
    told = "\n".join(trend_lines("x", Answer(*facts, found, run_limit=given)))
    assert said in told


def test_an_unknown_end_is_said_to_be_unknown(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_step=2 * MIB, limit=16 * GIB))
    assert found.ends is None and "  ends     unknown: the total of its steps is not known" in lines(found)
    facts = (found.trend, found.limit, found.limit_from, found.seen, None)
    alert = alert_text(Answer(*facts, found))
    assert alert is not None and "when it ends by itself is unknown" in alert and "+2.0 MiB a step" in alert


def test_few_evaluations_are_too_few_but_named(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_eval=400 * MIB, seconds=1000))
    assert found.trend.kind == UNKNOWN and found.phase == "eval"
    assert "too short to tell: it rose by 800 MiB lately, all in eval, which came 3 times" in lines(found)


def test_mapped_files_are_no_growth(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, files=MIB))
    assert found.trend.kind == FLAT and found.files_grown > 6 * GIB
    assert "files    12.6 GiB that it mapped or read, " in lines(found) and "no growth" in lines(found)


def test_a_leak_in_each_step(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_step=2 * MIB, limit=16 * GIB))
    assert found.trend.kind == GROWING and found.limit_from == "its limit" and found.limit == 16 * GIB
    assert found.bytes_per_step == pytest.approx(2 * MIB, rel=0.1)
    assert found.seconds_per_step == pytest.approx(7200 / 3240, rel=0.1)
    assert found.phase == "train"


def test_a_job_that_only_breathes(tmp_path: Path) -> None:
    """Loading, five gigabytes of page cache and evaluations are no growth."""
    found = trend(recorded(tmp_path))
    assert found.trend.kind == FLAT and found.trend.full_in is None
    assert found.bytes_per_step is None and found.phase == ""


def test_the_users_limit_comes_first(tmp_path: Path) -> None:
    found = trend(recorded(tmp_path, keeps_in_step=2 * MIB, limit=16 * GIB), 61 * GIB)
    assert (found.limit, found.limit_from) == (61 * GIB, "--limit")


def test_nothing_after_loading(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.sqlite", {})
    writer.put("phase", (0.0, "load", None, 7, None, None))
    for t in range(100):
        writer.put("job", (float(t), t * MIB, 0, 0, 0, 0, None, 1, None, None))
    writer.close()
    with open_recording(tmp_path / "r.sqlite").series() as series:
        assert run_trend(series) is None


def test_growth_of_the_workers(tmp_path: Path) -> None:
    """Four of them, started anew in the middle; the training itself stays as it is."""
    path = tmp_path / "recording.sqlite"
    writer = Writer(path, {})
    for t in range(0, 3600, 10):
        held = [100 * MIB + t * MIB // 10] * 4
        writer.put("job", (float(t), 900 * MIB + sum(held), 0, 0, 0, 0, 8 * GIB, 5, None, None))
        writer.put("process", (float(t), 50, 1, "main", "python3", 900 * MIB, 0, 0, 0, 900 * MIB))
        for number, use in enumerate(held):
            pid = 60 + number + (10 if t > 1800 else 0)
            writer.put(
                "process", (float(t), pid, 2, "worker", "pt_data_worker", use + 700 * MIB, 0, 0, 0, use)
            )
    writer.close()
    found = trend(path)
    assert found.trend.kind == GROWING and found.workers is not None
    assert found.workers[0] == 4 and found.workers[1] == pytest.approx(4 * 359 * MIB, rel=0.05)
    said = "\n".join(
        trend_lines("x", Answer(found.trend, found.limit, found.limit_from, found.seen, None, found))
    )
    assert "who      its 4 workers, +1.4 GiB: their dataset keeps what it reads" in said


def test_what_the_witnesses_found(tmp_path: Path) -> None:
    path = recorded(tmp_path, keeps_in_step=MIB)
    writer = Writer(path, {"boot_id": "b", "wall_offset": "1000.0"})
    lines = [["/x/lib.py", 9, "", 30 * MIB, 9, True]], [["/x/train.py", 41, "", 30 * MIB, 9, False]]
    figures = {"witness": "tracemalloc", "memory": "python", "steps": 30, "seconds": 20.0, "traced": 30 * MIB}
    for t, found in zip((5000.0, 5100.0), lines, strict=True):  # the deeper one comes after it
        writer.event(t, "agent:trace", "", **figures, lines=found)
    writer.event(5200.0, "agent:trace", "too little headroom", problem="too little headroom")
    writer.event(5300.0, "mappings", "24 more mappings of 64 MiB since 14:02: arenas")
    writer.event(5400.0, "agent:trim", "the C library kept 120 MiB", given=120 * MIB)
    writer.close()
    found = trend(path)
    answer = Answer(found.trend, found.limit, found.limit_from, found.seen, None, found)
    told = trend_lines("big", answer)
    assert "  made at  train.py:41 made 100% of it: +1.0 MiB a step (tracemalloc)" in told
    assert "  mapped   24 more mappings of 64 MiB since 14:02: arenas" in told
    assert "  proof    the C library kept 120 MiB" in told
    value = trend_json(answer)
    assert [place["line"] for place in value["where"]] == [41] and value["where"][0][
        "witness"
    ] == "tracemalloc"
    assert value["mappings"] and value["not_a_leak"]
    with open_recording(path).series() as series:
        growth = job_growth(series, 1000.0)
    assert growth is not None and growth.made_at.startswith("train.py:41 made 100% of it")
    assert [place.file for place in growth.where] == ["/x/train.py"]


@pytest.mark.parametrize(("seconds", "shown"), [(14.0, 0), (90.0, 1)])
def test_a_short_script_without_steps_gets_no_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch, seconds: float, shown: int
) -> None:
    """It loads; `oomproof trend` tells its growth to whoever asks."""
    grows = Trend(GROWING, Range(9.0, 10.0, 11.0), 0.0, 10 * seconds, 500.0, 500.0, None, None, None)
    monkeypatch.setattr(trend_text, "answer_of", lambda run: Answer(grows, None, "", seconds, None))
    assert len(trend_text.trend_rows(None)) == shown  # type: ignore[arg-type]


@pytest.mark.parametrize(("phase", "warm"), [("eval", 70.0), ("load", 610.0)])
def test_a_program_that_only_evaluates_or_never_uses_its_model_has_a_trend(
    tmp_path: Path, phase: str, warm: float
) -> None:
    """One word in all: an inference, a tokenizer that brings PyTorch along."""
    writer = Rows(path := tmp_path / "recording.sqlite")
    writer.put("phase", (10.0, phase, None, 7, None, None))
    for t in range(0, 1800, 2):
        writer.put("job", (float(t), GIB + t * MIB, 0, 0, 0, 0, 8 * GIB - t * MIB, 1, None, None))
    writer.close()
    found = trend(path)
    assert found.trend.kind == GROWING and found.seen == pytest.approx(1798 - warm)
    assert found.trend.rate is not None and found.trend.rate.expected == pytest.approx(MIB, rel=0.02)


def test_loading_is_over_with_the_first_steps_though_it_was_told_before() -> None:
    loads = [PhaseMark(10.0, "load", None, None, None)]
    assert warm_since([]) == float("-inf") and warm_since(loads) == 610.0
    steps = [PhaseMark(40.0 + step, "train", step, None, None) for step in range(1, 20)]
    assert warm_since([*loads, *steps]) == pytest.approx(46.0)
    assert warm_since([*loads, *steps[:3]]) == 641.0, "a first step may take long, but not for ever"


def test_what_was_pinned_for_a_card_is_no_growth(tmp_path: Path) -> None:
    """Eight GiB within the first steps of a short run."""
    path = tmp_path / "recording.sqlite"
    writer = Rows(path)
    for t in range(600):
        pinned = min(8 * GIB, max(0, t - 20) * GIB)
        writer.put("job", (float(t), LOADED + pinned, 0, 0, 0, 0, None, 1, None, None))
        writer.put("phase", (float(t), "train", t, 7, None, None))
    with_event = {"did": "ready", "bytes": 8 * GIB}
    writer.event(15.0, "agent:spill", "", did="pinning", bytes=8 * GIB)
    writer.event(28.5, "agent:spill", "8.0 GiB of host memory pinned", **with_event)
    writer.close()
    with open_recording(path, tmp_path).series() as series:
        found = run_trend(series)
    assert found is not None and found.trend.kind == FLAT and found.seen < 572
