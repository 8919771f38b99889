"""Fails when a test listed in must_run.txt was skipped, failed or not run at all: a green run must mean something."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from run_suite import UNSTEADY


def outcomes(results: Path) -> dict[str, str]:
    """Test → passed, failed or skipped (with the reason), from the JUnit files of this run; of two tries the second.

    A test run over many cases has one outcome too, under its name without the case: passed only if every case was.
    """
    cases: dict[str, str] = {}
    for path in sorted(results.glob("*.xml"), key=lambda path: path.name.endswith(".second.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name', '')}"
            cases[name] = _outcome(case)
    found = dict(cases)
    for name, outcome in cases.items():
        told = name.partition("[")[0]
        if found.get(told, "passed") == "passed":
            found[told] = outcome
    return found


def _outcome(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    if skipped is not None:
        return f"skipped: {skipped.get('message')}"
    return "passed" if case.find("failure") is None and case.find("error") is None else "failed"


def main(listed: Path, results: Path) -> int:
    names = [line.split("#")[0].strip() for line in listed.read_text().splitlines()]
    found = outcomes(results)
    wrong = {name: found.get(name, "not run") for name in names if name and found.get(name) != "passed"}
    for name, outcome in wrong.items():
        print(f"must run: {name}: {outcome}", file=sys.stderr)
    if not wrong:
        print(f"must run: all {sum(bool(name) for name in names)} listed tests ran and passed")
    if (unsteady := results / UNSTEADY).exists():
        print(f"passed only at the second try, which is a fault to be found:\n{unsteady.read_text()}", end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
