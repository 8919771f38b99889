"""Fails when a test listed in must_run.txt was skipped, failed or not run at all: a green run must mean something."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def outcomes(results: Path) -> dict[str, str]:
    """Test → passed, failed or skipped (with the reason), from the JUnit files of this run."""
    found: dict[str, str] = {}
    for path in results.glob("*.xml"):
        for case in ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
            skipped, failed = case.find("skipped"), case.find("failure") or case.find("error")
            if skipped is not None:
                found[name] = f"skipped: {skipped.get('message')}"
            else:
                found[name] = "failed" if failed is not None else "passed"
    return found


def main(listed: Path, results: Path) -> int:
    names = [line.split("#")[0].strip() for line in listed.read_text().splitlines()]
    found = outcomes(results)
    wrong = {name: found.get(name, "not run") for name in names if name and found.get(name) != "passed"}
    for name, outcome in wrong.items():
        print(f"must run: {name}: {outcome}", file=sys.stderr)
    if not wrong:
        print(f"must run: all {sum(bool(name) for name in names)} listed tests ran and passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
