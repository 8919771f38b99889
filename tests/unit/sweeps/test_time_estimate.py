"""How long a sweep takes, and what fewer epochs would save."""

from __future__ import annotations

from typing import Any

import pytest

from oomproof.sweeps.search_space import Parameter, SearchSpace, parse_param
from oomproof.sweeps.sweep_trials import SweepLog, fold
from oomproof.sweeps.time_estimate import (
    EarlierRun,
    estimate,
    expected_seconds,
    nothing_told,
    seconds_left,
    share_of_epochs,
    time_knob,
    trials_left,
)

WORDS = ["python", "train.py", "--lr", "{lr}", "--epochs", "10"]
SPACE = SearchSpace((parse_param("lr=1,2,3,4,5"),), "grid", "loss")


def log_of(*seconds: float, **values: Any) -> SweepLog:
    events: list[dict[str, Any]] = []
    for number, lasted in enumerate(seconds, 1):
        own = {
            name: value[number - 1] if isinstance(value, list) else value for name, value in values.items()
        }
        events += [
            {"event": "asked", "trial": number, "values": own},
            {"event": "starting", "trial": number, "try": 1, "name": "n", "values": own, "wall": 0.0},
            {"event": "ended", "trial": number, "try": 1, "outcome": "done", "seconds": lasted},
        ]
    return fold(events)


def test_days_in_all_and_what_fewer_epochs_save() -> None:
    told = estimate(SPACE, WORDS, log_of(3600.0, 3800.0, 3700.0), 5, 1, 0.0, startup=100.0)
    assert told is not None
    assert (told.trial_seconds, told.low, told.high, told.basis) == (3700.0, 3600.0, 3800.0, "3 trials")
    assert (told.trials, told.left, told.total_seconds, told.left_seconds) == (5, 2, 18500.0, 7400.0)
    assert told.knob == "epochs"
    assert [row.count for row in told.fewer] == [10, 5, 2]
    assert told.fewer[1].trial_seconds == pytest.approx(100 + 5 * 360), "starting up is not made shorter"


def test_several_at_once() -> None:
    told = estimate(SPACE, WORDS, log_of(100.0), 5, 2, 0.0)
    assert told is not None and told.total_seconds == 250.0 and told.left_seconds == 200.0


def test_epochs_that_are_searched_tell_what_one_takes() -> None:
    space = SearchSpace((parse_param("epochs=2,4,8"),), "grid", "loss")
    told = estimate(space, ["python", "t.py", "{epochs}"], log_of(50.0, 90.0, epochs=["2", "4"]), 3, 1, 0.0)
    assert told is not None and told.knob == "epochs" and told.fewer[0].count == 4
    assert told.fewer[1].trial_seconds == pytest.approx(50.0), "10 to start, 20 an epoch"


def test_by_the_first_trials_own_progress() -> None:
    told = estimate(SPACE, WORDS, fold([]), 5, 1, 0.0, so_far=1000.0)
    assert (
        told is not None and told.basis == "the first trial's own progress" and told.total_seconds == 5000.0
    )
    assert estimate(SPACE, WORDS, fold([]), 5, 1, 0.0) is None


def test_which_argument_counts_epochs() -> None:
    assert time_knob(SPACE, WORDS) == ("epochs", 10)
    assert time_knob(SPACE, ["python", "t.py", "--num_train_epochs=3", "trainer.max_steps=500"]) == (
        "trainer.max_steps",
        500,
    )
    fixed = SearchSpace((Parameter("max_epochs", "values", (7,)),), "grid")
    assert time_knob(fixed, ["${args}"]) == ("max_epochs", 7)
    assert time_knob(SPACE, ["python", "t.py", "--eval_steps", "50", "--warmup_steps", "5"]) == ("", None)


def test_time_left() -> None:
    log = log_of(100.0, 100.0)
    assert seconds_left(log, 1, 0.0, 3) == 300.0
    running = fold(
        [
            {"event": "asked", "trial": 9, "values": {}},
            {"event": "starting", "trial": 9, "try": 1, "name": "n", "values": {}, "wall": 1000.0},
        ]
    )
    log.trials.update(running.trials)
    assert seconds_left(log, 1, 1040.0, 1) == 160.0
    assert seconds_left(log, 1, 9999.0, 0, running_only=True) == 0.0
    assert seconds_left(log, 1, 900.0, 0) == 100.0, "a clock that was set back"
    assert seconds_left(fold([]), 1, 0.0, 3) is None
    assert trials_left(SPACE, log, 5) == 2


def test_progress_by_epochs() -> None:
    bar = "epoch {}: {}%|██| {}/20 [00:01<00:01, 20.0it/s]\r"
    text = "".join(bar.format(epoch, 100, 20) for epoch in range(3)) + bar.format(3, 50, 10)
    assert share_of_epochs(text, 14) == pytest.approx(3.5 / 14)
    assert share_of_epochs("Epoch 1/10\nEpoch 2/10\n", None) == pytest.approx(0.1), (
        "the second has only begun"
    )
    assert share_of_epochs("no bar", 10) is None and share_of_epochs("epoch 50", 10) is None


def test_of_a_script_that_prints_nothing_earlier_runs_tell() -> None:
    assert expected_seconds([], "epochs", 10) is None
    short = EarlierRun(70.0, 1, 10.0)
    assert expected_seconds([short], "epochs", 10) == (
        610.0,
        "an earlier run of its script with epochs 1, made 10",
    )
    whole = [EarlierRun(600.0, 10), EarlierRun(640.0, 10), short]
    assert expected_seconds(whole, "epochs", 10) == (620.0, "2 earlier runs of its script with epochs 10")
    assert expected_seconds([EarlierRun(50.0, None)], "", None) == (50.0, "an earlier run of its script")
    assert expected_seconds([EarlierRun(50.0, None)], "epochs", 10) is None, (
        "how many epochs it had, nobody knows"
    )
    told = estimate(SPACE, WORDS, fold([]), 5, 1, 0.0, so_far=610.0, basis="an earlier run")
    assert told is not None and told.basis == "an earlier run" and told.total_seconds == 3050.0


def test_where_nothing_tells_it_is_said_how_to_learn_it() -> None:
    stopped = fold(
        [
            {"event": "asked", "trial": 1, "values": {"lr": 1}},
            {"event": "starting", "trial": 1, "try": 1, "name": "n", "values": {"lr": 1}, "wall": 0.0},
            {"event": "ended", "trial": 1, "try": 1, "outcome": "stopped", "seconds": 300.0},
        ]
    )
    told, hint = nothing_told("first", SPACE, WORDS, stopped, 5, 400.0)
    assert told.endswith("one takes more than 5 min, all 5 more than 25 min"), told
    assert "oomproof run -- python train.py --lr 1 --epochs 1; then oomproof sweep estimate first" in hint
    _, hint = nothing_told("first", SPACE, ["python", "t.py", "--lr", "{lr}"], stopped, 5, 400.0)
    assert hint == "let one end: oomproof sweep resume first"
