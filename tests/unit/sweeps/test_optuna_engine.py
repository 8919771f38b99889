"""The real Optuna behind a sweep: its storage follows the log, and deaths of memory steer its sampler away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers_disk import fill

from oomproof.errors import OomproofError
from oomproof.sweeps import sweep_folder
from oomproof.sweeps.optuna_engine import OptunaEngine
from oomproof.sweeps.search_space import Parameter, SearchSpace, distance, key_of, parse_param
from oomproof.sweeps.sweep_folder import Sweep
from oomproof.sweeps.sweep_trials import Trial, Try


@pytest.fixture
def sweep() -> Sweep:
    return sweep_folder.create("s", {})


def engine(
    sweep: Sweep, space: SearchSpace, trials: list[Trial] | None = None, said: list[str] | None = None
) -> OptunaEngine:
    return OptunaEngine(sweep, space, trials or [], 7, (said if said is not None else []).append)


def ended(
    number: int, values: dict[str, Any], state: str, metric: float | None = None, over: float | None = None
) -> Trial:
    attempt = Try(1, "n", values, 0.0, outcome=state, metric=metric, peak=5)
    return Trial(number, values, state, tries=[attempt], over=over)  # type: ignore[arg-type]


def stored(sweep: Sweep) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.storage_file}")
    return study.get_trials()


def states(sweep: Sweep) -> list[str]:
    return [frozen.state.name for frozen in stored(sweep)]


def test_a_full_disk_is_told_as_one(small_disk: Path) -> None:
    """Optuna calls it "exceeding max length"."""
    full = Sweep(small_disk)
    made = engine(full, SearchSpace((parse_param("a=1,2"),), "grid", "loss"))
    fill(small_disk)
    with pytest.raises(OomproofError, match="no space left for") as error:
        for number in range(1, 200):
            made.ask(number, set())
    assert "oomproof sweep resume" in error.value.hint


def test_a_grid_and_how_each_point_ended(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("a=1,2"), Parameter("b", "values", ([1, 2], None))), "grid", "loss")
    made = engine(sweep, space)
    tried: set[str] = set()
    points = []
    for number in range(1, 6):
        point = made.ask(number, tried)
        if point is not None:
            points.append(point)
            tried.add(key_of(point))
    assert points == list(space.grid()) and len(points) == 4, "each once, then no more"
    for number, (state, metric) in enumerate(
        (("done", 0.5), ("failed", None), ("out-of-memory", None), ("skipped", None)), 1
    ):
        made.tell(ended(number, points[number - 1], state, metric))
    assert states(sweep) == ["COMPLETE", "FAIL", "PRUNED", "PRUNED"]
    assert stored(sweep)[0].value == 0.5 and stored(sweep)[2].user_attrs["peak_bytes"] == 5


def test_a_metric_that_is_no_number_is_a_failure_to_the_sampler(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("a=1,2"),), "grid", "loss")
    made = engine(sweep, space)
    for number, metric in ((1, float("nan")), (2, None)):
        point = made.ask(number, {"x"} if number == 1 else {key_of({"a": "1"})})
        assert point is not None
        made.tell(ended(number, point, "done", metric))
    assert states(sweep) == ["FAIL", "FAIL"]


def test_what_was_killed_before_it_was_written_down_is_given_up(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("lr=0.1..0.9"),), "bayes", "loss", trials=9)
    first = engine(sweep, space)
    known = first.ask(1, set())
    assert known is not None
    first.ask(2, {key_of(known)})  # and killed here: the log has only trial 1
    second = engine(sweep, space, [Trial(1, known, "running")])
    assert states(sweep) == ["RUNNING", "FAIL"]
    again = second.ask(2, {key_of(known)})
    assert again is not None and again != known
    third = engine(sweep, space, [ended(1, known, "done", 0.3), Trial(2, again, "running")])
    assert states(sweep) == ["COMPLETE", "FAIL", "RUNNING"], "what ended meanwhile is told"
    assert third.ask(3, {key_of(known), key_of(again)}) not in (known, again, None)


@pytest.mark.parametrize("damage", ["removed", "garbage", "truncated"])
def test_its_file_is_made_again_from_the_log(sweep: Sweep, damage: str) -> None:
    space = SearchSpace((parse_param("lr=0.1..0.9"), parse_param("n=1..9")), "bayes", "loss", trials=9)
    made = engine(sweep, space)
    points = []
    for number in (1, 2):
        point = made.ask(number, {key_of(point) for point in points})
        assert point is not None
        points.append(point)
    trials = [ended(1, points[0], "done", 0.3), Trial(2, points[1], "running")]
    path: Path = sweep.storage_file
    if damage == "removed":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    else:
        path.write_bytes(path.read_bytes()[:5000])
    said: list[str] = []
    engine(sweep, space, trials, said)
    assert states(sweep) == ["COMPLETE", "RUNNING"]
    assert [frozen.params for frozen in stored(sweep)] == points
    assert bool(said) == (damage != "removed") and all("made again" in line for line in said)


@pytest.mark.parametrize("damage", ["removed", "garbage"])
def test_its_file_may_be_damaged_while_the_sweep_runs(sweep: Sweep, damage: str) -> None:
    space = SearchSpace((parse_param("lr=0.1..0.9"),), "bayes", "loss", trials=9)
    trials: dict[int, Trial] = {}
    said: list[str] = []
    made = OptunaEngine(sweep, space, trials.values(), 1, said.append)
    for number in (1, 2):
        point = made.ask(number, {key_of(trial.values) for trial in trials.values()})
        assert point is not None
        trials[number] = Trial(number, point, "running")
        if number == 1:
            trials[1] = ended(1, point, "done", 0.3)
            made.tell(trials[1])
    path: Path = sweep.storage_file
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(b"garbage" * 10_000)
        path.with_name(f"{path.name}-journal").write_bytes(b"garbage" * 1000)
    trials[2] = ended(2, trials[2].values, "done", 0.2)
    made.tell(trials[2])
    third = made.ask(3, {key_of(trial.values) for trial in trials.values()})
    assert third not in (None, trials[1].values, trials[2].values)
    assert states(sweep)[:2] == ["COMPLETE", "COMPLETE"] and states(sweep)[-1] == "RUNNING" and len(said) == 1


def test_a_failed_trial_that_runs_again(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("a=1,2"),), "grid", "loss")
    made = engine(sweep, space)
    point = made.ask(1, set())
    assert point is not None
    made.tell(ended(1, point, "failed"))
    again = engine(sweep, space, [Trial(1, point, "waiting")])
    assert states(sweep) == ["FAIL", "RUNNING"]
    again.tell(ended(1, point, "done", 0.1))
    assert states(sweep) == ["FAIL", "COMPLETE"]


def test_a_resumed_search_does_not_begin_anew(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("lr=0.1..0.9"),), "random", "loss", trials=9)
    trials: list[Trial] = []
    for number in range(1, 6):  # killed after each
        point = engine(sweep, space, trials).ask(number, {key_of(trial.values) for trial in trials})
        assert point is not None
        trials.append(ended(number, point, "done", 0.1))
    assert len({key_of(trial.values) for trial in trials}) == 5


def test_deaths_of_memory_steer_the_sampler_away() -> None:
    """The metric gets better the larger the size is, but above 40 nothing fits: told as deaths of memory, and as failures, of
    which Optuna learns nothing."""
    fitting = {}
    for state in ("out-of-memory", "failed"):
        made = engine(
            sweep_folder.create(state, {}),
            SearchSpace((parse_param("size=1.0..100.0"),), "bayes", "score", "maximize", trials=36),
        )
        tried: set[str] = set()
        asked = []
        for number in range(1, 37):
            point = made.ask(number, tried)
            assert point is not None
            tried.add(key_of(point))
            asked.append(float(point["size"]))
            fits = asked[-1] <= 40
            made.tell(
                ended(number, point, "done", asked[-1])
                if fits
                else ended(number, point, state, over=asked[-1] / 40 - 1)
            )
        fitting[state] = sum(size <= 40 for size in asked[18:])
    assert fitting["out-of-memory"] >= 8 and fitting["out-of-memory"] > 1.3 * fitting["failed"], fitting


def test_of_few_points_the_nearest_that_was_not_tried(sweep: Sweep) -> None:
    space = SearchSpace((parse_param("n=1..6"), parse_param("o=a,b")), "bayes", "loss", trials=99)
    made = engine(sweep, space)
    tried: set[str] = set()
    for number in range(1, 14):
        point = made.ask(number, tried)
        if point is None:
            break
        assert key_of(point) not in tried
        tried.add(key_of(point))
        made.tell(ended(number, point, "done", float(point["n"])))
    assert len(tried) == 12, "every point once, and then an end"
    assert distance(space.parameters, {"n": 1, "o": "a"}, {"n": 2, "o": "a"}) < distance(
        space.parameters, {"n": 1, "o": "a"}, {"n": 1, "o": "b"}
    )


def test_values_of_every_kind_come_back_as_they_are(sweep: Sweep) -> None:
    space = SearchSpace(
        (
            parse_param("lr=1e-5..1e-3:log"), parse_param("n=2..20:step=2"), parse_param("d=0.0..0.5:step=0.1"),
            Parameter("flag", "values", (True, False, 1)), Parameter("noise", "normal", (), 0.0, 1.0),
            Parameter("bs", "float", (), 32, 256, True, 8.0, True),
        ),
        "random", "loss", trials=9,
    )  # fmt: skip
    made = engine(sweep, space)
    for number in range(1, 9):
        point = made.ask(number, set())
        assert point is not None
        assert 1e-5 <= point["lr"] <= 1e-3 and point["n"] % 2 == 0 and isinstance(point["n"], int)
        assert (
            point["d"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
            and point["bs"] % 8 == 0
            and isinstance(point["bs"], int)
        )
        assert abs(point["noise"]) < 4
