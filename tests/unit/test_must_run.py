"""The list of tests that may not be skipped is held to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "must_run.py"

SUITE = """
import pytest

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("no chromium")

@pytest.mark.parametrize("case", ["a", "b"])
def test_all_cases(case): pass

@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_all_but_one(case): assert case != "b"

@pytest.mark.parametrize("case", ["a", "b"])
def test_skips_one(case):
    if case == "a": pytest.skip("no chromium")

@pytest.fixture
def broken(): raise OSError
def test_never_begins(broken): pass
"""


def test_every_listed_test_ran_and_passed(tmp_path: Path) -> None:
    suite, listed, results = tmp_path / "test_suite.py", tmp_path / "listed.txt", tmp_path / "results"
    suite.write_text(SUITE)
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
    names = ["passes", "fails", "skips", "all_cases", "all_but_one", "skips_one", "never_begins", "is_gone"]
    listed.write_text("# ours\n" + "".join(f"test_suite::test_{name}  # a reason\n" for name in names))

    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(listed), str(results)], capture_output=True, text=True
    )

    assert done.returncode == 1
    assert done.stderr.replace("must run: test_suite::test_", "").splitlines() == [
        "fails: failed",
        "skips: skipped: no chromium",
        "all_but_one: failed",
        "skips_one: skipped: no chromium",
        "never_begins: failed",
        "is_gone: not run",
    ]
    listed.write_text("test_suite::test_passes\ntest_suite::test_all_cases\n")
    assert subprocess.run([sys.executable, str(SCRIPT), str(listed), str(results)]).returncode == 0
