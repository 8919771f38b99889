"""A death with the same data in memory several times: told which variable to drop, and what that saves."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from helpers_case import END, MIB, Attempt, changed

from oomproof.diagnosis.judge import judge
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_file import Growth
from oomproof.recording.census_record import Census, Copies, Thing
from oomproof.records import replace


def thing(name: str, ram: int, what: str = "list of 3,000 dict") -> Thing:
    return Thing(name, "local", "main", "/absent/prep.py", 4, what, 3000, ram, 0, 0)


def census(*things: Thing, copies: tuple[Copies, ...] = (), t: float = END - 2) -> Census:
    return Census(7, t, t, "", "", "", None, None, 0, 0, 0, True, 0.1, things, copies)


EXAMPLES, TEXTS = thing("examples", 300 * MIB), thing("texts", 150 * MIB, "list of 3,000 str")
TABLE = thing("table", 100 * MIB, "Arrow Table of 3,000 rows × 1 columns")
THREE = census(EXAMPLES, TEXTS, TABLE, copies=(Copies(3000, ((EXAMPLES,), (TEXTS,), (TABLE,))),))


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def stopped(attempt: Attempt, **facts: Any) -> Verdict:
    attempt.run["settings"]["limit"] = 600 * MIB
    attempt.ended(signal=SIGTERM)
    attempt.act("term", why="the job held 592 MiB of its limit of 600 MiB", scope="limit")
    return judge(changed(attempt.case(), job_peak=592 * MIB, **facts))


def test_copies_come_first_with_what_they_take(attempt: Attempt) -> None:
    verdict = stopped(attempt, censuses=(THREE,))
    first = verdict.remedies[0]
    assert (first.saves_bytes, first.basis) == (450 * MIB, "measured")
    assert "`del examples, texts` (prep.py in main()) once table is made" in verdict.next
    assert sum("one copy of the data" in remedy.title for remedy in verdict.remedies) == 1, (
        "the rule of thumb is gone"
    )


def test_copies_that_are_no_good_part_of_it_are_not_what_to_change(attempt: Attempt) -> None:
    small = census(TEXTS, TABLE, copies=(Copies(3000, ((thing("a", 20 * MIB),), (thing("b", 10 * MIB),))),))
    verdict = stopped(attempt, censuses=(small,))
    assert "del a" not in verdict.next and not any("del a" in remedy.title for remedy in verdict.remedies)


def test_copies_are_compared_with_what_was_held_when_they_were_seen(attempt: Attempt) -> None:
    """The census of a warning: by the end the job held twice as much, of the same data."""
    seen = replace(
        census(copies=(Copies(3000, ((thing("a", 80 * MIB),), (thing("b", 40 * MIB),))),)), anon=300 * MIB
    )
    assert "`del a`" in stopped(attempt, censuses=(seen,)).next
    for other in (
        replace(seen, anon=None),
        replace(seen, anon=500 * MIB),
        replace(
            seen, copies=(Copies(3000, ((thing("a", 50 * MIB),), (thing("b", 40 * MIB),))),), anon=60 * MIB
        ),
    ):
        assert "del a" not in stopped(attempt, censuses=(other,)).next


def test_the_variable_that_grew_is_named_where_no_step_was_told(attempt: Attempt) -> None:
    leak = Growth("growing", "", 6.0 * MIB, None, None, 96.0, 300 * MIB, 592 * MIB)
    looks = (census(thing("rows", 20 * MIB), t=END - 60), census(thing("rows", 250 * MIB)))
    verdict = stopped(attempt, growth=leak, censuses=looks)
    assert (
        "it is kept in rows, a list of 3,000 dict (prep.py in main()), which grew by 230 MiB" in verdict.next
    )
    other = (census(thing("rows", 20 * MIB), t=END - 60), census(thing("rows", 25 * MIB)))
    assert "rows" not in stopped(attempt, growth=leak, censuses=other).next
    trained = replace(leak, seconds=20.0, steps=100, bytes_per_step=1.2 * MIB)
    loaded = (
        census(t=END - 60),
        census(thing("rows", 250 * MIB), t=END - 10),
        census(thing("rows", 250 * MIB)),
    )
    assert "rows" not in stopped(attempt, growth=trained, censuses=loaded).next, "loaded before it grew"
    assert "rows" not in stopped(attempt, growth=trained, censuses=loaded[::2]).next
    later = (*loaded[:2], census(thing("rows", 290 * MIB)))
    assert "which grew by 290 MiB" in stopped(attempt, growth=trained, censuses=later).next


def test_the_variable_that_grew_with_the_steps_is_named_where_the_growth_is_younger_than_the_first_look(
    attempt: Attempt,
) -> None:
    """An evaluation starts the trend anew: only one look falls into the last 27 steps."""
    leak = Growth("growing", "train", 45.0 * MIB, 8.3 * MIB, 27, 5.0, 674 * MIB, 891 * MIB)

    def looks(first: int, last: int) -> tuple[Census, ...]:
        early = replace(census(thing("kept", first * MIB), t=END - 9), step=23)
        return early, replace(census(thing("kept", last * MIB), t=END - 2), step=63)

    named = stopped(attempt, growth=leak, censuses=looks(184, 504)).next
    assert "it is kept in kept, a list of 3,000 dict (prep.py in main()), which grew by 320 MiB" in named
    assert "kept in kept" not in stopped(attempt, growth=leak, censuses=looks(184, 190)).next, (
        "it hardly grew"
    )
    loaded = looks(0, 900)
    assert "kept in kept" not in stopped(attempt, growth=leak, censuses=loaded).next, (
        "a cache that was filled"
    )


def test_of_a_job_that_was_simply_large_the_variable_that_is_most_of_it_is_named(attempt: Attempt) -> None:
    """It died too soon for a trend, or held to be loading."""
    looks = (census(thing("rows", 200 * MIB), t=END - 9), census(thing("rows", 500 * MIB)))
    verdict = stopped(attempt, censuses=looks)
    assert verdict.next.startswith(
        "most of it was in rows, a list of 3,000 dict (prep.py in main()), which grew by 300 MiB: keep less in it; or oomproof run"
    )
    assert verdict.remedies[0].title.startswith("keep less in rows, a list")
    small = (census(thing("rows", 20 * MIB), t=END - 9), census(thing("rows", 200 * MIB)))
    assert "rows" not in stopped(attempt, censuses=small).next
    cache = thing("describe", 500 * MIB, "_lru_cache_wrapper")
    looks = (census(replace(cache, ram=200 * MIB), t=END - 9), census(cache))
    assert (
        "describe, a functools cache (prep.py in main()), which grew by 300 MiB (give it a smaller maxsize)"
        in stopped(attempt, censuses=looks).next
    )


def test_what_one_look_saw_is_told_and_not_called_growth(attempt: Attempt) -> None:
    verdict = stopped(attempt, censuses=(census(thing("rows", 400 * MIB), thing("model", 80 * MIB)),))
    assert (
        "rows, a list of 3,000 dict (prep.py in main()), held 400 MiB of 592 MiB when it was looked into"
        in verdict.why
    )
    assert verdict.remedies[0].title.startswith("keep less in rows")
    assert "which grew" not in verdict.next
    assert "rows" not in stopped(attempt, censuses=(census(thing("rows", 200 * MIB)),)).why


def test_what_workers_copy_by_reading_is_named(attempt: Attempt) -> None:
    leak = Growth(
        "growing",
        "train",
        2.0 * MIB,
        400_000.0,
        300,
        96.0,
        300 * MIB,
        592 * MIB,
        workers=2,
        workers_bytes=280 * MIB,
    )
    rows = Thing(
        "loader.dataset.rows",
        "attribute",
        "",
        "/absent/train.py",
        4,
        "list of 2,000,000 str",
        2_000_000,
        150 * MIB,
        0,
        0,
    )
    tensors = replace(rows, name="cache", what="list of 9,000 Tensor", ram=400 * MIB)
    said = stopped(attempt, growth=leak, censuses=(census(tensors, rows),)).next
    assert said.startswith(
        "its 2 workers grew by 280 MiB: reading loader.dataset.rows, a list of 2,000,000 str (150 MiB, train.py), copies it into each of them"
    )
    assert "a NumPy array or an Arrow table (HF datasets) is not copied" in said and "halve" not in said
    for other in (census(tensors), census(replace(rows, ram=60 * MIB))):
        said = stopped(attempt, growth=leak, censuses=(other,)).next
        assert said.startswith("its 2 workers grew by 280 MiB: their dataset keeps what it reads, or copies")


def test_what_an_evaluation_of_the_trainer_keeps_is_named(attempt: Attempt) -> None:
    file = "/venv/site-packages/transformers/trainer.py"
    kept = Thing(
        "all_preds.tensors",
        "attribute",
        "evaluation_loop",
        file,
        2861,
        "Tensor [3000, 20000]",
        3000,
        230 * MIB,
        0,
        0,
    )
    verdict = stopped(attempt, censuses=(census(EXAMPLES, kept),))
    assert (
        "keeps the predictions of a whole evaluation: all_preds.tensors (Tensor [3000, 20000], 230 MiB)"
        in verdict.next
    )
    assert "preprocess_logits_for_metrics=" in verdict.next and verdict.remedies[0].saves_bytes == 230 * MIB
    assert "evaluation" not in stopped(attempt, censuses=(census(EXAMPLES, replace(kept, ram=9 * MIB)),)).next


def test_one_look_is_measured_by_what_the_process_held_then(attempt: Attempt) -> None:
    """Seen at the warning: by the end the job held six times as much."""
    look = replace(census(thing("k", 83 * MIB)), anon=98 * MIB)
    verdict = stopped(attempt, censuses=(look,))
    assert "held 83 MiB of 98 MiB when it was looked into" in verdict.why
    assert verdict.next.startswith("most of it was in k,")
    assert any("keep less in k" in remedy.title for remedy in verdict.remedies)
    small = replace(look, anon=200 * MIB)
    assert "most of it" not in stopped(attempt, censuses=(small,)).next


def test_a_model_is_not_what_to_keep_less_in(attempt: Attempt) -> None:
    """It was "keep less in `model`", of which nobody can keep less."""
    model = replace(thing("model", 400 * MIB, "GPT2LMHeadModel"), part="model")
    verdict = stopped(attempt, censuses=(census(model, thing("rows", 80 * MIB)),))
    assert "most of it was the model itself, model, a GPT2LMHeadModel" in verdict.next
    assert "weights once and in their own type" in verdict.next and "keep less" not in verdict.next
    state = replace(thing("opt.state", 400 * MIB, "defaultdict of 4 dict"), part="optimizer")
    verdict = stopped(attempt, censuses=(census(state),))
    assert "8-bit Adam" in verdict.next and "keep less" not in verdict.next


def test_of_a_list_of_models_less_can_be_kept_where_it_grew(attempt: Attempt) -> None:
    models = replace(thing("models", 400 * MIB, "list of 3 Net"), part="model")
    verdict = stopped(attempt, censuses=(census(models),))
    assert "most of it was the model itself, models, a list of 3 Net" in verdict.next
    before = replace(models, ram=130 * MIB, what="list of 1 Net")
    verdict = stopped(attempt, censuses=(census(before, t=END - 60), census(models)))
    assert "most of it was in models, a list of 3 Net" in verdict.next and "keep less in it" in verdict.next


def test_where_data_fills_it_no_batch_is_to_be_halved(attempt: Attempt) -> None:
    """A word "batch" in the source brought it; here one list held most of the job."""
    verdict = stopped(attempt, censuses=(census(thing("rows", 400 * MIB)),))
    assert not [remedy for remedy in verdict.remedies if "batch" in remedy.title]
    assert "batch" not in verdict.next


def test_what_loader_workers_copied_before_a_trend_could_show_it_is_named(attempt: Attempt) -> None:
    """800 MiB in two seconds of a first epoch: "keep less in ds.rows", which had not grown."""
    look = replace(
        census(thing("ds.rows", 300 * MIB)), anon=350 * MIB
    )  # and 242 MiB beside it, of one worker
    verdict = stopped(attempt, censuses=(look,))
    assert "a NumPy array or an Arrow table (HF datasets) in place of ds.rows" in verdict.next
    assert "each loader worker that reads" in verdict.next
    alone = replace(look, anon=590 * MIB)
    assert "loader worker" not in stopped(attempt, censuses=(alone,)).next
    more = replace(census(thing("ds.rows", 100 * MIB)), anon=150 * MIB)
    assert "loader worker" not in stopped(attempt, censuses=(more,)).next, "more than a copy of it"
