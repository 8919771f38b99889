"""A small learned reader of what people write: does the text report a death at all, and which of the deaths it names?

Two logistic regressions over words, trained by ``bench/prose_reader.py`` on labelled posts; the weights are read when the
first such text comes. Logs are no prose, and are left to the parsers.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

from oomproof.evidence.texts.prose_features import Features, shape_of_text, words_of_text
from oomproof.evidence.texts.prose_parts import Lines, parts_of
from oomproof.evidence.texts.told_causes import Candidate, candidates, features_of
from oomproof.records import dataclass

_WEIGHTS = Path(__file__).with_name("prose_weights.json")
_SCALE = 100  # the file's whole numbers are hundredths
_WHOLE = 8000  # characters that may say whose memory it was


@dataclass(frozen=True, slots=True)
class ToldCause:
    cause: str
    line: int
    sentence: str
    probability: float


@dataclass(frozen=True, slots=True)
class ProseReading:
    """``reports``: how probable it is that somebody's job died. ``told``: what of, the most probable first."""

    reports: float
    told: tuple[ToldCause, ...] = ()


class Instance(NamedTuple):
    """What one of the two regressions looks at: numbers, and words that count the less the more there are."""

    counted: Features
    words: set[str]


class Model(NamedTuple):
    bias: float
    weights: dict[str, float]

    def probability(self, instance: Instance) -> float:
        weights = self.weights
        score = self.bias + sum(
            value * weights[name] for name, value in instance.counted.items() if name in weights
        )
        known = [weights[name] for name in instance.words if name in weights]
        if known:
            score += sum(known) / math.sqrt(len(known))
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


@cache
def models() -> dict[str, Model]:
    stored = json.loads(_WEIGHTS.read_text(encoding="utf-8"))
    return {
        name: Model(
            stored[name]["bias"] / _SCALE,
            {feature: weight / _SCALE for feature, weight in stored[name]["weights"].items()},
        )
        for name in ("report", "told")
    }


def instances(lines: Lines) -> tuple[Instance, list[tuple[Candidate, Instance]]] | None:
    """Of the text as a whole, and of each death that it may tell of; None where it is no prose."""
    parts = parts_of(lines)
    if not parts.is_prose:
        return None
    shape = shape_of_text(parts)
    named = candidates(parts, "\n".join(raw for _, raw in lines)[:_WHOLE])
    told = []
    for candidate in named:
        counted, words = features_of(candidate, named)
        told.append((candidate, Instance({**counted, **shape}, words)))
    return Instance(shape, words_of_text(parts)), told


def read_prose(lines: Lines) -> ProseReading | None:
    """``lines`` of a whole text. None: not for this reader."""
    seen = instances(lines)
    if seen is None:
        return None
    report, told = seen
    known = models()
    found = [
        ToldCause(
            candidate.cause,
            candidate.mentions[0].line,
            candidate.mentions[0].sentence.strip(),
            known["told"].probability(instance),
        )
        for candidate, instance in told
    ]
    found.sort(key=lambda cause: -cause.probability)
    return ProseReading(known["report"].probability(report), tuple(found))
