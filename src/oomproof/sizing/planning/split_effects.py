"""When splitting a batch into micro-batches changes the mathematics, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oomproof.sizing.planning.fit_points import Point


def split_notes(points: Sequence[Point], batch: int, effective: int) -> Iterator[str]:
    """Of a plan that takes ``effective`` samples in pieces of ``batch``."""
    if batch >= effective:
        return
    # the others have the facts of a run with another batch
    points = [point for point in points if not point.scaled]
    if norms := max((int(point.facts.get("norms", 0)) for point in points), default=0):
        yield norms_note(norms, batch, effective)
    if _is_contrastive(points):
        yield comparing_note(batch, effective)
    if _is_token_mean(points):
        yield (
            "the loss is a mean over tokens: with sequences of unequal length the mean of the pieces is another than that of the whole "
            "(transformers' Trainer weighs them since 4.46; in a loop of your own divide by the tokens of all pieces)"
        )


def norms_note(norms: int, batch: int, effective: int) -> str:
    layers = f"{norms} BatchNorm layers take" if norms > 1 else "a BatchNorm layer takes"
    return f"{layers} mean and variance of {batch} samples instead of {effective}: accumulation does not make up for that"


def comparing_note(batch: int, effective: int) -> str:
    return (
        f"the loss compares the samples of a batch with each other ({batch} instead of {effective}): "
        "accumulation does not make up for that"
    )


def _is_contrastive(points: Sequence[Point]) -> bool:
    """A product as large as the batch in both directions, at two sizes of it: not a layer that happens to have that size."""
    sizes = {point.batch for point in points if point.batch > 1}
    return len(sizes) > 1 and all(
        point.batch in point.facts.get("squares", ()) for point in points if point.batch > 1
    )


def _is_token_mean(points: Sequence[Point]) -> bool:
    """Rows of the loss are several times the batch."""
    sizes = [point for point in points if point.batch]
    return bool(sizes) and all(
        any(rows > point.batch and rows % point.batch == 0 for rows in point.facts.get("rows", ()))
        for point in sizes
    )
