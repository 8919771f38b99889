"""The list of tests that may not be skipped is held to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "must_run.py"


@pytest.mark.parametrize(
    ("cases", "outcome"),
    [
        (["test_it"], None),
        (["test_it[a]", "test_it[b]"], None),
        ([], "not run"),
        (["test_it FAIL"], "failed"),
        (["test_it[a] FAIL", "test_it[b]"], "failed"),
        (["test_it[a]", "test_it[b] SKIP"], "skipped: no chromium"),
    ],
)
def test_what_counts_as_run(tmp_path: Path, cases: list[str], outcome: str | None) -> None:
    suite = tmp_path / "test_suite.py"
    bodies = {"FAIL": "assert 0", "SKIP": "pytest.skip('no chromium')", "": "pass"}
    lines = ["import pytest"]
    if cases and "[" in cases[0]:
        told = {case.split("[")[1].split("]")[0]: bodies[case.partition(" ")[2]] for case in cases}
        lines += [f"@pytest.mark.parametrize('case', {list(told)})", "def test_it(case):"]
        lines += [f"    if case == {case!r}: {body}" for case, body in told.items()]
    else:
        lines += [f"def {case.split()[0]}(): {bodies[case.partition(' ')[2]]}" for case in cases]
    suite.write_text("\n".join(lines) + "\n")
    listed = tmp_path / "listed.txt"
    listed.write_text("# ours\ntest_suite::test_it  # it runs\n")
    results = tmp_path / "results"
    pytest_ = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        str(suite),
    ]
    subprocess.run([*pytest_, f"--junitxml={results}/unit.xml"], capture_output=True, check=False)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(listed), str(results)], capture_output=True, text=True
    )
    assert done.returncode == (outcome is not None)
    assert (f"test_it: {outcome}" in done.stderr) == (outcome is not None)
