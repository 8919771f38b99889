"""Which trainings are changed by accumulation."""

from __future__ import annotations

from typing import Any

from oomproof.records import replace
from oomproof.sizing.host_figures import HostFigures
from oomproof.sizing.planning.fit_points import Point, split_notes
from oomproof.sizing.virtual_gpu.child_results import BatchFacts


def point(batch: int, **facts: Any) -> Point:
    return Point(batch, {}, HostFigures({}), {}, BatchFacts(**facts))


def notes(*points: Point, batch: int = 8, effective: int = 64) -> str:
    return " ".join(split_notes(points, batch, effective))


def test_batch_norm_is_told_unless_the_batch_is_whole() -> None:
    assert "3 BatchNorm layers" in notes(point(8, norms=3))
    assert "a BatchNorm layer takes" in notes(point(8, norms=1))
    assert notes(point(8, norms=3), batch=64) == "" and notes(point(8, norms=0)) == ""


def test_a_contrastive_loss_grows_with_the_batch_in_both_directions() -> None:
    assert "with each other" in notes(point(8, squares=[8, 512]), point(16, squares=[16, 512]))
    assert notes(point(8, squares=[8, 512]), point(16, squares=[8, 512])) == "", "a layer of that size"
    assert notes(point(8, squares=[8])) == "", "one size proves nothing"
    between = replace(point(16, squares=[16]), batch=12, scaled=True)
    assert "with each other" in notes(point(8, squares=[8]), between, point(16, squares=[16]))


def test_a_mean_over_tokens() -> None:
    assert "mean over tokens" in notes(point(8, rows=[8 * 511]), point(16, rows=[16 * 511]))
    assert notes(point(8, rows=[8]), point(16, rows=[16])) == ""
    between = replace(point(16, rows=[16 * 511]), batch=15, scaled=True)
    assert "mean over tokens" in notes(point(8, rows=[8 * 511]), between, point(16, rows=[16 * 511]))
