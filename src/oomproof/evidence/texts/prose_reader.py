"""A small learned reader of what people write: does the text report a death at all, and which of the deaths it names?

Two logistic regressions over words, trained by ``bench/prose_reader.py`` on labelled posts; the weights are read when the
first such text comes. Logs are no prose, and are left to the parsers.
"""

from __future__ import annotations

import json
import math
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oomproof.evidence.texts.prose_parts import Lines, ProseParts, parts_of

if TYPE_CHECKING:
    from oomproof.evidence.texts.prose_features import Features

_WEIGHTS = Path(__file__).with_name("prose_weights.json")
_SCALE = 100  # the file's whole numbers are hundredths
_WHOLE = 8000  # characters that may say whose memory it was


class ToldCause(NamedTuple):
    """A death that the text may tell of."""

    cause: str
    line: int
    sentence: str
    probability: float


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


class ProseReading:
    """What the reader makes of a text, each part when it is asked for: few verdicts need the second."""

    def __init__(self, lines: Lines, parts: ProseParts) -> None:
        self._lines = lines
        self._parts = parts

    @cached_property
    def reports(self) -> float:
        """How probable it is that somebody's job died."""
        return models()["report"].probability(self.report_instance)

    @cached_property
    def told(self) -> tuple[ToldCause, ...]:
        """What of, the most probable first."""
        return tuple(
            sorted(
                (
                    told._replace(probability=models()["told"].probability(instance))
                    for told, instance in self.told_instances
                ),
                key=lambda told: -told.probability,
            )
        )

    @property
    def report_instance(self) -> Instance:
        # no log needs its tables
        from oomproof.evidence.texts.prose_features import shape_of_text, words_of_text

        return Instance(shape_of_text(self._parts), words_of_text(self._parts))

    @property
    def told_instances(self) -> list[tuple[ToldCause, Instance]]:
        from oomproof.evidence.texts.death_mentions import candidates, features_of
        from oomproof.evidence.texts.prose_features import shape_of_text

        named = candidates(self._parts, "\n".join(raw for _, raw in self._lines)[:_WHOLE])
        shape = shape_of_text(self._parts)
        found = []
        for candidate in named:
            first = candidate.mentions[0]
            counted, words = features_of(candidate, named)
            told = ToldCause(candidate.cause, first.line, first.sentence.strip(), 0.0)
            found.append((told, Instance({**counted, **shape}, words)))
        return found


def read_prose(lines: Lines) -> ProseReading | None:
    """``lines`` of a whole text. None: no person's words, so not for this reader."""
    parts = parts_of(lines)
    return ProseReading(lines, parts) if parts.is_prose else None
