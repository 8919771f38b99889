"""Journals and kernel logs copied from a screen: what its width broke is put together, what it cut is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.evidence.texts.screen_lines import Unwrapped, screen_width
from oomproof.evidence.texts.text_case import read_texts

CORPUS = Path(__file__).parents[2] / "corpus" / "kernel"
NAMES = (
    "real-memcg-anon-T.txt",
    "real-unit-limit-journal.txt",
    "real-user-scope-iso.txt",
    "real-whole-iso.txt",
)
TRUTHS = {
    truth["file"].removeprefix("kernel/"): truth
    for truth in map(json.loads, (CORPUS / "truth.jsonl").read_text().splitlines())
}


def broken(text: str, width: int) -> list[str]:
    return [line[at : at + width] for line in text.splitlines() for at in range(0, max(1, len(line)), width)]


@pytest.mark.parametrize("width", [80, 100, 132])
@pytest.mark.parametrize("name", [name for name in NAMES if (CORPUS / name).exists()])
def test_figures_of_a_log_that_a_screen_broke(name: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("\n".join(broken((CORPUS / name).read_text(), width)))
    verdict = judge_texts(read_texts([str(path)])).to_json()["verdict"]
    truth, victim = TRUTHS[name], verdict["victim"]
    assert verdict["cause"] == truth["kind"]
    assert (victim["pid"], victim["name"]) == (truth["victim_pid"], truth["victim_name"])
    assert victim["anon_rss_bytes"] == truth["anon_rss_kb"] * 1024


STAMPED = [
    f"May 03 12:00:{number:02d} box kernel: {'word ' * (5 + 9 * (number % 3))}end" for number in range(20)
]


def test_pieces_come_under_the_number_of_the_first() -> None:
    pieces = broken("\n".join(STAMPED), 80)
    joined = list(Unwrapped(enumerate(pieces, 1)))
    assert [line for _, line in joined] == STAMPED
    assert [pieces[number - 1][:15] for number, _ in joined] == [line[:15] for line in STAMPED]


def test_a_blank_in_the_last_column_comes_back() -> None:
    pieces = [piece.rstrip() for piece in broken("\n".join(STAMPED), 80)]
    assert [line for _, line in Unwrapped(enumerate(pieces, 1))] == STAMPED


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([line[:80] for line in STAMPED], id="cut, not broken"),
        pytest.param(STAMPED, id="whole"),
        pytest.param([f"{number:3d}%|{'#' * 70:70s}| {number:3d}" for number in range(40)], id="bars as wide as the screen"),
        pytest.param(broken("\n".join(f"loss {'0.1 ' * 30}" for _ in range(9)), 80), id="no stamps"),
        pytest.param([*STAMPED, "x" * 5000], id="a line wider than any screen"),
    ],
)  # fmt: skip
def test_other_texts_stay(lines: list[str]) -> None:
    assert screen_width(lines) == 0
    assert [line for _, line in Unwrapped(enumerate(lines, 1))] == lines


TRAINING = [
    "epoch 1 step 10 loss 0.5",
    'Traceback (most recent call last):',
    '  File "/home/ada/projects/recommender/src/training/trainer_with_a_long_name.py", line 88, in train_one_epoch',
    "    loss.backward()",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 22.00 GiB already allocated; 10.00 MiB free)",
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_training_log_that_a_screen_broke(width: int) -> None:
    pieces = broken("\n".join(TRAINING), width)
    assert TRAINING[-1] in [line for _, line in Unwrapped(enumerate(pieces, 1))]


@pytest.mark.parametrize(
    "lines",
    [
        ["=" * 80, "training", "=" * 80, "done"],  # rules as wide as a screen
        [f"step {step:05d} loss 0.5 {'x' * 62}" for step in range(20)],  # all of one width
        ["a" * 30 + " a line of a program's own that happens to be as wide as a screen", "Traceback (most recent call last):"],
        [f"Nov 15 11:33:{at:02d} box nohang[626]: {'word ' * 9}end" + "." * (at % 2) for at in range(9)],
    ],
)  # fmt: skip
def test_what_no_screen_broke_stays_as_it_is(lines: list[str]) -> None:
    assert [line for _, line in Unwrapped(enumerate(lines, 1))] == lines
