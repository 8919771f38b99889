"""Searches over many trials (Ray Tune, Optuna, W&B sweeps): the searcher tells that one failed, not why."""

from __future__ import annotations

import re

from oomproof.evidence.texts.failures.hit import Hit, Said

ANCHORS = ("rrored", "failed runs", "Trial status")

_FAILED = re.compile(
    r"^Number of errored trials: [1-9]|^Trial \S{1,120} errored after \d|^Trial status: [^\n]{0,120}\b[1-9]\d* ERROR\b"
    r"|^(?:wandb: )?(?:ERROR )?Detected \d+ failed runs in (?:the first|a row)|^Run \S{1,40} errored\b"
)


def recognise(said: Said) -> Hit | None:
    if said.raised or not _FAILED.search(said.text):
        return None
    return Hit("other-error", "a trial of the search failed", 0.4, "wrapper")
