"""The table of `oomproof fit`: rows that agree with the plans, what is said of them, the command to type."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from oomproof.plans.knobs import parse_knob, template_of
from oomproof.plans.plan import Plan
from oomproof.records import replace
from oomproof.sizing.fit_verdict import card_of, ram_of
from oomproof.sizing.planning.fit_points import NATIVE, QUANTIZED, CardNeed, Point
from oomproof.sizing.planning.fit_search import FitAnswer, FitRequest, fit
from oomproof.sizing.planning.fit_tiers import Capacity, confirmation
from oomproof.sizing.planning.step_times import Pace
from oomproof.sizing.quantized_weights import FrozenWeights
from oomproof.sizing.rehearsing import OutOfMemory, PhasePeak, Rehearsal
from oomproof.sizing.screens import fit_screen
from oomproof.sizing.virtual_gpu.child_results import BatchFacts
from oomproof.units import GIB, MIB

sys.path.insert(0, str(Path(__file__).parent.parent / "plans"))
from helpers_fit import Training

PLACES = [ram_of(64 * GIB, 5 * GIB), card_of(24 * GIB)]


def ask(
    training: Training, text: str, *knobs: str, effective: int | None = None, facts: Any = None
) -> FitAnswer:
    def measure(plan: Plan) -> Point:
        point = training.measure(plan)
        return replace(point, facts=facts(point.batch)) if facts else point

    template = template_of(text.split(), [parse_knob(knob) for knob in knobs])
    return fit(FitRequest(template, Capacity(24 * GIB, 59 * GIB, 8 * GIB), effective, workers=8), measure)


def screen(answer: FitAnswer, width: int = 100) -> str:
    return "\n".join(fit_screen.lines(answer, PLACES, width))


def test_what_bounds_the_batch_other_than_memory() -> None:
    small = Training(a_sample=1 << 10)
    assert "no batch above 16384 was looked at; --most N does" in screen(
        ask(small, "python t.py --bs {batch}")
    )
    kept = screen(ask(small, "python t.py --bs 64", effective=64))
    assert "the batch stays 64: nothing accumulates" in kept and "write {batch} in its place" in kept
    assert "the batch stays" not in screen(ask(small, "python t.py --bs 64 --accum 1", effective=64))


@pytest.mark.parametrize("fixed", [14, 26])
def test_frozen_weights_in_four_bits_have_a_table_of_their_own(fixed: int) -> None:
    def measure(plan: Plan) -> Point:
        point = training.measure(plan)
        native = point.card[NATIVE]
        frozen = FrozenWeights(12 * GIB, {"nf4": 3 * GIB, "int8": 6 * GIB}, GIB)
        less = {
            kind: CardNeed(frozen.shifted(native.estimate, kind), native.least - frozen.less(kind))
            for kind in QUANTIZED
        }
        return replace(point, card={**point.card, **less})

    training = Training(fixed=fixed * GIB)
    template = template_of(["python", "t.py", "--bs", "{batch}"])
    text = screen(fit(FitRequest(template, Capacity(24 * GIB, 59 * GIB, 8 * GIB)), measure))
    if fixed == 14:
        four = text.partition(
            "With the frozen weights in 4 bits (nf4), as bitsandbytes keeps them (by arithmetic, not measured):"
        )[2]
        batches = {line.split()[0]: int(line.split()[1]) for line in four.splitlines()[2:6]}
        assert batches["conservative"] == 47 and batches["maximum"] == 73, (
            "8 GiB more for samples of 256 MiB, beyond any run"
        )
        assert text.index("in 4 bits") < text.index("in 8 bits")
    else:
        assert "Nothing fits" in text
        assert "With its frozen weights in 4 bits (nf4) it would take 18.2 GiB" in " ".join(text.split())


def test_a_prime_that_only_the_maximum_holds_in_one_piece() -> None:
    """67 at once fits only the maximum: every other tier has 1 × 67, and that is said."""
    training = Training(fixed=2 * GIB, a_sample=21 * GIB // 67)
    text = screen(ask(training, "python t.py --bs {batch} --accum {accum}", effective=67))
    row = next(line for line in text.splitlines() if "balanced" in line or "aggressive" in line)
    assert "1     67" in row and "67 splits evenly only into 1 at a time" in text


def test_rows_and_the_command_agree() -> None:
    answer = ask(Training(), "python t.py --bs {batch} --accum {accum} --workers {workers}", effective=960)
    text = screen(answer)
    value = json.loads(json.dumps(fit_screen.as_json(answer, PLACES)))
    balanced = next(tier for tier in value["tiers"] if tier["name"] == "balanced")
    plan = balanced["plan"]
    row = next(line for line in text.splitlines() if "balanced" in line and "Next" not in line)
    assert row.split()[-1] == "train" and plan["batch"] in row.split() and plan["accum"] in row.split()
    typed = f"python t.py --bs {plan['batch']} --accum {plan['accum']} --workers {plan['workers']}"
    assert typed in text and shlex.split(balanced["command"])[-8:] == typed.split()
    assert value["effective"] == 960 and value["chosen"] == "balanced" and value["fits"] is True
    assert int(plan["batch"]) * int(plan["accum"]) == 960


def test_plans_that_are_the_same_are_one_row() -> None:
    text = screen(ask(Training(), "python t.py --bs {batch} --accum {accum}", effective=2 * 509))
    assert "conservative to maximum" in text
    assert "1018 splits evenly only into 2 at a time although 74 fit" in " ".join(text.split())


def test_what_a_split_changes_is_said() -> None:
    def facts(batch: int) -> BatchFacts:
        return BatchFacts(norms=2, squares=[batch], rows=[batch * 100])

    answer = ask(Training(), "python t.py --bs {batch} --accum {accum}", effective=512, facts=facts)
    text = " ".join(screen(answer).split())
    assert "2 BatchNorm layers" in text and "with each other" in text and "mean over tokens" in text
    alone = screen(ask(Training(a_sample=4 * GIB), "python t.py --bs {batch}", facts=facts))
    assert "BatchNorm" not in alone and "with each other" not in alone, "nothing is split"


def test_another_effective_batch_is_said() -> None:
    answer = ask(Training(a_sample=GIB), "python t.py --batch-size 64", effective=64)
    text = " ".join(screen(answer).split())
    assert "as it stands (batch=64) the command does not fit: short by 42.0 GiB on the card" in text
    assert "the effective batch changes from 64 to" in text and "learning rate" in text


@pytest.mark.parametrize(
    ("usual", "said"),
    [
        (
            37,
            "the effective batch changes from 37 to 74: the learning rate too, usually × 2 with SGD or × 1.4 with Adam",
        ),
        (None, "no effective batch was given: 74 samples a step are another training"),
    ],
)
def test_a_batch_that_nobody_asked_for_is_another_training(usual: int | None, said: str) -> None:
    answer = ask(Training(), "python t.py --bs {batch}")
    answer.request = replace(answer.request, usual=usual)
    assert said in " ".join(screen(answer).split())
    answer.request = replace(answer.request, usual=74)
    assert "learning rate" not in screen(answer), "it is the script's own"


def test_steps_that_were_timed_have_a_column() -> None:
    answer = ask(Training(), "python t.py --bs {batch} --accum {accum}", effective=960)
    assert "step" not in screen(answer).splitlines()[2]
    plan = next(tier.plan for tier in answer.chosen.tiers if tier.name == "conservative")
    assert plan is not None
    answer.request = replace(answer.request, paces=(Pace(plan, 2.5, "mine"),))
    rows = screen(answer).splitlines()[2:5]
    at = rows[0].index("step") + 4
    assert [row[:at].split()[-2:] for row in rows[1:]] == [["2.5", "s"], ["GiB", "–"]]
    tiers = fit_screen.as_json(answer, PLACES)["tiers"]
    assert [tier["step_seconds"] for tier in tiers] == [2.5, 2.5, None, None]


def test_what_was_given_up_is_said() -> None:
    class Shorter(Training):
        def bytes_of(self, batch: int) -> int:
            return int(2 * GIB + batch * (2 * GIB if self.runs[-1].get("ckpt") else 30 * GIB))

    text = screen(ask(Shorter(), "python t.py --bs {batch} {ckpt}", "ckpt=,--ckpt"))
    assert "ckpt=none does not fit with any batch" in text and "With ckpt=--ckpt:" in text
    assert "--ckpt" in text.splitlines()[-1]


def test_nothing_fits() -> None:
    answer = ask(Training(fixed=40 * GIB), "python t.py --bs {batch}")
    assert "Nothing fits: even with a batch of 1 it is short by" in screen(answer)
    value = fit_screen.as_json(answer, PLACES)
    assert value["fits"] is False and value["chosen"] is None and value["short_by_bytes"] > 0


def test_a_job_without_a_card_has_its_tiers_in_ram() -> None:
    training = Training(card=False, fixed=GIB, a_sample=300 * MIB, host=500 * MIB)
    text = screen(ask(training, "python t.py --bs {batch}"))
    assert "GPU" not in text.splitlines()[2] and "headroom" in text and "--gpu-need" not in text


def test_a_real_run_that_fails_makes_the_next_plan_more_careful() -> None:
    answer = ask(Training(), "python t.py --bs {batch}")
    tiers = fit_screen.more_careful(answer)
    assert [tier.name for tier in tiers] == ["balanced", "conservative"]
    oom = Rehearsal(out_of_memory=OutOfMemory("eval", "gpu", "CUDA out of memory"))
    fits = Rehearsal(phases=(PhasePeak("train", True, gpu=19 * GIB, host=2 * GIB),))
    real = [confirmation(tiers[0], oom), confirmation(tiers[1], fits)]
    text = "\n".join(fit_screen.lines(answer, PLACES, 200, real))
    assert "a real run of the balanced plan ran out of memory on the card in eval" in text
    assert "confirmed  a real run of the conservative plan took 19.0 GiB of the card" in text
    assert "Next: start the conservative plan:" in text
    value = fit_screen.as_json(answer, PLACES, real)
    assert value["chosen"] == "conservative" and [run["fits"] for run in value["confirmed"]] == [False, True]


def test_a_real_run_that_says_nothing_changes_nothing() -> None:
    answer = ask(Training(), "python t.py --bs {batch}")
    real = [confirmation(fit_screen.more_careful(answer)[0], Rehearsal(refused="no torch"))]
    text = "\n".join(fit_screen.lines(answer, PLACES, 200, real))
    assert "not confirmed by a real run: no torch" in text and "start the balanced plan" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_its_terminal(width: int) -> None:
    answer = ask(Training(), "python t.py --bs {batch} --accum {accum}", effective=512)
    table = [
        line for line in screen(answer, width=width).splitlines() if not line.startswith("  oomproof run")
    ]
    assert max(map(len, table[2:])) <= width
