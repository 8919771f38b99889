"""How a trial may shrink without becoming another one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.plans.knobs import parse_knob
from oomproof.records import asdict
from oomproof.sweeps.search_space import Parameter, parse_param
from oomproof.sweeps.trial_plans import Knobs, knobs_from_json, knobs_of, plans_of

BATCH = parse_param("batch=16,32,64")
WORDS = ["python", "train.py", "--batch", "{batch}", "--accum", "{accum}", "--workers", "{workers}"]


def as_run(point: dict[str, object], knobs: Knobs) -> list[dict[str, object]]:
    return [{**values, **further} for values, further in plans_of(point, knobs)]


def test_workers_first_then_the_batch_in_pieces() -> None:
    knobs = knobs_of(WORDS, [BATCH], [parse_knob("workers=4..0")], None)
    assert knobs.accum == "accum"
    plans = as_run({"batch": "16"}, knobs)
    assert plans[0] == {"batch": "16", "accum": "1", "workers": "4"}
    assert [plan["workers"] for plan in plans[:4]] == ["4", "2", "1", "0"]
    assert [(plan["batch"], plan["accum"]) for plan in plans[4:]] == [
        ("8", "2"),
        ("4", "4"),
        ("2", "8"),
        ("1", "16"),
    ]


@given(st.integers(1, 2000))
def test_the_effective_batch_never_changes(batch: int) -> None:
    knobs = Knobs(accum="accum")
    for plan in as_run({"batch": batch, "lr": 0.1}, knobs):
        assert int(str(plan["batch"])) * int(str(plan["accum"])) == batch
        assert isinstance(plan["batch"], int), "a number stays a number"


def test_a_searched_batch_without_accumulation_is_never_split() -> None:
    assert as_run({"batch": "64"}, Knobs()) == [{"batch": "64"}]
    assert as_run({"lr": 0.1}, Knobs()) == [{"lr": 0.1}]


def test_a_batch_that_the_user_lets_move() -> None:
    knobs = knobs_of(["python", "--bs", "{bs}"], [parse_param("lr=1,2")], [parse_knob("bs=64,48,16")], None)
    assert [plan["bs"] for plan in as_run({"lr": "1"}, knobs)] == ["64", "48", "16"]


def test_the_accumulation_of_a_file_that_stands_fixed() -> None:
    parameters = [parse_param("batch_size=64,32"), Parameter("gradient_accumulation_steps", "values", (2,))]
    knobs = knobs_of(["python", "t.py", "${args}"], parameters, [], None)
    plans = as_run({"batch_size": 64, "gradient_accumulation_steps": 2}, knobs)
    assert plans[0] == {"batch_size": 64, "gradient_accumulation_steps": 2}
    assert plans[1] == {"batch_size": 32, "gradient_accumulation_steps": 4}
    searched = [parse_param("batch_size=64,32"), parse_param("gradient_accumulation_steps=1,2")]
    assert knobs_of(["${args}"], searched, [], None).accum is None, "what is searched is the user's"


def test_a_given_effective_batch() -> None:
    knobs = knobs_of(WORDS[:6], [BATCH], [], 128)
    assert as_run({"batch": "32"}, knobs)[:2] == [
        {"batch": "32", "accum": "4"},
        {"batch": "16", "accum": "8"},
    ]


@pytest.mark.parametrize(
    ("words", "parameters", "knobs", "effective", "says"),
    [
        (
            WORDS[:6],
            [parse_param("batch=48,60")],
            [],
            100,
            "no micro-batch of batch divides the effective batch 100",
        ),
        (WORDS[:6], [BATCH], [], 96, "--effective 96 cannot be made of batches of 64"),
        (WORDS[:4], [BATCH], [], 128, "nothing accumulates"),
        (WORDS[:2], [parse_param("lr=1,2")], [], 128, "needs a batch that can change"),
        (WORDS, [BATCH], ["batch=64..2"], None, "batch is given with --param and with --knob"),
        (WORDS[:2], [BATCH], ["workers=4..0"], None, "the command does not use {workers}"),
    ],
)
def test_what_cannot_be(
    words: list[str], parameters: list[Parameter], knobs: list[str], effective: int | None, says: str
) -> None:
    with pytest.raises(OomproofError) as error:
        knobs_of(words, parameters, [parse_knob(text) for text in knobs], effective)
    assert says in str(error.value) and error.value.hint


def test_over_the_disk() -> None:
    knobs = knobs_of(WORDS, [BATCH], [parse_knob("workers=8,4,0")], 128)
    assert knobs_from_json(json.loads(json.dumps(asdict(knobs)))) == knobs
