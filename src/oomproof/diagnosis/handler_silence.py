"""What it means that the script's own handlers printed nothing."""

from __future__ import annotations

from oomproof.evidence.case_file import CaseFile, SilentHandler

_EXCLUDES = {"exception": "it was no such Python exception", "nan": "the values it looks at were numbers"}


def silence(case: CaseFile) -> str:
    """One clause for each kind of handler, to stand at the end of a sentence; empty where there is none."""
    first: dict[str, SilentHandler] = {}
    for handler in case.silent:
        if handler.kind not in first or (handler.sure and not first[handler.kind].sure):
            first[handler.kind] = handler
    return "".join(f"; {_clause(handler)}" for handler in first.values())


def _clause(handler: SilentHandler) -> str:
    text = handler.text if len(handler.text) <= 60 else handler.text[:59] + "…"
    said = f"{handler.file}:{handler.line} ({handler.catches}) would have printed «{text}» and did not"
    if not handler.sure:
        return f"{said}: {_EXCLUDES[handler.kind]}, unless the line was still in a buffer (python -u)"
    return f"{said}: {_EXCLUDES[handler.kind]}"
