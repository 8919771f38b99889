"""How long a step will take: what recorded runs of the very command say, and where they say nothing."""

from __future__ import annotations

import pytest

from oomproof.plans.knobs import parse_knob, template_of
from oomproof.plans.plan import Plan
from oomproof.sizing.planning.step_times import Pace, pace_note, plan_in, step_text, step_time

TEMPLATE = template_of(["python", "t.py", "--bs", "{batch}", "--accum={accum}", "--lr", "0.1"])
LENGTHS = template_of(["python", "t.py", "--bs", "{batch}", "--seq", "{seq}"], [parse_knob("seq=512,256")])


def pace(batch: int, accum: int, seconds: float, said: str = "r1") -> Pace:
    return Pace(Plan.of({"batch": str(batch), "accum": str(accum)}), seconds, said)


def of(batch: int, accum: int) -> Plan:
    return pace(batch, accum, 0.0).plan


@pytest.mark.parametrize(
    ("line", "plan"),
    [
        ("python t.py --bs 64 --accum=2 --lr 0.1", "batch=64 accum=2"),
        ("python t.py --bs 64 --accum=2 --lr 0.2", None),
        ("python t.py --bs 64 --accum=2", None),
        ("python t.py --bs 64 --accum 2 --lr 0.1", None),
        ("python u.py --bs 64 --accum=2 --lr 0.1", None),
    ],
)
def test_only_the_same_command_counts(line: str, plan: str | None) -> None:
    found = plan_in(TEMPLATE, line.split())
    assert (str(found) if found is not None else None) == plan


def test_braces_as_they_stand_and_values_with_special_letters() -> None:
    template = template_of(["python", "t.py", '--x={{name}}.*"{batch}"'])
    assert str(plan_in(template, ["python", "t.py", '--x={name}.*"8"'])) == "batch=8"
    assert plan_in(template, ["python", "t.py", '--x={name}aa"8"']) is None


def test_at_the_same_batch_it_is_measured() -> None:
    told = step_time(TEMPLATE, [pace(64, 1, 0.4), pace(64, 1, 0.6), pace(64, 4, 2.0)], of(64, 2))
    assert told is not None and told.measured and told.seconds == pytest.approx(1.0), (
        "two passes of the median"
    )


def test_between_two_batches_on_their_line_and_not_far_beyond() -> None:
    runs = [pace(32, 1, 0.3), pace(64, 1, 0.5)]
    told = step_time(TEMPLATE, runs, of(48, 2))
    assert told is not None and not told.measured and told.seconds == pytest.approx(0.8)
    assert step_time(TEMPLATE, runs, of(128, 1)) is not None and step_time(TEMPLATE, runs, of(129, 1)) is None
    assert step_time(TEMPLATE, runs, of(16, 4)) is not None and step_time(TEMPLATE, runs, of(8, 8)) is None
    assert step_time(TEMPLATE, runs[:1], of(48, 2)) is None, "one batch tells nothing of another"
    assert step_time(TEMPLATE, [], of(48, 2)) is None


def test_a_run_of_another_length_does_other_work() -> None:
    run = Pace(Plan.of({"batch": "64", "seq": "512"}), 0.5, "r1")
    assert step_time(LENGTHS, [run], Plan.of({"batch": "64", "seq": "256"})) is None
    assert step_time(LENGTHS, [run], run.plan) is not None


def test_what_a_plan_costs_beside_the_run_before() -> None:
    runs = [pace(64, 1, 0.4, "mine"), pace(32, 2, 0.5), pace(16, 1, 0.1)]
    note = pace_note(TEMPLATE, runs, of(32, 2))
    assert note == "a step is expected to take 500 ms, × 1.2 of the 400 ms of mine (batch=64 accum=1)"
    assert pace_note(TEMPLATE, runs, of(64, 1)) == "", "it is the same"
    assert pace_note(TEMPLATE, runs, of(32, 4)) == "", "no run of that effective batch"


def test_steps_in_words() -> None:
    assert [step_text(seconds) for seconds in (0.0042, 0.9, 1.26, 240.4)] == [
        "4.2 ms",
        "900 ms",
        "1.3 s",
        "240 s",
    ]
