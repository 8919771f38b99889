"""Texts by their file names: what a person reads. Paths only where two files have one name."""

from __future__ import annotations

import os

from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.text_case import TextCase
from oomproof.records import replace


def by_name(case: TextCase) -> TextCase:
    names = {path: os.path.basename(path) for path in case.sources}
    if len(set(names.values())) < len(case.sources):
        return case

    def renamed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(
            replace(finding, source=names.get(finding.source, finding.source)) for finding in findings
        )

    return replace(
        case,
        sources=tuple(names[path] for path in case.sources),
        system=renamed(case.system),
        training=renamed(case.training),
        others=renamed(case.others),
        progress=replace(case.progress, source=names.get(case.progress.source, case.progress.source)),
        system_logs=tuple(names[path] for path in case.system_logs),
        missing=tuple(replace(gap, source=names.get(gap.source, gap.source)) for gap in case.missing),
    )
