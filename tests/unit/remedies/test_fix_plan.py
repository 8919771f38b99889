"""What is changed for a death, what each change brings, and what is left to the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomproof.diagnosis.verdict import Change, Remedy, Verdict
from oomproof.plans.death_facts import DeathFacts
from oomproof.remedies.fix_files import SettingsFile, find_settings
from oomproof.remedies.fix_plan import FixPlan, changed_texts, plan_fix, plan_of_attempts
from oomproof.remedies.fix_probation import Figures, compared, is_slower, pace_text, standing

MIB, GIB = 1 << 20, 1 << 30
YAML = SettingsFile(
    "/p/t.yaml", "t.yaml", "workers: 16 # w\nbatch_size: 64\naccum: 2\neval: {max_new_tokens: 2048}\n"
)
HOST = DeathFacts("host", held=1600 * MIB, allowed=520 * MIB, workers=16, worker_bytes=90 * MIB)


def verdict(*remedies: Remedy, cause: str = "oom-kill-memcg") -> Verdict:
    return Verdict("r1", 1, cause, "proven", 1.0, "it died", "why", (), remedies=remedies)


def planned(
    facts: DeathFacts, *remedies: Remedy, argv: Sequence[str] = ("python", "t.py"), **more: Any
) -> FixPlan:
    found = find_settings(argv, "/p", [YAML])
    return plan_fix(found, [YAML], facts, verdict(*remedies), **more)


def texts(plan: FixPlan) -> str:
    changed, _, refused = changed_texts(plan.changes)
    assert not refused
    return changed["/p/t.yaml"][1]


def test_workers_by_what_they_held() -> None:
    plan = planned(HOST)
    (change,) = plan.changes
    assert (change.place.scalar.key, change.new, change.basis, change.saves) == (
        "workers",
        "4",
        "measured",
        12 * 90 * MIB,
    )
    assert "1.1 GiB" in change.effect and texts(plan) == YAML.text.replace("workers: 16", "workers: 4")


def test_after_retries_it_goes_on_from_the_last_of_them() -> None:
    argv = ("python", "t.py", "--batch-size", "64", "--accum", "1", "--test-batch-size", "100")
    died = [
        {"batch": "64", "accum": "1", "eval_batch": "100"},
        {"batch": "8", "accum": "8", "eval_batch": "100"},
    ]
    facts = DeathFacts("host", phase="eval", held=GIB, alone=True)
    plan = planned(facts, argv=argv, died_with=died)
    assert plan.command == "oomproof run -- python t.py --batch-size 8 --accum 8 --test-batch-size 50"


def test_the_batch_with_its_accumulation() -> None:
    plan = planned(
        DeathFacts("gpu", phase="train", gpu_wanted=26 * GIB, gpu_capacity=24 * GIB, gpu_fixed=6 * GIB)
    )
    assert texts(plan) == YAML.text.replace("batch_size: 64", "batch_size: 32").replace(
        "accum: 2", "accum: 4"
    )
    batch, accum = plan.changes
    assert batch.basis == "predicted" and batch.saves == 10 * GIB and "effective batch at 128" in accum.effect


def test_what_the_verdict_names_with_both_values() -> None:
    remedy = Remedy(
        "fewer new tokens",
        "predicted",
        5 * GIB,
        change=Change("argument", "max_new_tokens", before="2048", after="269"),
    )
    plan = planned(DeathFacts("gpu", phase="generate"), remedy, Remedy("release the cache"))
    assert "max_new_tokens: 269" in texts(plan) and plan.by_hand == ("release the cache",)


def test_what_stands_on_the_command_line_is_told() -> None:
    plan = planned(
        HOST, argv=("python", "t.py", "--workers", "16"), flags=(("--name", "big"), ("--limit", "2G"))
    )
    assert (
        not plan.changes and plan.command == "oomproof run --name big --limit 2G -- python t.py --workers 4"
    )


def test_not_of_memory_and_not_its_own() -> None:
    assert "did not run out of memory" in planned(DeathFacts(None)).nothing
    others = planned(DeathFacts("host", others="x (pid 3) grew by 4 GiB"), Remedy("pause x"))
    assert "pid 3" in others.nothing and not others.changes and others.by_hand == ("pause x",)


def test_nothing_is_known() -> None:
    found = find_settings(["python", "t.py"], "/p", [])
    assert "neither its command line nor the files it names" in plan_fix(found, [], HOST, verdict()).nothing


def test_what_a_retry_found_stays() -> None:
    found = find_settings(["python", "t.py"], "/p", [YAML])
    plan = plan_of_attempts(found, {"workers": "16"}, {"workers": "4"}, "held at most 500 MiB")
    assert [change.new for change in plan.changes] == ["4"] and plan.changes[0].basis == "measured"
    other = plan_of_attempts(found, {"workers": "12"}, {"workers": "4"}, "")
    assert not other.changes, "the file says another number than the run had"


BEFORE, AFTER = Figures(900 * MIB, None, 0.4, 1000), Figures(500 * MIB, None, 0.6, 1000)


def stands(**facts: Any) -> str:
    return standing(
        BEFORE, AFTER, **{"ended": True, "well": True, "of_memory": False, "evaluations": 0, **facts}
    )[0]


def test_probation() -> None:
    assert stands() == "confirmed"
    assert (
        stands(ended=False, evaluations=2) == "probation"
        and stands(ended=False, evaluations=3) == "confirmed"
    )
    assert stands(of_memory=True, well=False) == "offered for undo"
    assert stands(well=False, evaluations=1) == "probation", "a person or another error ended it early"
    assert stands(well=False, evaluations=3) == "confirmed"
    assert (
        compared(BEFORE, AFTER) == "peak 900 MiB → 500 MiB, 400 ms → 600 ms a step, 7 min → 10 min an epoch"
    )
    assert pace_text(BEFORE) == "400 ms a step, 7 min an epoch" and not pace_text(Figures())
    assert is_slower(BEFORE, AFTER) and not is_slower(BEFORE, BEFORE) and not is_slower(Figures(), AFTER)
