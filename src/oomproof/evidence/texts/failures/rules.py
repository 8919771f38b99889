"""Rules that read one error message: a ``Rule`` has one meaning and one ``Row`` for each sentence, with the text that tests it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from oomproof.evidence.texts.anchor_strings import shortest
from oomproof.evidence.texts.finding import GpuNumbers, JobFacts, Kind
from oomproof.records import dataclass, replace

Match = re.Match[str]
NO_FACTS = JobFacts()


@dataclass(frozen=True, slots=True)
class FailureText:
    text: str  # the line, or "Type: message" with the lines that belong to it
    raised: str = ""  # the exception's type where the text is one
    level: str = ""
    files: str = ""  # the traceback's files and functions, one a line, outermost first
    library: str = ""  # "jax" or "tensorflow" once the log has named one

    @property
    def quiet(self) -> bool:
        """True for a line that its program logged as a warning or as information."""
        return not self.raised and self.level in ("WARNING", "INFO", "DEBUG")


@dataclass(frozen=True, slots=True)
class Hit:
    cause: str
    says: str
    strength: float = 0.9
    kind: Kind = "failure"
    gpu: GpuNumbers | None = None
    pids: tuple[int, ...] = ()
    facts: JobFacts = NO_FACTS  # frozen


class Row:
    """A sentence. ``anchor`` stands in every text that ``pattern`` fits; without a pattern, the anchor is the sentence.
    ``example`` must be recognised, with the fields of ``gives``, and ``other`` must not."""

    def __init__(
        self,
        anchor: str,
        example: str = "",
        pattern: str = "",
        gives: Mapping[str, object] | None = None,
        other: str = "",
    ) -> None:
        self.anchor = anchor
        self.example = example or anchor
        self.pattern = pattern or re.escape(anchor)
        self.gives = gives or {}
        self.other = other

    @cached_property  # a run needs few of them
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def search(self, text: str) -> Match | None:
        return self.regex.search(text) if self.anchor in text else None


class Rule:
    """What the sentences of ``rows`` mean. The groups of a pattern fill ``says``; ``pids`` and ``pid`` are read as pids."""

    def __init__(
        self,
        cause: str,
        says: str,
        strength: float,
        *rows: Row,
        printed: float | None = None,  # the strength of a line that is no exception, if it is another
        kind: Kind = "failure",
        only: Literal["raised", "printed", ""] = "",
        loud: bool = False,  # ignores lines that are logged as a warning or as information
        unless: str = "",  # a pattern that gives the text another meaning
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
    """A recogniser that no row can express: ``read`` is called for every text that contains one of the anchors."""

    def __init__(
        self,
        anchors: Sequence[str],
        read: Callable[[FailureText], Hit | None],
        rules: Sequence[Rule] = (),  # that ``read`` asks, as well as these rows
        rows: Sequence[Row] = (),
    ) -> None:
        self.rules = rules
        self.rows = (*rows, *(row for rule in rules for row in rule.rows))
        self.anchors = shortest([*anchors, *(row.anchor for row in self.rows)])
        self.read = read


def talk_if_quiet(said: FailureText, match: Match, hit: Hit) -> Hit:
    return replace(hit, kind="talk") if said.quiet else hit


_NAMED = re.compile(r"(?:Error|error|failed|what\(\)|Exception)\W*(?:\w+\W*){0,4}$")


def is_message(sentence: Match, said: FailureText, strict: bool = False) -> bool:
    """True if the sentence is the line's message and not a mention of it: it starts the line or follows a colon, a quote or an error level.
    ``strict``: an error's name a few words before it is not enough."""
    before = sentence.string[: sentence.start()].rstrip().lstrip("#>*.… ")
    if (
        not before
        or before.isdigit()  # a row number
        or before.endswith((":", "'", '"', "`", "]", ")", "NCCL WARN", "!!!", " -", "：", "**"))
        or said.level in ("ERROR", "FATAL", "CRITICAL")
    ):
        return True
    return not strict and bool(_NAMED.search(before[-80:]))
