"""What the words of a failure mean: one file per family, most specific first, first answer wins."""

from __future__ import annotations

from collections.abc import Callable

from oomproof.evidence.texts.failures import (
    accelerators,
    any_memory,
    communication,
    crash_reports,
    engines,
    gpu_faults,
    gpu_libraries,
    gpu_memory,
    host_memory,
    loader,
    not_a_number,
    ordinary,
    signals,
    trials,
)
from oomproof.evidence.texts.failures.hit import Hit, Said

__all__ = ["Hit", "Said", "recognise"]

# The order is part of the meaning. Engines first: their lines quote other families' words. The GPU's
# memory before XLA's: a plain driver error is nobody's in particular. Any other words for a lack of
# memory only after the known sentences. Signals late: "exit code" is in
# many a line that says more. What an exception's type alone says comes last, in `ordinary`.
_FAMILIES: tuple[tuple[tuple[str, ...], Callable[[Said], Hit | None]], ...] = tuple(
    (family.ANCHORS, family.recognise)
    for family in (
        engines,
        loader,
        gpu_faults,
        gpu_memory,
        accelerators,
        gpu_libraries,
        host_memory,
        any_memory,
        communication,
        not_a_number,
        crash_reports,
        ordinary,
        signals,
        trials,
    )
)


def recognise(said: Said) -> Hit | None:
    text = said.text
    for anchors, recogniser in _FAMILIES:
        if _marked(text, anchors) and (hit := recogniser(said)) is not None:
            return hit
    return None


def _marked(text: str, anchors: tuple[str, ...]) -> bool:
    for anchor in anchors:  # noqa: SIM110  # any() took twice the time of this loop
        if anchor in text:
            return True
    return False
