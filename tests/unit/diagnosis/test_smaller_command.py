"""The argument that says how many workers, in every way people type it, and the number that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomproof.diagnosis.smaller_command import find_argument, with_value, workers_that_fit


@pytest.mark.parametrize(
    ("typed", "name", "value", "changed"),
    [
        ("python train.py --workers 16 --batch 64", "--workers", 16, "python train.py --workers 6 --batch 64"),
        ("python train.py --num-workers=16", "--num-workers", 16, "python train.py --num-workers=6"),
        ("python t.py --dataloader_num_workers 8", "--dataloader_num_workers", 8, "python t.py --dataloader_num_workers 6"),
        ("python t.py data.num_workers=12", "data.num_workers", 12, "python t.py data.num_workers=6"),
        ("python main.py -j 16 /imagenet", "-j", 16, "python main.py -j 6 /imagenet"),
        ("python t.py --workers 4 --workers 16", "--workers", 16, "python t.py --workers 4 --workers 6"),
    ],
)  # fmt: skip
def test_the_argument_is_found_as_typed(typed: str, name: str, value: int, changed: str) -> None:
    argument = find_argument(typed.split())
    assert argument is not None and (argument.name, argument.value) == (name, value)
    assert " ".join(with_value(typed.split(), argument, 6)) == changed


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("cd /data && python train.py --workers 16 | tee log", "cd /data && python train.py --workers 6 | tee log"),
        ("python t.py --workers=16", "python t.py --workers=6"),
        ("python t.py --workers 16; python t.py --workers 16", None),
        ("python t.py --workers '16", None),
    ],
)  # fmt: skip
def test_within_a_line_of_shell(line: str, changed: str | None) -> None:
    argument = find_argument(["bash", "-c", line])
    assert (argument and with_value(["bash", "-c", line], argument, 6)) == (
        changed and ("bash", "-c", changed)
    )


@pytest.mark.parametrize(
    "typed",
    ["python train.py", "python t.py --workers", "python t.py --workers many", "python t.py 16 workers",
     "python t.py --persistent-workers --batch 64", "python t.py --workers_seed 3"],
)  # fmt: skip
def test_other_words_are_no_number_of_workers(typed: str) -> None:
    assert find_argument(typed.split()) is None


@given(st.integers(1, 512), st.integers(1, 1 << 36), st.integers(0, 1 << 40), st.integers(0, 1 << 42))
def test_what_is_proposed_fits_and_is_the_most_that_does(
    workers: int, each: int, rest: int, room: int
) -> None:
    fits = workers_that_fit(workers, each, rest, room)
    if fits is None:
        assert rest + workers * each <= room
        return
    assert 0 <= fits < workers
    assert fits == 0 or rest + fits * each <= room
    assert rest + (fits + 1) * each > room
