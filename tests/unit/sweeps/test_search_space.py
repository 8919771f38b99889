"""--param as a search space, its points, and what cannot be searched."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.records import asdict
from oomproof.sweeps.search_space import (
    MOST_POINTS,
    Parameter,
    SearchSpace,
    checked_space,
    default_method,
    key_of,
    parse_param,
    shown,
    space_from_json,
)


def test_what_may_be_typed() -> None:
    assert parse_param("batch=16,32,64") == Parameter("batch", "values", ("16", "32", "64"))
    assert parse_param("lr=1e-5..1e-3:log") == Parameter("lr", "float", (), 1e-5, 1e-3, True)
    assert parse_param("layers=2..8") == Parameter("layers", "int", (), 2.0, 8.0)
    assert parse_param("dropout=0.0..0.5:step=0.1").all_values() == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_param("width=64..256:step=64").all_values() == [64, 128, 192, 256]
    assert parse_param("opt=a\\,b,c").values == ("a,b", "c"), "a comma inside a value"
    assert parse_param("lr=1e-4").values == ("1e-4",), (
        "as it was typed, so that the script gets the same text"
    )
    assert parse_param("x=-1..1").all_values() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr", "cannot read --param 'lr'"),
        ("lr=", "cannot read"),
        ("9x=1,2", "cannot read"),
        ("lr=1..", "as a range"),
        ("lr=3..1", "from 3 to 1 is no range"),
        ("lr=1..1", "from 1 to 1 is no range"),
        ("lr=0..1:log", "begins above 0"),
        ("lr=1..2:lgo", "unknown word 'lgo'; did you mean 'log'?"),
        ("lr=0.0..0.5:step=2", "no step of 2 fits"),
        ("lr=a,a", "a value twice"),
        ("n=1..9:log:step=2", "exclude each other"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(OomproofError) as error:
        parse_param(text)
    assert says in str(error.value) and error.value.hint and error.value.status == 2


def test_the_points_of_a_grid_each_once() -> None:
    space = SearchSpace((parse_param("a=1,2"), parse_param("b=1..3")), "grid")
    points = list(space.grid())
    assert points[0] == {"a": "1", "b": 1} and points[1] == {"a": "1", "b": 2}, "the last changes first"
    assert len({key_of(point) for point in points}) == len(points) == space.points == 6


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (SearchSpace(()), "nothing to sweep"),
        (SearchSpace((parse_param("a=1,2"), parse_param("a=3,4")), "grid"), "--param a is given twice"),
        (SearchSpace((parse_param("a=1,2"),), "bayes"), "needs a metric"),
        (SearchSpace((parse_param("a=0.1..0.2"),), "grid"), "a can be any number"),
        (SearchSpace((parse_param("a=0.1..0.2"),), "random"), "how many trials?"),
        (SearchSpace((parse_param(f"a=1..{MOST_POINTS + 1}"),), "grid"), "a grid of 100,001 points"),
        (SearchSpace((parse_param("a=1,2"),), "grid", trials=0), "runs nothing"),
    ],
)
def test_what_cannot_be_searched(space: SearchSpace, says: str) -> None:
    with pytest.raises(OomproofError) as error:
        checked_space(space)
    assert says in str(error.value) and error.value.hint


def test_the_method_that_was_meant() -> None:
    lists, ranges = (parse_param("a=1,2"), parse_param("b=1,2,3")), (parse_param("a=0.1..0.2"),)
    assert default_method(lists, "loss", None) == "grid"
    assert default_method(lists, "loss", 6) == "grid"
    assert default_method(lists, "loss", 4) == "bayes", "fewer than there are: some are chosen"
    assert default_method(lists, None, 4) == "random"
    assert default_method(ranges, "loss", 10) == "bayes"


def test_it_is_the_same_after_a_way_over_the_disk() -> None:
    space = SearchSpace(
        (parse_param("a=1,2"), parse_param("b=1e-3..1:log")), "random", "loss", "maximize", 0.9, 7
    )
    assert space_from_json(json.loads(json.dumps(asdict(space)))) == space
    with pytest.raises(ValueError):
        space_from_json({**asdict(space), "method": "magic"})


@given(st.floats(0.001, 0.999), st.floats(-5, 5), st.floats(0.1, 3), st.booleans())
def test_a_normal_distribution_and_back(sample: float, mean: float, deviation: float, log: bool) -> None:
    parameter = Parameter("x", "normal", (), mean, deviation, log)
    value = parameter.clean(sample)
    assert parameter.sample_of(value) == pytest.approx(sample, abs=1e-6)
    assert not log or value > 0


@given(st.floats(1.0, 1e4), st.sampled_from([0.1, 0.5, 8.0]))
def test_steps_are_multiples(sample: float, step: float) -> None:
    value = Parameter("x", "float", (), 1.0, 1e4, True, step).clean(sample)
    assert math.isclose(value / step, round(value / step), abs_tol=1e-6) and abs(value - sample) <= step


def test_shown_to_people() -> None:
    assert shown({"lr": 0.000123456, "batch": 64, "opt": "adam"}) == "lr=0.0001235 batch=64 opt=adam"
