"""A handler that printed nothing is evidence too."""

from __future__ import annotations

from oomproof.evidence.facts import CaseFile


def silent_handler(case: CaseFile) -> str | None:
    return None
