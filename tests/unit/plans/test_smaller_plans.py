"""Which setting gives way after a death, by how much, and when there is nothing left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.plans.death_facts import DeathFacts
from oomproof.plans.knobs import Template, parse_knob, template_of
from oomproof.plans.plan import Plan, effective_batch
from oomproof.plans.smaller_plans import (
    NoPlan,
    SmallerPlan,
    argument_name,
    describe_change,
    first_plan,
    next_plan,
    not_loaded,
)
from oomproof.records import replace

MIB, GIB = 1 << 20, 1 << 30
HOST, SHM, GPU = DeathFacts("host"), DeathFacts("shm"), DeathFacts("gpu", phase="train")


def of(text: str, *knobs: str) -> tuple[Template, Plan]:
    template = template_of(text.split(), [parse_knob(knob) for knob in knobs])
    return template, first_plan(template, text.split())


def after(text: str, facts: DeathFacts, *knobs: str, order: tuple[str, ...] = ()) -> SmallerPlan | NoPlan:
    template, plan = of(text, *knobs)
    return next_plan(template, plan, [], facts, order, effective_batch(template, plan))


def plan_after(text: str, facts: DeathFacts, *knobs: str, order: tuple[str, ...] = ()) -> str:
    smaller = after(text, facts, *knobs, order=order)
    assert isinstance(smaller, SmallerPlan), smaller
    return str(smaller.plan)


ALL = "python t.py --batch-size 64 --accum 2 --workers 16 --eval_batch_size 32"


def test_the_first_plan_is_what_was_typed() -> None:
    template, plan = of("python t.py --data=x -j 8 train.batch_size=32")
    assert str(plan) == "workers=8 batch=32"
    assert [argument_name(template, name) for name in ("workers", "batch")] == ["-j", "train.batch_size"]
    _, plan = of(
        "python t.py --bs {batch} --accum {accum} --len {seq_len}", "batch=48..4", "seq_len=2048,1024"
    )
    assert str(plan) == "batch=48 accum=1 seq_len=2048"


def test_what_was_typed_counts_although_the_list_has_it_not() -> None:
    template, plan = of("python t.py --batch-size 100 --accum 1", "batch=64,32")
    assert plan.get("batch") == "100"
    smaller = next_plan(template, plan, [], GPU, effective=100)
    assert isinstance(smaller, NoPlan), "neither 64 nor 32 divides 100"


def test_a_placeholder_without_a_first_value_is_refused() -> None:
    with pytest.raises(OomproofError) as error:
        of("python t.py --bs {batch}")
    assert error.value.status == 2 and "--knob batch=" in error.value.hint


def test_on_the_host_workers_give_way_first_by_half_where_nothing_is_known() -> None:
    assert plan_after(ALL, HOST) == "batch=64 accum=2 workers=8 eval_batch=32"
    assert plan_after(ALL, SHM) == "batch=64 accum=2 workers=8 eval_batch=32"


def test_workers_that_were_never_seen_give_no_way() -> None:
    alone = DeathFacts("host", held=GIB, alone=True)
    assert plan_after(ALL, alone) == "batch=32 accum=4 workers=16 eval_batch=32"
    assert isinstance(after("python t.py --workers 4", alone), NoPlan)


def test_workers_by_their_sizes() -> None:
    known = DeathFacts("host", held=1600 * MIB, allowed=520 * MIB, workers=16, worker_bytes=90 * MIB)
    assert "workers=4" in plan_after(ALL, known), "160 MiB of the main process and four workers of 90"
    # still growing: what was measured is not all they wanted
    nearly = DeathFacts(
        "host", held=1600 * MIB, allowed=1500 * MIB, workers=16, worker_bytes=90 * MIB, growing=True
    )
    assert "workers=8" in plan_after(ALL, nearly)
    steady = DeathFacts("host", held=1600 * MIB, allowed=1500 * MIB, workers=16, worker_bytes=90 * MIB)
    assert "workers=14" in plan_after(ALL, steady)


def test_workers_that_hold_little_are_not_what_gives_way() -> None:
    small = DeathFacts("host", held=1600 * MIB, allowed=1500 * MIB, workers=16, worker_bytes=5 * MIB)
    assert plan_after(ALL, small) == "batch=32 accum=4 workers=16 eval_batch=32"


def test_without_workers_left_it_is_the_batch() -> None:
    assert "batch=32 accum=4 workers=0" in plan_after(
        "python t.py --batch-size 64 --accum 2 --workers 0", HOST
    )


def test_gpu_memory_in_training_is_the_batchs() -> None:
    assert plan_after(ALL, GPU) == "batch=32 accum=4 workers=16 eval_batch=32"
    nothing = after("python t.py --workers 16", GPU)
    assert isinstance(nothing, NoPlan) and "GPU" in nothing.reason


def test_gpu_memory_in_an_evaluation_is_the_evaluations() -> None:
    assert "eval_batch=16" in plan_after(ALL, DeathFacts("gpu", phase="eval"))
    generate = DeathFacts("gpu", phase="generate", fitting_new_tokens=269)
    text = "python t.py --batch-size 8 --accum 1 --max_new_tokens {max_new_tokens}"
    assert "max_new_tokens=1024" in plan_after(
        "python t.py --batch-size {batch} --max_new_tokens {max_new_tokens}",
        generate, "batch=8..1", "max_new_tokens=2048,1024,256",
    ), "a list: its next value"  # fmt: skip
    assert "max_new_tokens=269" in plan_after(text, generate, "max_new_tokens=2048..16")
    # no batch of its own: the training's is the evaluation's too
    assert "batch=32" in plan_after("python t.py --batch-size 64 --accum 2", DeathFacts("gpu", phase="eval"))


def test_how_short_it_was_decides_once_steps_were_made() -> None:
    short = DeathFacts(
        "gpu", phase="train", steps=400, gpu_fixed=4 * GIB, gpu_wanted=26 * GIB, gpu_capacity=24 * GIB
    )
    # (0.9 × 24 − 4) of (26 − 4): 51 of 64, and 32 divides 128 where 51 does not
    assert "batch=32 accum=4" in plan_after("python t.py --batch-size 64 --accum 2", short)
    assert "batch=48 accum=2" in plan_after("python t.py --batch-size 96 --accum 1", GPU)
    assert "batch=60 accum=2" in plan_after("python t.py --batch-size 120 --accum 1", GPU)
    many = "python t.py --batch-size 60 --accum 12"
    assert "batch=45 accum=16" in plan_after(many, short), "47 at most, and 45 divides 720"
    first = DeathFacts(
        "gpu", phase="train", steps=0, gpu_fixed=4 * GIB, gpu_wanted=26 * GIB, gpu_capacity=24 * GIB
    )
    assert "batch=30" in plan_after(many, first), "the first step: nobody knows how much more it wanted"


def test_far_too_large_goes_below_half_at_once() -> None:
    far = DeathFacts("gpu", phase="train", gpu_wanted=100 * GIB, gpu_capacity=24 * GIB)
    assert "batch=8 accum=16" in plan_after("python t.py --batch-size 64 --accum 2", far)


def test_the_effective_batch_is_changed_only_where_the_user_allows_it() -> None:
    held_back = after("python t.py --batch-size 64 --workers 0", GPU)
    assert isinstance(held_back, NoPlan) and "--knob batch=64..1" in held_back.hint
    allowed = after("python t.py --batch-size 64 --workers 0", GPU, "batch=64..1")
    assert isinstance(allowed, SmallerPlan) and allowed.plan.get("batch") == "32"
    assert "learning rate" in allowed.note
    kept = after("python t.py --batch-size 64 --accum 1", GPU)
    assert isinstance(kept, SmallerPlan) and not kept.note


def test_each_further_step_is_longer() -> None:
    for facts, name, values in (
        (GPU, "batch", ["64", "32", "8", "1"]),
        (HOST, "workers", ["16", "8", "2", "0"]),
    ):
        template, plan = of("python t.py --batch-size 64 --accum 2 --workers 16")
        tried = [plan]
        for _ in range(3):
            smaller = next_plan(template, tried[-1], tried, facts, (), 128)
            assert isinstance(smaller, SmallerPlan)
            tried.append(smaller.plan)
        assert [plan.get(name) for plan in tried] == values


def test_the_users_order_comes_first() -> None:
    text = "python t.py --bs {batch} --accum {accum} --len {seq_len}"
    knobs = ("batch=64..1", "seq_len=2048,1024")
    assert "batch=32" in plan_after(text, GPU, *knobs)
    assert "batch=64 accum=1 seq_len=1024" in plan_after(text, GPU, *knobs, order=("seq_len",))


def test_a_change_is_told_by_the_names_of_the_command_line() -> None:
    template, plan = of("python t.py --batch-size 64 grad.accum=2 --workers=16")
    smaller = plan.with_values(batch="32", accum="4")
    assert describe_change(template, plan, smaller) == "--batch-size 64 → 32, grad.accum 2 → 4"


facts = st.builds(
    DeathFacts,
    st.sampled_from(["host", "shm", "gpu"]),
    st.sampled_from(["train", "eval", "generate", "unknown", "load"]),
    held=st.none() | st.integers(1, 100 * GIB),
    allowed=st.none() | st.integers(0, 100 * GIB),
    workers=st.integers(0, 40),
    worker_bytes=st.integers(0, 4 * GIB),
    growing=st.booleans(),
    gpu_fixed=st.none() | st.integers(0, 60 * GIB),
    gpu_wanted=st.integers(0, 100 * GIB),
    gpu_capacity=st.integers(0, 80 * GIB),
    steps=st.none() | st.integers(0, 1000),
    fitting_batch=st.none() | st.integers(1, 100),
    fitting_new_tokens=st.none() | st.integers(1, 4096),
)
numbers = st.integers(1, 300)


@given(numbers, numbers, st.integers(0, 64), numbers, st.lists(facts, max_size=80), st.booleans())
def test_it_never_repeats_always_ends_and_keeps_the_effective_batch(
    batch: int, accum: int, workers: int, evals: int, deaths: list[DeathFacts], with_accum: bool
) -> None:
    text = f"python t.py --batch-size {batch} --workers {workers} --eval_batch_size {evals}"
    text += f" --accum {accum}" if with_accum else ""
    template, plan = of(text + " --len {seq_len}".replace("{seq_len}", "2048"), "len=2048,1024,512")
    effective = effective_batch(template, plan)
    tried = [plan]
    for death in deaths:
        smaller = next_plan(template, tried[-1], tried, death, (), effective)
        if isinstance(smaller, NoPlan):
            assert smaller.reason and smaller.hint
            continue
        assert smaller.plan not in tried
        assert effective_batch(template, smaller.plan) == effective
        changed = [name for name, value in smaller.plan.values if tried[-1].get(name) != value]
        for name in changed:
            before, now = tried[-1].get(name), smaller.plan.get(name)
            assert name == "accum" or int(now or 0) < int(before or 0)
        tried.append(smaller.plan)


@given(numbers, numbers, st.integers(0, 64), st.lists(facts, min_size=1, max_size=1))
def test_there_is_an_end(batch: int, accum: int, workers: int, deaths: list[DeathFacts]) -> None:
    """The same death again and again: as many plans as there are, then a reason."""
    template, plan = of(f"python t.py --batch-size {batch} --accum {accum} --workers {workers}")
    effective = effective_batch(template, plan)
    tried = [plan]
    for _ in range(600):
        smaller = next_plan(template, tried[-1], tried, deaths[0], (), effective)
        if isinstance(smaller, NoPlan):
            return
        tried.append(smaller.plan)
    pytest.fail(f"{len(tried)} plans and no end")


LOADING = DeathFacts("host", phase="load", loading=True, held=9 * GIB)


def test_while_it_loads_no_batch_and_no_worker_gives_way() -> None:
    nothing = after(ALL, LOADING)
    assert isinstance(nothing, NoPlan) and "still loading" in nothing.reason
    assert isinstance(after(ALL, DeathFacts("gpu", phase="load", loading=True)), NoPlan)
    assert isinstance(after("python t.py --bs {batch}", LOADING, "batch=64..4"), NoPlan)


def test_what_helps_loading_is_still_changed() -> None:
    text = "python t.py --batch-size {batch} --dtype {dtype}"
    knobs = ("batch=64..4", "dtype=float32,bfloat16")
    assert "batch=64 dtype=bfloat16" in plan_after(text, LOADING, *knobs)
    mapping = DeathFacts("host", phase="load", loading=True, workers=16, worker_bytes=GIB // 2, held=9 * GIB)
    assert "workers=8" in plan_after(ALL, mapping), "processes of a data set's map() were seen"


def test_what_takes_no_part_in_loading() -> None:
    assert not_loaded(LOADING) == ("batch", "eval_batch", "workers", "prefetch")
    assert not_loaded(replace(LOADING, workers=16)) == ("batch", "eval_batch")
    assert not_loaded(replace(LOADING, loading=False)) == ()


def test_the_user_may_know_better_where_batches_are_made() -> None:
    assert "batch=32 accum=4" in plan_after(ALL, LOADING, order=("batch",))
