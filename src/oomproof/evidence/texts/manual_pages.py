"""Texts that explain how things die in place of reporting a death: articles, glossaries, manuals."""

from __future__ import annotations

import re
from collections.abc import Iterable

_EXPLAINS = re.compile(
    r"(?i)\bin this (?:article|post|guide|tutorial|section)\b|\btroubleshooting guide\b|\bcommon (?:symptoms|causes)\b|\b(?:is|are) referred to as\b"
    r"|\bcauses?, fix(?:es)?\b|\btechnical summary\b|\brecommended (?:diagnosis|fix|solution)\b|\bfrequently asked\b|\blet's (?:get|look|dive|see)\b|\bhere's (?:how|what) (?:to|you)\b|^what it is$"
)
_REPORTS = re.compile(r"\b(?:I|I'm|I've|[Mm]y)\b")
_LINE = 400


def explains(lines: Iterable[tuple[int, str]]) -> bool:
    """``lines`` of a whole text. Whoever says "I" or "my" reports."""
    told = [raw[:_LINE] for _, raw in lines]
    return any(map(_EXPLAINS.search, told)) and not any(map(_REPORTS.search, told))
