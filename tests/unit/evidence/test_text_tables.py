"""Every row of the tables of messages recognises its own example, with the fields it promises, and not its counter-example."""

from __future__ import annotations

from typing import Any

import pytest

from oomproof.evidence.texts.failures import RULES, FailureText, recognise
from oomproof.evidence.texts.failures.rules import Row, Rule
from oomproof.evidence.texts.finding import Finding
from oomproof.evidence.texts.guard_parser import ANCHORS as GUARD_ANCHORS
from oomproof.evidence.texts.guard_parser import GuardParser
from oomproof.evidence.texts.guard_table import TABLES, GuardRow
from oomproof.evidence.texts.kernel_faults import FAULTS, FaultRow
from oomproof.evidence.texts.kernel_parser import ANCHORS as KERNEL_ANCHORS
from oomproof.evidence.texts.kernel_parser import KernelParser
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.training_parser import TrainingParser

ASKED = [inner for rule in RULES for inner in ((rule,) if isinstance(rule, Rule) else rule.rules)]
JOB_ROWS = [(rule, row) for rule in ASKED for row in rule.rows]
RULED = {id(row) for _, row in JOB_ROWS}
EXITS = [row for rule in RULES for row in rule.rows if id(row) not in RULED]  # that code asks on its own


def read(parser: Any, text: str) -> list[Finding]:
    for number, line in enumerate(text.split("\n"), 1):
        parser.feed(number, line)
    found: list[Finding] = parser.finish()
    return found


def text(rule: Rule, row: Row) -> str:
    named = rule.only != "raised" or "Error" in row.example or "Exception" in row.example
    return row.example if named else f"RuntimeError: {row.example}"


def field(finding: Finding, name: str) -> object:
    for owner in (finding.gpu, finding.job, finding):
        if (value := getattr(owner, name, None)) is not None:
            return value
    return None


def check(row: Row, finding: Finding) -> None:
    for name, value in row.gives.items():
        assert field(finding, name) == value, name


@pytest.mark.parametrize(
    ("rule", "row"), JOB_ROWS, ids=lambda each: each.example[:60] if isinstance(each, Row) else ""
)
def test_rows_of_a_jobs_output(rule: Rule, row: Row) -> None:
    assert row.anchor in row.example
    findings = [
        finding for finding in read(TrainingParser("-"), text(rule, row)) if finding.job.heard != "end"
    ]
    causes = {finding.cause for finding in findings}
    assert rule.hit.cause in causes or row.gives.get("signal"), findings
    found = next((finding for finding in findings if finding.cause == rule.hit.cause), findings[0])
    check(row, found)
    if rule.refine is None:
        assert found.strength in (rule.hit.strength, rule.printed) and found.job.kind == rule.hit.kind
        assert found.says.startswith(rule.hit.says.partition("{")[0])
    if row.other:
        raised = row.other.splitlines()[-1].partition(":")[0] if rule.only == "raised" else ""
        assert rule.read(FailureText(row.other.splitlines()[-1], raised)) is None


def test_a_failure_that_stands_alone_in_a_log_is_the_logs() -> None:
    """Not only among the findings: a more general row before it made talk of two of them."""
    wrong = []
    for rule, row in JOB_ROWS:
        if rule in RULES and rule.hit.kind == "failure":
            found = root(read(TrainingParser("-"), f"epoch 1 of 3\nstep 10 loss 0.3\n{text(rule, row)}\n"))
            if found is None or found.cause != rule.hit.cause:
                wrong.append((row.example, rule.hit.cause, found and found.cause))
    assert not wrong


@pytest.mark.parametrize("row", EXITS, ids=lambda row: row.example[:60])
def test_rows_of_exits(row: Row) -> None:
    assert row.anchor in row.example
    findings = read(TrainingParser("-"), row.example)
    assert findings, row.example
    check(row, findings[0])


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.example[:60])
def test_rows_of_the_kernel(row: FaultRow) -> None:
    assert any(anchor in row.example for anchor in row.anchors)
    assert all(anchor in KERNEL_ANCHORS for anchor in row.anchors)
    (found,) = read(KernelParser("-"), f"[ 1.000001] {row.example}")
    assert found.strength == row.strength and (not row.cause or found.cause == row.cause)
    assert "4242" not in row.example or row.notice or found.pids == (4242,)


@pytest.mark.parametrize("row", [row for rows in TABLES for row in rows], ids=lambda row: row.example[:60])
def test_rows_of_guards(row: GuardRow) -> None:
    assert row.anchor in row.example and row.anchor in GUARD_ANCHORS
    found = [finding for finding in read(GuardParser("-"), row.example) if finding.cause == row.cause]
    assert found and found[0].strength == row.strength and found[0].guard.by == row.by
    assert "{who}" not in row.says or found[0].pids == (4242,)


def test_an_anchor_is_part_of_what_its_pattern_needs() -> None:
    """A row without its anchor in the text is never asked: taken out of the example, its pattern must not fit either."""
    unneeded = [
        row.example
        for rule in RULES
        for row in rule.rows
        if row.regex.search(row.example.replace(row.anchor, "\0"))
    ]
    assert not unneeded


def test_what_no_row_knows() -> None:
    assert recognise(FailureText("epoch 3: loss 0.31, 4.2 it/s")) is None
