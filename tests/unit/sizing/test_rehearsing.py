"""A rehearsal's figures: which samples are largest, what a phase took, what it means; and the words for people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.sizing import rehearsing
from oomproof.sizing.rehearsing import Looks, OutOfMemory, PhasePeak, Rehearsal
from oomproof.sizing.verbs import rehearse as verb
from oomproof.sizing.virtual_gpu.child_results import Batch
from oomproof.sizing.virtual_gpu.largest_batches import largest_batch, largest_possible, padded, sample_size
from oomproof.sizing.watched_child import Watched

GIB, MIB = 1 << 30, 1 << 20


# --- the largest batch ------------------------------------------------------------------------------------------


class Image:
    size = (640, 480)
    mode = "RGB"


class Tensor:
    def numel(self) -> int:
        return 10

    def element_size(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("sample", "size"),
    [
        ({"input_ids": [1] * 100, "label": 1}, 800),
        ([1] * 3, 24),
        ("text of 15 chars", 16),
        (b"abc", 3),
        (Tensor(), 40),
        ((Tensor(), 3), 40),
        ({"a": {"b": [Tensor(), Tensor()]}}, 80),
        (Image(), 3 * 640 * 480),
        ([[1, 2]] * 1000, 16_000),
        (None, 0),
        (object(), 0),
        ([], 0),
    ],
)
def test_the_size_of_any_sample(sample: Any, size: int) -> None:
    assert sample_size(sample) == size


def test_a_sample_that_holds_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert sample_size(loop) == 0


def test_samples_that_may_meet_and_those_that_do() -> None:
    sizes = {0: 5, 1: 90, 2: 5, 3: 80, 4: 70, 5: 5}
    assert largest_possible(sizes, 3) == [1, 3, 4]
    assert largest_batch(sizes, [[0, 1], [2, 3], [4, 5]]) == [0, 1]
    assert largest_batch(sizes, [[0, 2, 5], [4], [3, 4]]) == [3, 4], "filled up to the longest"
    assert largest_batch(sizes, []) == [] and largest_batch({}, [[1, 2]]) == []
    assert largest_batch(sizes, [[7, 8], [9, 1]]) == [9, 1], "of those that were looked at"


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 1000), min_size=1), st.integers(1, 8))
def test_no_batch_of_that_many_is_larger(sizes: dict[int, int], count: int) -> None:
    chosen = [sizes[index] for index in largest_possible(sizes, count)]
    assert len(chosen) == min(count, len(sizes))
    assert padded(chosen)[0] >= padded(sorted(sizes.values())[:count])[0]
    assert max(chosen) == max(sizes.values())


def test_what_an_evaluation_keeps() -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    from oomproof.sizing.rehearsal.worst_batches import kept_each

    assert kept_each([(2, 100 * MIB), (4, 110 * MIB), (6, 120 * MIB), (7, 125 * MIB)]) == 5 * MIB
    assert kept_each([(2, 100 * MIB), (4, 110 * MIB), (6, 100 * MIB)]) == 0, "it goes again"
    assert kept_each([(2, 100 * MIB), (4, 100 * MIB + 1000)]) == 0, "a metric"
    assert kept_each([(2, 5)]) == 0 and kept_each([]) == 0
    assert kept_each([(2, 0), (2, MIB), (4, 2 * MIB)]) == MIB, "two looks at one batch"


# --- what a phase took ------------------------------------------------------------------------------------------


def result(**changed: Any) -> dict[str, Any]:
    """As a child writes it: 10 GiB of a 24 GiB card, whose evaluation keeps its outputs."""
    value: dict[str, Any] = {
        "reason": "done", "error": "", "memory_error": False, "phase": "train", "steps": 5,
        "entered": {"load": 1, "train": 3, "eval": 2}, "host": {"load": GIB, "train": 2 * GIB, "eval": 2 * GIB},
        "cards": {"load": {"0": [GIB, GIB]}, "train": {"0": [8 * GIB, 9 * GIB]}, "eval": {"0": [5 * GIB, 9 * GIB]}},
        "card_facts": [{"index": 0, "free": 13 * GIB, "total": 24 * GIB, "reserved": 9 * GIB}],
        "evaluations": 2, "kept": 0, "across": 0, "saves": 0, "saved": 0, "generations": 0, "tokens_left": 0,
        "batches": [{"looked": 100, "of": 100, "usual": 50, "largest": 200, "how": "the largest of 4 batches that the loader makes",
                     "shapes": ["int64 [8, 400]"], "training": True}],
        "notes": [], "ooms": [],
    }  # fmt: skip
    return {**value, **changed}


def rehearsed(
    folder: Path, status: int = 0, others: dict[str, int] | None = None, **changed: Any
) -> Rehearsal:
    (folder / "started").touch()
    (folder / "77.json").write_text(json.dumps(result(**changed)))
    (folder / "written.json").write_text('{"count": 0, "bytes": 0, "names": []}')
    looks = Looks(Watched(status=status, limit=20 * GIB), {"train": (3 * GIB, GIB), "load": (GIB, 0)})
    return rehearsing._answer(str(folder), looks, others or {}, lambda line: None)


def test_the_card_counts_with_cudas_own_and_the_host_with_the_workers(tmp_path: Path) -> None:
    value = rehearsed(tmp_path, others={"0": GIB})
    train = next(phase for phase in value.phases if phase.name == "train")
    assert train.gpu == 10 * GIB, "nine reserved, one of context: 24 - 13 free - 9 - one of others"
    assert train.host == 3 * GIB and train.allocated == 8 * GIB
    assert value.peak("gpu") == 10 * GIB and value.card_total == 24 * GIB and value.card_others == GIB
    assert not next(phase for phase in value.phases if phase.name == "save").reached
    strange = rehearsed(tmp_path, others={"0": 9 * GIB})  # one that came or went meanwhile
    assert strange.peak("gpu") == 9 * GIB + rehearsing.CONTEXT


def test_the_host_counts_the_queue_that_no_look_saw_full(tmp_path: Path) -> None:
    """Two workers of 1.5 GiB and five batches of 1 GiB, beside the process's own."""
    loader = {
        "workers": 2, "prefetch": 2, "batch": GIB, "pinned": 0, "method": "fork", "own": [GIB, 3 * GIB // 2], "settled": True,
    }  # fmt: skip
    own = {"host": {"load": GIB, "train": 2 * GIB}}
    train = next(
        phase
        for phase in rehearsed(tmp_path, loaders={"train": [loader]}, **own).phases
        if phase.name == "train"
    )
    assert train.host == 2 * GIB + (GIB + 3 * GIB // 2) + 5 * GIB
    unfilled = rehearsed(tmp_path, loaders={"train": [{**loader, "settled": False}]}, **own)
    train = next(phase for phase in unfilled.phases if phase.name == "train")
    assert train.host == 2 * GIB + 2 * (3 * GIB // 2) + 2 * GIB + 5 * GIB
    assert any("did not fill their queue" in note for note in unfilled.notes)


def test_what_was_left_out_of_an_evaluation_is_added(tmp_path: Path) -> None:
    value = rehearsed(tmp_path, kept=6 * GIB, across=6 * GIB)
    evaluation = next(phase for phase in value.phases if phase.name == "eval")
    assert evaluation.gpu == GIB + 17 * GIB + GIB, "five live and twelve kept, context and what nobody names"
    assert evaluation.kept == 12 * GIB
    assert (
        verb.status_of(value, [verb.fit(verb._card(value), verb.Estimate(30 * GIB, 30 * GIB, 30 * GIB, {}))])
        == 69
    )


@pytest.mark.parametrize(
    ("changed", "others", "phase", "status"),
    [
        ({"memory_error": True, "error": "OutOfMemoryError: CUDA out of memory", "ooms": [
            {"phase": "eval", "requested": 2 * GIB, "free": MIB}]}, {}, "eval", 69),
        ({"memory_error": True, "error": "OutOfMemoryError: CUDA out of memory", "ooms": [
            {"phase": "eval", "requested": 2 * GIB, "free": MIB}]}, {"0": 8 * GIB}, "eval", 75),
        ({"memory_error": True, "error": "MemoryError: ", "phase": "load", "steps": 0}, {}, "load", 69),
    ],
)  # fmt: skip
def test_out_of_memory_names_the_phase(
    tmp_path: Path, changed: dict[str, Any], others: dict[str, int], phase: str, status: int
) -> None:
    value = rehearsed(tmp_path, 1, others, **changed)
    assert value.out_of_memory is not None and value.out_of_memory.phase == phase
    assert verb.status_of(value, verb.fits_of(value)) == status
    assert f"in {phase}" in verb.out_of_memory_text(value)


def test_a_share_of_the_card_that_was_full_is_told_as_one(tmp_path: Path) -> None:
    oom = {"phase": "eval", "requested": 6 * GIB, "free": 102 * GIB}
    value = rehearsed(tmp_path, 1, {}, memory_error=True, error="CUDA out of memory", ooms=[oom])
    assert value.out_of_memory is not None and "a limit of its own" in value.out_of_memory.text


def test_a_script_that_failed_later_keeps_its_status(tmp_path: Path) -> None:
    value = rehearsed(tmp_path, status=3, error="ValueError: x")
    assert value.refused is not None and "failed by itself in train, with status 3" in value.refused
    assert verb.status_of(value, []) == 3


def test_an_error_that_was_caught_is_told(tmp_path: Path) -> None:
    oom = {"phase": "train", "requested": GIB, "free": 0}
    assert any("and caught it" in note for note in rehearsed(tmp_path, ooms=[oom]).notes)


def test_the_host_that_was_full(tmp_path: Path) -> None:
    (tmp_path / "phase").write_text("eval".ljust(32))
    looks = Looks(Watched(status=-9, limit=20 * GIB), {"eval": (19 * GIB, 0)})
    value = rehearsing._answer(str(tmp_path), looks, {}, lambda line: None)
    assert value.out_of_memory == OutOfMemory(
        "eval", "host", "held 19.0 GiB of the 20.0 GiB that this machine can give now"
    )


# --- words ------------------------------------------------------------------------------------------------------

WHOLE = Rehearsal(
    phases=(
        PhasePeak("load", True, GIB, GIB, GIB), PhasePeak("train", True, 18 * GIB, 2 * GIB, 16 * GIB), PhasePeak("eval", False),
        PhasePeak("generate", False), PhasePeak("save", True, 18 * GIB, 3 * GIB, 6 * GIB),
    ),
    batches=(Batch(True, "the largest samples, which may meet: the loader draws at random", 12400, 12400, 310, 2048, ["int64 [8, 2048]"]),),
    steps=4, saves=1, seconds=41.0, card=0, card_total=24 * GIB,
)  # fmt: skip


def test_what_people_read() -> None:
    text = "\n".join(verb.lines_of(WHOLE, verb.fits_of(WHOLE)[1:], ["python", "train.py"], 100))
    assert "rehearsed in 41 s: 4 steps, 1 checkpoint" in text
    assert "int64 [8, 2048]: the largest samples, which may meet: the loader draws at random" in text
    assert "all 12,400 samples" in text and "6.6 times the usual one" in text
    assert "train  18.0 GiB     75%" in text and "eval   not reached" in text and "generate" not in text
    assert "note  not reached: eval. What that takes is not known; --time-limit gives it longer" in text
    assert "oomproof run --need 3380M --gpu-need 18.8G -- python train.py" in text


def test_no_more_is_asked_of_a_card_than_it_has() -> None:
    full = Rehearsal(
        phases=(PhasePeak("train", True, 23 * GIB, None, 22 * GIB),), card=0, card_total=int(23.5 * GIB)
    )
    assert verb.needs(full) == ["--gpu-need", "23.5G"]


def test_which_phase_does_not_fit_is_said() -> None:
    large = Rehearsal(
        phases=(PhasePeak("eval", True, 30 * GIB, GIB, 29 * GIB, 20 * GIB),),
        card=0,
        card_total=24 * GIB,
        steps=3,
    )
    fits = verb.fits_of(large)[1:]
    assert (
        verb.short_text(large, fits)
        == "eval does not fit: it needs 30.0 GiB of the card, 20.0 GiB of it for the batches that were left out"
    )
    assert "let the evaluation's outputs go" in verb.next_lines(large, fits, ["x"])[0]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "no command to rehearse"),
        (["--time-limit", "1s", "--", "python"], 2, "too short"),
        (["--", "no-such-program-anywhere"], 127, "command not found"),
    ],
)
def test_bad_input(words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", *words]) == status
    assert said in capsys.readouterr().err
