"""The largest plan: found in few runs, given up in order, refused where nothing fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import pytest
from helpers_fit import Training
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.plans.knobs import parse_knob, template_of
from oomproof.plans.plan import Plan
from oomproof.records import replace
from oomproof.sizing.planning.fit_points import Point, predict
from oomproof.sizing.planning.fit_search import FitAnswer, FitRequest, NotSized, fit
from oomproof.sizing.planning.fit_tiers import Capacity, usable_at_most
from oomproof.units import GIB, MIB


def ask(
    training: Training,
    text: str,
    *knobs: str,
    gpu: int | None = 24 * GIB,
    ram: int = 64 * GIB,
    shm: int | None = None,
    effective: int | None = None,
    order: tuple[str, ...] = (),
) -> FitAnswer:
    template = template_of(text.split(), [parse_knob(knob) for knob in knobs])
    return fit(FitRequest(template, Capacity(gpu, ram, shm), effective, order), training.measure)


def chosen(answer: FitAnswer, tier: str = "maximum") -> dict[str, str]:
    plan = next(known.plan for known in answer.chosen.tiers if known.name == tier)
    return plan.as_dict() if plan is not None else {}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(100 * MIB, 20 * GIB),
    st.integers(MIB, 2 * GIB),
    st.integers(0, 22 * GIB),
    st.sampled_from([8, 24, 80]),
)
def test_the_maximum_is_the_largest_that_fits(fixed: int, a_sample: int, evaluation: int, card: int) -> None:
    training = Training(fixed=fixed, a_sample=a_sample, evaluation=evaluation)
    answer = ask(training, "python t.py --bs {batch}", gpu=card * GIB)
    room = usable_at_most(card * GIB)
    largest = bisect_right(
        range(1, (1 << 14) + 1), room, key=lambda size: training.bytes_of(size) * 98 // 100
    )
    best = largest if training.bytes_of(1) * 98 // 100 <= room else 0
    batch = int(chosen(answer).get("batch", 0))
    assert batch <= best and (batch >= 0.98 * best - 1 or best == 0)
    assert len(training.runs) <= 12


def test_a_usual_training_takes_few_runs() -> None:
    training = Training()
    answer = ask(training, "python t.py --bs {batch}")
    assert chosen(answer)["batch"] == "88" and len(training.runs) <= 5
    tiers = [
        int(chosen(answer, name)["batch"]) for name in ("conservative", "balanced", "aggressive", "maximum")
    ]
    assert tiers == sorted(tiers) and tiers[0] < tiers[-1]


def test_the_effective_batch_is_kept() -> None:
    answer = ask(Training(), "python t.py --bs {batch} --accum {accum}", effective=480)
    assert chosen(answer) == {"batch": "80", "accum": "6"}
    for tier in answer.chosen.tiers:
        assert tier.effective == 480


def test_gradients_that_wait_are_measured() -> None:
    training = Training()
    ask(training, "python t.py --bs {batch} --accum {accum}", effective=512)
    assert {plan.get("accum") for plan in training.runs} == {"2"}


def test_workers_are_reduced_before_the_batch_and_measured_with_few() -> None:
    training = Training(card=False, fixed=100 * MIB, a_sample=MIB, host=200 * MIB)
    answer = ask(training, "python t.py --batch-size 64 --workers 16", gpu=None, ram=3 * GIB, effective=64)
    assert {plan.get("workers") for plan in training.runs} == {"2"}
    assert (
        chosen(answer, "balanced")["batch"] == "64" and 2 <= int(chosen(answer, "balanced")["workers"]) < 16
    )


def test_shared_memory_bounds_the_workers() -> None:
    training = Training(a_sample=64 * MIB)
    ample = ask(training, "python t.py --batch-size 64 --workers 16", effective=64, shm=64 * GIB)
    small = ask(training, "python t.py --batch-size 64 --workers 16", effective=64, shm=600 * MIB)
    assert chosen(ample)["workers"] == "16"
    assert int(chosen(small)["workers"]) == 4, "(4 x 2 + 1) x 64 MiB"


def test_persistent_workers_keep_one() -> None:
    command = "python t.py --batch-size 64 --workers 16"
    training = Training(a_sample=64 * MIB)
    assert chosen(ask(training, command, effective=64, shm=MIB))["workers"] == "0"
    training.persistent = True
    assert not chosen(ask(training, command, effective=64, shm=MIB)), "PyTorch refuses them without a worker"
    assert chosen(ask(training, command, effective=64, shm=200 * MIB))["workers"] == "1"
    named = ask(training, "python t.py {batch} {workers}", "batch=64,32", "workers=2,0", shm=MIB)
    assert chosen(named)["workers"] == "0", "the user's own list counts"


def test_where_samples_differ_in_size_a_batch_between_two_runs_keeps_some_headroom() -> None:
    even, uneven = Training(a_sample=100 * MIB), Training(a_sample=100 * MIB)
    uneven.varies = True
    batches = [int(chosen(ask(training, "python t.py --bs {batch}"))["batch"]) for training in (even, uneven)]
    assert 0.93 * batches[0] < batches[1] < batches[0]
    predicted = next(tier.predicted for tier in ask(uneven, "python t.py --bs {batch}").chosen.tiers)
    assert predicted is not None and predicted.varies is not predicted.measured


def test_a_batch_is_never_larger_than_the_data() -> None:
    training = Training()
    training.samples = 50
    assert chosen(ask(training, "python t.py --bs {batch}"))["batch"] == "50"


def test_what_is_given_up_comes_in_its_order() -> None:
    class Shorter(Training):
        def bytes_of(self, batch: int) -> int:
            values = self.runs[-1].as_dict()
            factor = int(values["seq"]) / 2048 * (0.5 if values["ckpt"] else 1.0)
            return int(2 * GIB + batch * 40 * GIB * factor)

    training = Shorter()
    text = "python t.py --bs {batch} --seq {seq} {ckpt}"
    knobs = ("seq=2048,1024,512", "ckpt=,--ckpt")
    answer = ask(training, text, *knobs)
    tried = [(scenario.plan.get("ckpt"), scenario.plan.get("seq")) for scenario in answer.scenarios]
    assert tried == [("", "2048"), ("--ckpt", "2048")]
    assert chosen(answer) == {"batch": "1", "seq": "2048", "ckpt": "--ckpt"}
    training = Shorter()
    answer = ask(training, text, *knobs, order=("seq",))
    assert [scenario.plan.get("seq") for scenario in answer.scenarios] == ["2048", "1024"]


def test_an_evaluation_that_is_too_large_is_not_answered_by_a_smaller_batch() -> None:
    class Evaluated(Training):
        def bytes_of(self, batch: int) -> int:
            return max(2 * GIB + batch * 256 * MIB, int(self.runs[-1].get("eval_batch") or 0) * GIB)

    answer = ask(Evaluated(), "python t.py --bs {batch} --eval_batch_size {eval_batch}", "eval_batch=64..1")
    assert chosen(answer)["eval_batch"] == "16" and int(chosen(answer)["batch"]) > 80


def test_nothing_fits() -> None:
    answer = ask(Training(fixed=40 * GIB), "python t.py --bs {batch}")
    assert not answer.fits and answer.short_of == "the card" and answer.short_by > 15 * GIB
    host = ask(Training(host=100 * GIB), "python t.py --bs {batch}", ram=8 * GIB)
    assert not host.fits and host.short_of == "RAM"


def test_a_knob_that_changes_nothing_is_told() -> None:
    class Deaf(Training):
        def bytes_of(self, batch: int) -> int:
            return 3 * GIB

    with pytest.raises(OomproofError, match="batch never changes the memory"):
        ask(Deaf(), "python t.py --bs {batch}")
    small = ask(Deaf(), "python t.py --bs {batch}", gpu=2 * GIB)
    assert not small.fits and small.short_of == "the card", "nothing fits: that is the answer"


def test_a_training_on_a_card_needs_one() -> None:
    with pytest.raises(OomproofError, match="there is none here") as error:
        ask(Training(), "python t.py --bs {batch}", gpu=None)
    assert "--gpu 24G" in error.value.hint


def test_without_a_batch_the_other_knobs_are_tried() -> None:
    class Long(Training):
        def bytes_of(self, batch: int) -> int:
            return int(self.runs[-1].get("seq") or 0) * 16 * MIB

    answer = ask(Long(), "python t.py --seq {seq}", "seq=4096,2048,1024")
    assert chosen(answer) == {"seq": "1024"} and len(answer.scenarios) == 3
    assert answer.start == Plan.of({"seq": "4096"})


def test_batches_ahead_give_way_after_workers_and_before_the_last_two() -> None:
    """A batch of 64 takes 64 MiB in the queue: workers × prefetch + 1 of them."""
    training = Training(a_sample=MIB)
    command, knobs = (
        "python t.py {batch} {workers} {prefetch}",
        ("batch=64,32", "workers=8..1", "prefetch=8..1"),
    )
    for shm, workers, prefetch in [
        (65 * 64 * MIB, "8", "8"),
        (33 * 64 * MIB, "4", "8"),
        (16 * 64 * MIB, "2", "4"),
        (3 * 64 * MIB, "2", "1"),
        (2 * 64 * MIB, "1", "1"),
    ]:
        plan = chosen(ask(training, command, *knobs, effective=64, shm=shm))
        assert (plan["batch"], plan["workers"], plan["prefetch"]) == ("64", workers, prefetch), shm
    nothing = ask(training, command, *knobs, effective=64, shm=64 * MIB)
    assert not nothing.fits and nothing.short_of == "/dev/shm"


def test_batches_ahead_of_the_scripts_own_workers() -> None:
    point = Training().measure(Plan.of({"batch": "64", "workers": "4", "prefetch": "8"}))
    assert predict([point], 64, None).shared == 33 * 64 * MIB
    assert predict([point], 64, None, prefetch=1).shared == 5 * 64 * MIB


def test_a_placeholder_that_changes_memory_only_at_first() -> None:
    """--accum {batch}: gradients that wait for a second pass are all it adds."""

    class Accumulates(Training):
        def bytes_of(self, batch: int) -> int:
            return self.fixed + (100 * MIB if batch > 8 else 0)

        def measure(self, plan: Plan) -> Point:
            point = super().measure(plan)
            return replace(point, phases={"train": self.bytes_of(point.batch)})

    answer = ask(Accumulates(), "python t.py --accum {batch}")
    (note,) = answer.notes
    assert note.startswith("16384 takes what ") and "{batch} is not the argument that sets the batch" in note
    assert not ask(Training(), "python t.py --bs {batch}").notes


class PartlySized(Training):
    """``cannot``: batches whose virtual run gives no figures; ``tried`` of them were."""

    def __init__(self, cannot: Callable[[int], bool], **figures: int) -> None:
        super().__init__(**figures)
        self.cannot, self.tried = cannot, 0

    def measure(self, plan: Plan) -> Point:
        if self.cannot(int(plan.get("batch") or 0)):
            self.tried += 1
            raise NotSized(plan, "no step in time")
        return super().measure(plan)


@pytest.mark.parametrize("border", [9, 40, 300, 3000])
def test_a_batch_that_cannot_be_sized_leaves_those_below_it(border: int) -> None:
    training = PartlySized(lambda batch: batch >= border, a_sample=MIB)
    answer = ask(training, "python t.py --bs {batch}")
    largest = max(int(plan.get("batch") or 0) for plan in training.runs)
    assert answer.fits and chosen(answer)["batch"] == str(largest) and largest < border
    assert answer.chosen.unsized and training.tried <= 2, "each may last as long as its time limit"
    assert set(answer.chosen.unsized.values()) == {"no step in time"}


def test_a_batch_that_cannot_be_sized_is_not_proposed() -> None:
    training = PartlySized(lambda batch: batch == 88)
    answer = ask(training, "python t.py --bs {batch}")
    assert answer.fits and 88 in answer.chosen.unsized and int(chosen(answer)["batch"]) < 88


def test_no_batch_is_proposed_below_the_sized_ones_where_smaller_ones_could_not_be() -> None:
    training = PartlySized(lambda batch: batch < 5, a_sample=600 * MIB)
    answer = ask(training, "python t.py --bs {batch}", gpu=9 * GIB // 2)
    assert answer.chosen.unsized and all(batch < 5 for batch in answer.chosen.unsized)
    assert not answer.fits


def test_where_nothing_can_be_sized_it_says_why() -> None:
    with pytest.raises(NotSized, match="no step in time"):
        ask(PartlySized(lambda _: True), "python t.py --bs {batch}")


def test_no_run_is_far_beyond_what_the_lines_tell() -> None:
    training = Training(fixed=GIB, a_sample=6 * MIB)
    answer = ask(training, "python t.py --bs {batch}")
    batches = [int(plan.get("batch") or 0) for plan in training.runs]
    assert max(batches) < 1.25 * int(chosen(answer)["batch"]), batches
