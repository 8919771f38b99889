"""Experiments and what follows from them: as text, as Markdown for a report, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oomproof.reports import markdown_parts
from oomproof.reports.table_text import folded, table
from oomproof.sweeps.experiments.experiment_conclusion import (
    DOES_NOT,
    FOLLOWS,
    UNKNOWN,
    FactorFinding,
    eliminate,
)
from oomproof.sweeps.experiments.experiment_plan import Experiment, Factor
from oomproof.units import format_duration, format_size

_ANSWERS = {
    FOLLOWS: "the outcome follows it",
    DOES_NOT: "the outcome does not follow it",
    UNKNOWN: "not known",
}


def as_text(factors: Sequence[Factor], done: Sequence[Experiment], width: int) -> str:
    head, rows = _rows(factors, done)
    told = eliminate(factors, done)
    if not done:  # of a table there is only the head
        return told.sentence
    end, run = len(factors) + 1, len(head) - 1
    lines = table(
        [head, *rows],
        width,
        shrink={end: 16, **dict.fromkeys(range(len(factors)), 8)},
        drop=(run, run - 1),
    )
    names = max(len(finding.factor.name) for finding in told.findings)
    lines.append("")
    for finding in told.findings:
        lines += folded(f"{finding.factor.name:{names}}  ", _finding_text(finding), width)
    lines.append("")
    for sentence in (told.sentence, *told.notes):
        lines += folded("", sentence, width)
    return "\n".join(lines)


def as_markdown(factors: Sequence[Factor], done: Sequence[Experiment]) -> str:
    head, rows = _rows(factors, done)
    told = eliminate(factors, done)
    findings = [(finding.factor.name, _finding_text(finding)) for finding in told.findings]
    return "\n\n".join(
        [
            markdown_parts.table([markdown_parts.text(name) for name in head], rows),
            markdown_parts.table(["factor", "what was seen"], findings),
            f"**{markdown_parts.text(told.sentence)}**",
            *(markdown_parts.text(note) for note in told.notes),
        ]
    )


def as_json(factors: Sequence[Factor], done: Sequence[Experiment], complete: bool) -> dict[str, Any]:
    told = eliminate(factors, done)
    return {
        "schema": 1,
        "complete": complete,  # false: interrupted
        "follows": told.follows,
        "sentence": told.sentence,
        "notes": list(told.notes),
        "factors": [
            {
                "name": finding.factor.name,
                "kind": "env" if finding.factor.is_env else "argument",
                "values": list(finding.factor.values),
                "answer": finding.answer,
                "outcomes": dict(finding.outcomes),
                "outcomes_with": finding.others or None,  # null: with the others as in the baseline
                "peak": finding.peak or None,
            }
            for finding in told.findings
        ],
        "experiments": [_experiment_json(factors, experiment) for experiment in done],
    }


def end_of(experiment: Experiment) -> str:
    """``died: kernel: cgroup limit; 96 MiB, 3.1 s``."""
    figures = [format_size(experiment.peak)] if experiment.peak is not None else []
    figures += [format_duration(experiment.seconds)] if experiment.seconds is not None else []
    figures += [f"taken from {experiment.run}"] if experiment.earlier else []
    return f"{experiment.outcome}: {experiment.end}" + (f"; {', '.join(figures)}" if figures else "")


def _rows(factors: Sequence[Factor], done: Sequence[Experiment]) -> tuple[list[str], list[list[str]]]:
    with_gpu = any(experiment.gpu_peak for experiment in done)
    gpu_head = ["GPU peak"] if with_gpu else []
    head = [*(factor.name for factor in factors), "outcome", "end", "peak", *gpu_head, "time", "run"]
    rows = [
        [
            *(value or "(empty)" for value in experiment.values),
            experiment.outcome,
            experiment.end,
            format_size(experiment.peak),
            *([format_size(experiment.gpu_peak)] if with_gpu else []),
            format_duration(experiment.seconds),
            experiment.run,
        ]
        for experiment in done
    ]
    return head, rows


def _finding_text(finding: FactorFinding) -> str:
    values_by_end: dict[str, list[str]] = {}
    for value, end in finding.outcomes:
        values_by_end.setdefault(end, []).append(value or "(empty)")
    listed = "; ".join(f"{end} with {', '.join(values)}" for end, values in values_by_end.items())
    text = _ANSWERS[finding.answer]
    text += f": {listed}" if listed else ""
    text += f" ({finding.others})" if finding.others else ""
    return f"{text}; {finding.peak}" if finding.peak else text


def _experiment_json(factors: Sequence[Factor], experiment: Experiment) -> dict[str, Any]:
    return {
        "values": {factor.name: value for factor, value in zip(factors, experiment.values, strict=True)},
        "outcome": experiment.outcome,
        "end": experiment.end,
        "cause": experiment.cause,
        "headline": experiment.headline or None,
        "timed_out": experiment.timed_out,
        "earlier": experiment.earlier,
        "seconds": experiment.seconds,
        "peak_bytes": experiment.peak,
        "peak_gpu_bytes": experiment.gpu_peak,
        "run": experiment.run,
        "name": experiment.name,
    }
