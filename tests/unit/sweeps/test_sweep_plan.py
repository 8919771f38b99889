"""What a sweep does next: plain trials in, one step out."""

from __future__ import annotations

from typing import Any

import pytest

from oomproof.sweeps.search_space import SearchSpace, parse_param
from oomproof.sweeps.sweep_plan import SweepView, choose_plan, measured_in, next_action, shape_json
from oomproof.sweeps.sweep_trials import SweepLog, fold
from oomproof.sweeps.trial_memory import shape_of
from oomproof.sweeps.trial_plans import Knobs
from oomproof.units import MIB

GRID = SearchSpace((parse_param("batch=8,16,64"),), "grid", "loss")


def asked(trial: int, **values: Any) -> dict[str, Any]:
    return {"event": "asked", "trial": trial, "values": values, "wall": float(trial)}


def starting(trial: int, attempt: int = 1, need: int | None = None, **values: Any) -> dict[str, Any]:
    return {
        "event": "starting",
        "trial": trial,
        "try": attempt,
        "name": f"t{trial}",
        "values": values,
        "need": need,
        "wall": 1.0,
    }


def ended(trial: int, outcome: str, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "event": "ended",
        "trial": trial,
        "try": attempt,
        "outcome": outcome,
        "budget": {"host": 600 * MIB},
        **fields,
    }


def ran(trial: int, batch: int, outcome: str = "done", **fields: Any) -> list[dict[str, Any]]:
    fields.setdefault("peak", batch * 10 * MIB)
    return [asked(trial, batch=batch), starting(trial, batch=batch), ended(trial, outcome, **fields)]


def view(*events: dict[str, Any], space: SearchSpace = GRID, **fields: Any) -> SweepView:
    return SweepView(space, fold(events), **fields)


def test_ask_start_wait_finish() -> None:
    assert next_action(view()).step == "ask"
    assert next_action(view(asked(1, batch=8))).step == "start"
    assert next_action(view(asked(1, batch=8), starting(1, batch=8))).step == "wait"
    assert next_action(view(*ran(1, 8))).step == "ask"
    done = [*ran(1, 8), *ran(2, 16), *ran(3, 64)]
    assert next_action(view(*done)).step == "finish" and next_action(view(*done)).ok


def test_a_need_that_is_unknown_has_the_machine_for_itself() -> None:
    unknown = [asked(1, batch=8), starting(1, batch=8), asked(2, batch=16)]
    assert next_action(view(*unknown, parallel=4)).step == "wait"
    assert next_action(view(*unknown, parallel=4, need="2G")).step == "start", "unless the user gives one"
    known = [*ran(1, 8), asked(2, batch=8), starting(2, need=80 * MIB, batch=8), asked(3, batch=8)]
    action = next_action(view(*known, parallel=4))
    assert action.step == "start" and action.need is not None and 80 * MIB <= action.need < 90 * MIB
    assert next_action(view(*known, parallel=4, queueing=True)).step == "wait", (
        "one that waits for memory: no more fit"
    )
    assert next_action(view(*known, parallel=1)).step == "wait"


def test_what_cannot_fit_is_skipped_before_it_costs_anything() -> None:
    events = [*ran(1, 8), *ran(2, 16), asked(3, batch=64)]
    action = next_action(view(*events, budget={"host": 300 * MIB}))
    assert action.step == "skip" and "would need about 640 MiB" in action.why
    assert action.over == pytest.approx(640 / 300 - 1)
    assert next_action(view(*events, budget={"host": 900 * MIB})).step == "start"
    assert next_action(view(*events)).step == "start", "nothing is known of the machine"
    assert next_action(view(*events, budget={"host": 300 * MIB}, try_all=True)).step == "start"


def test_a_death_makes_it_smaller_at_equal_effective_batch() -> None:
    death = ended(1, "out-of-memory", peak=590 * MIB, where="host", bound=True, again=True, shrunk=True)
    events = [asked(1, batch=64), starting(1, batch=64), death]
    action = next_action(view(*events, budget={"host": 600 * MIB}, knobs=Knobs(accum="accum")))
    assert action.step == "start" and {**action.values, **action.further} == {"batch": 32, "accum": "2"}
    without = next_action(view(*events, budget={"host": 600 * MIB}))
    assert without.step == "skip" and "trial 1 died at 590 MiB" in without.why
    tried = view(*events, asked(2, batch=64), budget={"host": 600 * MIB}, try_all=True)
    assert choose_plan(tried, tried.log.trials[2]).step == "start", "--try-all: only its own deaths count"
    assert choose_plan(tried, tried.log.trials[1]).step == "skip"


def test_a_death_while_loading_is_met_with_no_smaller_batch() -> None:
    death = ended(
        1, "out-of-memory", peak=590 * MIB, where="host", bound=True, not_loaded=["batch", "workers"]
    )
    first = {"batch": 64, "layers": 8}
    events = [asked(1, **first), starting(1, **first), death]
    told = view(*events, budget={"host": 600 * MIB}, knobs=Knobs(accum="accum"))
    assert choose_plan(told, told.log.trials[1]).step == "skip", "no split of its batch"
    for values, step in (
        ({"batch": 1, "layers": 8}, "skip"),
        ({"batch": 1, "layers": 9}, "skip"),
        ({"batch": 64, "layers": 7}, "start"),
    ):
        other = view(*events, asked(2, **values), budget={"host": 600 * MIB})
        action = choose_plan(other, other.log.trials[2])
        assert action.step == step, values
        assert step == "start" or "died at 590 MiB while loading, before its first batch" in action.why
    larger = view(*events, asked(2, **first), budget={"host": 900 * MIB})
    assert choose_plan(larger, larger.log.trials[2]).step == "start", "it may hold more now"
    damaged = view(*events[:2], {**death, "not_loaded": 7}, budget={"host": 600 * MIB})
    assert damaged.log.trials[1].tries[0].not_loaded == ()


def test_a_death_that_a_neighbour_may_have_caused_is_tried_alone() -> None:
    death = ended(1, "out-of-memory", peak=300 * MIB, where="host", bound=False, again=True, beside=1)
    events = [
        asked(1, batch=64),
        starting(1, batch=64),
        death,
        asked(2, batch=8),
        starting(2, need=80 * MIB, batch=8),
    ]
    assert next_action(view(*events, parallel=4, need="100M")).step == "wait"
    assert not measured_in(view(*events).log, "host"), "and is no bound"


def test_a_card_has_its_own_bounds() -> None:
    death = ended(
        1,
        "out-of-memory",
        peak=900 * MIB,
        gpu_peak=7000 * MIB,
        where="gpu",
        bound=True,
        budget={"gpu": 8000 * MIB},
    )
    events = [asked(1, batch=64), starting(1, batch=64), death, asked(2, batch=64)]
    action = next_action(view(*events, budget={"host": 1000 * MIB, "gpu": 8000 * MIB}))
    assert action.step == "skip" and action.why.endswith("of GPU memory")
    assert next_action(view(*events, budget={"host": 1000 * MIB, "gpu": 24000 * MIB})).step == "start"


def test_sizes_that_were_sized_first() -> None:
    first = next_action(view(asked(1, batch=8), need="auto", budget={"host": 600 * MIB}))
    assert first.step == "size"
    sized = {
        "event": "sized",
        "shape": shape_json(shape_of({"batch": 8})),
        "host": {"low": 700 * MIB, "expected": 800 * MIB, "high": 900 * MIB},
    }
    action = next_action(view(asked(1, batch=8), sized, need="auto", budget={"host": 600 * MIB}))
    assert action.step == "skip" and "would need about 800 MiB, as sized" in action.why
    fits = next_action(view(asked(1, batch=8), sized, need="auto", budget={"host": 2000 * MIB}))
    assert fits.step == "start" and fits.need == 800 * MIB
    refused = {"event": "sized", "shape": shape_json(shape_of({"batch": 8}))}
    assert next_action(view(asked(1, batch=8), refused, need="auto")).step == "start", (
        "what cannot be sized is not asked again"
    )


def test_skipped_points_of_a_search_are_replaced_and_of_a_grid_counted() -> None:
    skip = {"event": "skipped", "trial": 2, "why": "too large"}
    search = SearchSpace((parse_param("batch=1..999"),), "random", trials=2)
    assert next_action(view(*ran(1, 8), asked(2, batch=900), skip, space=search)).step == "ask"
    grid = SearchSpace((parse_param("batch=8,900"),), "grid")
    assert next_action(view(*ran(1, 8), asked(2, batch=900), skip, space=grid)).step == "finish"
    many = [
        event
        for number in range(1, 51)
        for event in (asked(number, batch=number), {"event": "skipped", "trial": number, "why": "x"})
    ]
    action = next_action(view(*many, space=search))
    assert action.step == "finish" and not action.ok and "50 points in a row would not fit" in action.why


def test_a_script_that_always_fails_is_given_up_and_one_that_lived_once_is_not() -> None:
    space = SearchSpace((parse_param("batch=1..99"),), "random", "loss", trials=20)
    failures = [event for number in (1, 2, 3) for event in ran(number, number, "failed", why="no such file")]
    action = next_action(view(*failures, space=space))
    assert action.step == "finish" and not action.ok and "none for memory: no such file" in action.why
    assert next_action(view(*failures, asked(4, batch=4), starting(4, batch=4), space=space)).step == "wait"
    assert next_action(view(*ran(4, 4), *failures, space=space)).step == "ask"
    deaths = [
        event
        for number in (1, 2, 3)
        for event in ran(number, number, "out-of-memory", where="host", bound=True)
    ]
    assert next_action(view(*deaths, space=space)).step == "ask", "deaths of memory never end a sweep"


def test_a_metric_that_is_never_told() -> None:
    search = SearchSpace((parse_param("batch=1..99"),), "bayes", "loss", trials=20)
    silent = [event for number in (1, 2, 3) for event in ran(number, number)]
    assert next_action(view(*silent, space=search)).step == "finish"
    assert next_action(view(*silent, space=search, named=True)).step == "ask"
    by_chance = SearchSpace(search.parameters, "random", "loss", trials=20)
    assert next_action(view(*silent, space=by_chance)).step == "ask", "who does not learn from it goes on"


def test_a_target_that_was_reached() -> None:
    space = SearchSpace((parse_param("batch=1..99"),), "random", "loss", target=0.5, trials=20)
    assert next_action(view(*ran(1, 8, metric=0.7), space=space)).step == "ask"
    action = next_action(view(*ran(1, 8, metric=0.4), space=space))
    assert action.step == "finish" and action.ok and "trial 1 reached the target 0.5" in action.why


def test_stopping_starts_nothing() -> None:
    assert next_action(view(asked(1, batch=8), stopping=True)).step == "finish"
    assert next_action(view(asked(1, batch=8), starting(1, batch=8), stopping=True)).step == "wait"


def test_an_empty_log() -> None:
    assert SweepLog().running == []
