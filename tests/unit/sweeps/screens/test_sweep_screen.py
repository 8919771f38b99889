"""A sweep's status, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

from oomproof.sweeps.screens.sweep_screen import as_json, as_text, estimate_text, list_text
from oomproof.sweeps.search_space import SearchSpace, parse_param
from oomproof.sweeps.sweep_folder import SweepOrder
from oomproof.sweeps.sweep_trials import SweepLog, fold
from oomproof.sweeps.time_estimate import estimate
from oomproof.sweeps.trial_plans import Knobs
from oomproof.units import MIB

SPACE = SearchSpace((parse_param("lr=0.1,0.2"), parse_param("batch=8,64,128")), "grid", "loss")
ORDER = SweepOrder(
    ("python", "train.py", "--batch", "{batch}"), "/tmp", SPACE, Knobs(accum="accum"), {}, False, 1
)


def log() -> SweepLog:
    events: list[dict[str, Any]] = []

    def add(number: int, values: dict[str, Any], run_as: dict[str, Any], **end: Any) -> None:
        events.append({"event": "asked", "trial": number, "values": values})
        events.append(
            {
                "event": "starting",
                "trial": number,
                "try": 1,
                "name": f"n{number}",
                "values": run_as,
                "wall": 100.0,
            }
        )
        if end:
            events.append({"event": "ended", "trial": number, "try": 1, **end})

    one = {"lr": "0.1", "batch": "8"}
    add(
        1,
        one,
        {**one, "accum": "1"},
        outcome="done",
        metric=0.5,
        seconds=60.0,
        peak=80 * MIB,
        run="r1",
        metric_source="x",
    )
    two = {"lr": "0.1", "batch": "64"}
    add(
        2,
        two,
        {**two, "batch": "32", "accum": "2"},
        outcome="done",
        metric=0.25,
        seconds=80.0,
        peak=320 * MIB,
    )
    three = {"lr": "0.1", "batch": "128"}
    add(
        3,
        three,
        three,
        outcome="out-of-memory",
        peak=590 * MIB,
        why="killed \x1b[2J by the kernel",
        cause="oom-kill-memcg",
    )
    events.append({"event": "asked", "trial": 4, "values": {"lr": "0.2", "batch": "128"}})
    events.append({"event": "skipped", "trial": 4, "why": "trial 3 died at 590 MiB", "predicted": 700 * MIB})
    add(5, {"lr": "0.2", "batch": "8"}, {"lr": "0.2", "batch": "8", "accum": "1"})
    return fold(events)


def test_for_people() -> None:
    text = as_text("s", ORDER, log(), "pid 7 since 10:00", 110, 130.0)
    lines = text.splitlines()
    assert lines[0].startswith("sweep s: running, by pid 7 since 10:00; grid search with python train.py")
    assert (
        lines[1]
        == "5 of 6 trials: 2 done, 1 running, 1 waiting, 1 skipped, 1 out of memory, about 2 min left"
    )
    assert "best: loss 0.25 with lr=0.1 batch=64 (trial 2)" in text
    assert "run as batch=32 accum=2" in text and "trial 3 died at 590 MiB" in text
    assert "\x1b" not in text, "what a job printed clears no screen"
    assert all(len(line) <= 110 for line in lines)


def test_unfinished_finished_and_without_a_metric() -> None:
    assert "continue: oomproof sweep resume s" in as_text("s", ORDER, log(), "", 100, 0.0)
    space = SearchSpace((parse_param("lr=0.1"),), "grid")
    order = SweepOrder(("true", "{lr}"), "/tmp", space, Knobs(), {}, False, 1)
    done = fold(
        [
            {"event": "asked", "trial": 1, "values": {"lr": "0.1"}},
            {"event": "skipped", "trial": 1, "why": "too large"},
        ]
    )
    text = as_text("s", order, done, "", 100, 0.0)
    assert "sweep s: finished" in text and "continue" not in text and "no --metric" in text
    assert "no trial yet" in as_text("s", order, fold([]), "", 100, 0.0)


def test_for_programs() -> None:
    told = json.loads(json.dumps(as_json("s", ORDER, log(), False, 130.0)))
    assert (
        told["schema"] == 1
        and told["state"] == "unfinished"
        and told["best"] == 2
        and told["trials_in_all"] == 6
    )
    assert told["counts"] == {
        "done": 2, "running": 1, "waiting": 0, "skipped": 1, "out-of-memory": 1, "failed": 0, "stopped": 0,
    }  # fmt: skip
    second, fourth = told["trials"][1], told["trials"][3]
    assert (
        second["run_as"]["batch"] == "32" and second["values"]["batch"] == "64" and second["metric"] == 0.25
    )
    assert (
        fourth["tries"] == []
        and fourth["predicted_bytes"] == 700 * MIB
        and fourth["why"] == "trial 3 died at 590 MiB"
    )


def test_the_list_and_the_estimate() -> None:
    text = list_text([("s", ORDER, log(), False)], 120, 0.0)
    assert "unfinished" in text and "loss 0.25" in text
    told = estimate(SPACE, ["python", "t.py", "--epochs", "8"], log(), 6, 1, 130.0)
    assert told is not None
    shown = estimate_text("s", told, 100)
    assert "a trial takes 70 s (60 s to 80 s), by 2 trials" in shown and "6 trials: 7 min in all" in shown
    assert "fewer epochs save time and no memory" in shown


def test_one_that_was_given_up_is_not_called_finished_and_nothing_of_it_waits() -> None:
    events: list[dict[str, Any]] = []
    for number, batch in ((1, "8"), (2, "64"), (3, "128")):
        values = {"lr": "0.1", "batch": batch}
        events += [
            {"event": "asked", "trial": number, "values": values},
            {"event": "starting", "trial": number, "try": 1, "name": "n", "values": values, "wall": 1.0},
            {
                "event": "ended",
                "trial": number,
                "try": 1,
                "outcome": "failed",
                "seconds": 2.0,
                "why": "ValueError",
            },
        ]
    failed = fold(events)
    text = as_text("mine", ORDER, failed, "", 100, 200.0)
    assert text.startswith("sweep mine: given up; ") and "3 of 6 trials: 3 failed, 3 not run" in text
    assert "waiting" not in text and " left" not in text
    assert as_json("mine", ORDER, failed, False, 200.0)["state"] == "given up"
    assert "given up" in list_text([("mine", ORDER, failed, False)], 100, 200.0)
