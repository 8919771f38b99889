"""The table of causes: everything that is said of an end is in it, and nobody keeps a list of their own."""

from __future__ import annotations

import ast
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from oomproof.causes import CAUSES, Cause, cause_of, kernel_kill
from oomproof.diagnosis import judge as judging
from oomproof.diagnosis import rules
from oomproof.diagnosis.cause_texts import REMEDIES
from oomproof.diagnosis.verdict import Weight
from oomproof.evidence.case_file import CaseFile
from oomproof.evidence.texts.text_case import read_texts

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "oomproof"
CORPUS = ROOT / "tests" / "corpus"
NEVER_IN_A_TEXT = {"finished", "stopped-by-guard", "stopped-by-user", "machine-down", "guard-lost"}
# names of programs and units, which are spelt like the causes
PROGRAMS = {"machine/daemons.py", "evidence/kill_owners.py"}
# how often a guard repeats itself in a log: a habit of its text, not of the cause
RECOGNISERS = {"evidence/texts/guard_table.py"}
# the causes that one rule itself tells apart
TOLD_APART = {
    "diagnosis/rules/segfault.py",
    "diagnosis/rules/text_failure.py",
    "diagnosis/rules/outside_signal.py",
    "sizing/fitting/oom_errors.py",  # two that a log cannot call memory, and a smaller batch can
}


def rule_modules() -> list[str]:
    return sorted(file.stem for file in (SOURCE / "diagnosis" / "rules").glob("[a-z]*.py"))


def test_every_cause_has_what_is_asked_of_it() -> None:
    for slug, cause in CAUSES.items():
        assert cause.slug == slug
        assert bool(cause.headline and cause.next) == (slug not in NEVER_IN_A_TEXT), slug
        assert set(cause.remedies) <= set(REMEDIES), slug
        assert not (cause.good and (cause.memory or cause.stopped_by or cause.kill)), slug
        assert cause.memory or not cause.kill, f"{slug}: who kills for memory leaves a death of memory"
        assert cause.kernel_kill == bool(cause.constraint) == bool(cause.reason), slug
    assert set(REMEDIES) == {name for cause in CAUSES.values() for name in cause.remedies}


def test_the_kernels_constraints() -> None:
    assert (
        kernel_kill("CONSTRAINT_MEMCG") == "oom-kill-memcg"
        and kernel_kill("CONSTRAINT_NONE") == "oom-kill-global"
    )
    assert kernel_kill("CONSTRAINT_BPF") is None and kernel_kill(None) is None and kernel_kill("") is None


def test_a_cause_of_another_version_is_no_crash() -> None:
    assert cause_of("struck-by-lightning") == Cause("struck-by-lightning")
    assert cause_of("struck-by-lightning").tone == "bad"


def test_every_cause_in_the_corpora_is_in_the_table() -> None:
    kinds: dict[str, Path] = {}
    for truth in sorted(CORPUS.rglob("truth.jsonl")):
        for line in truth.read_text().splitlines():
            row = json.loads(line)
            beside = truth.parent / row["file"]
            kinds.setdefault(row["kind"], beside if beside.exists() else truth.parent.parent / row["file"])
    assert set(kinds) <= set(CAUSES) and len(kinds) > 30
    for path in kinds.values():
        case = read_texts([str(path)])
        assert {finding.cause for finding in (*case.system, *case.training)} <= set(CAUSES), path


def test_every_cause_that_the_code_gives_is_in_the_table() -> None:
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("Finding", "WeightedCause", "cause_of") and isinstance(
                    first, ast.Constant
                ):
                    assert first.value in CAUSES, f"{file}:{node.lineno}"


def test_nobody_else_keeps_a_list_of_causes() -> None:
    """What is true of several causes is an attribute of the table. A map *to* a cause is what a recogniser is."""
    kept = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            elements: list[ast.expr | None] = []
            if isinstance(node, ast.Set | ast.Tuple | ast.List):
                elements = [*node.elts]
            elif isinstance(node, ast.Dict):
                elements = [*node.keys]
            named = [
                each.value for each in elements if isinstance(each, ast.Constant) and each.value in CAUSES
            ]
            if len(named) > 1:
                kept.add(file.relative_to(SOURCE).as_posix())
    assert kept - PROGRAMS - RECOGNISERS - TOLD_APART - {"causes.py"} == set()


@pytest.mark.parametrize("name", rule_modules())
def test_every_weight_has_a_reason(name: str) -> None:
    rule = import_module(f"{rules.__name__}.{name}")
    weights = [value for value in vars(rule).values() if isinstance(value, Weight)]
    assert callable(rule.weigh) and weights
    assert all(weight > 0 and len(weight.reason) > 10 for weight in weights)


def test_a_rule_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lightning.py").write_text(
        "from oomproof.diagnosis.verdict import WeightedCause\n"
        "def weigh(case):\n"
        "    return [WeightedCause('other-error', 5000, 'proven', 'struck by lightning', 'seen', 'wait')]\n"
    )
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    judging.all_rules.cache_clear()
    try:
        assert len(judging.all_rules()) == len(rule_modules()) + 1
        assert judging.judge(CaseFile()).headline == "struck by lightning"
    finally:
        judging.all_rules.cache_clear()
        sys.modules.pop(f"{rules.__name__}.lightning", None)
