"""How a table of sentences is read: one rule per meaning, one row per sentence, with its test text beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.failures.recogniser import FailureText, Hit, Kind
from oomproof.evidence.texts.finding import GpuNumbers, JobFacts
from oomproof.records import replace

Match = re.Match[str]
NO_FACTS = JobFacts()


class Row:
    """A sentence. ``anchor`` stands in every text that ``pattern`` fits; without a pattern, the anchor is the sentence.
    ``example`` is a text that must be recognised, with the fields of ``gives``, and ``other`` one that must not."""

    def __init__(
        self, anchor: str, example: str, pattern: str = "", gives: Mapping[str, object] | None = None, other: str = ""
    ) -> None:  # fmt: skip
        self.anchor = anchor
        self.example = example
        self.pattern = pattern or re.escape(anchor)
        self.gives = gives or {}
        self.other = other

    @cached_property  # few of them are ever needed
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def search(self, text: str) -> Match | None:
        return self.regex.search(text) if self.anchor in text else None


class Rule:
    """What the sentences of ``rows`` mean. The groups of a pattern fill ``says``; ``pids`` and ``pid`` are taken as pids."""

    def __init__(
        self,
        cause: str,
        says: str,
        strength: float,
        *rows: Row,
        printed: float | None = None,  # the strength of a line that is no exception, where it is another
        kind: Kind = "failure",
        only: Literal["raised", "printed", ""] = "",
        loud: bool = False,  # not of a line that is marked as a warning or as information
        unless: str = "",  # a pattern that makes it mean something else
        facts: JobFacts = NO_FACTS,
        gpu: Callable[[str], GpuNumbers | None] | None = None,
        requested: Callable[[str], int | None] | None = None,
        pids: Callable[[str], tuple[int, ...]] | None = None,
        fits: Callable[[FailureText, Match], bool] | None = None,
        refine: Callable[[FailureText, Match, Hit], Hit | None] | None = None,
    ) -> None:
        self.hit = Hit(cause, says, strength, kind, facts=facts)
        self.rows = rows
        self.anchors = shortest([row.anchor for row in rows])
        self.only = only
        self.printed = strength if printed is None else printed
        self._loud = loud
        self._unless = unless
        self._gpu, self._requested, self._pids = gpu, requested, pids
        self._fits, self.refine = fits, refine

    def read(self, said: FailureText) -> Hit | None:
        if (self._loud and said.quiet) or (self.only and (self.only == "raised") != bool(said.raised)):
            return None
        text = said.text
        for row in self.rows:
            if (match := row.search(text)) and (self._fits is None or self._fits(said, match)):
                break
        else:
            return None
        if self._unless and re.search(self._unless, text):
            return None
        hit, groups = self.hit, match.groupdict()
        pids = tuple(map(int, re.findall(r"\d{1,10}", groups.get("pids") or groups.get("pid") or "")[:16]))
        hit = replace(
            hit,
            says=hit.says.format_map(groups) if "{" in hit.says else hit.says,
            strength=hit.strength if said.raised else self.printed,
            gpu=self._gpu(text) if self._gpu else None,
            pids=self._pids(text) if self._pids else pids,
            facts=replace(hit.facts, requested=self._requested(text)) if self._requested else hit.facts,
        )
        return self.refine(said, match, hit) if self.refine else hit


class CodeRule:
    """What no row can say: ``read`` is asked of every text with an anchor in it."""

    def __init__(
        self, anchors: Sequence[str], read: Callable[[FailureText], Hit | None], rules: Sequence[Rule] = (), rows: Sequence[Row] = ()
    ) -> None:  # fmt: skip
        self.rules = rules  # that it asks on its way, as well as these rows
        self.rows = (*rows, *(row for rule in rules for row in rule.rows))
        self.anchors = shortest([*anchors, *(row.anchor for row in self.rows)])
        self.read = read


def talk_if_quiet(said: FailureText, match: Match, hit: Hit) -> Hit:
    return replace(hit, kind="talk") if said.quiet else hit
