"""Runs one suite of tests; the few that failed get a second try, alone, and are named at the end of `make test`.

These tests start real processes on machines that may be starved for seconds. One that fails twice, or the fourth that
fails at all, fails the suite: a fault is not to be tried away. An unsteady test is a fault too, of the test or of ours.

    run_suite.py NAME RESULTS_FOLDER [pytest's own words …]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 3
TESTS_FAILED = 1  # pytest's exit status; others say that it was interrupted, or found no test
UNSTEADY = "unsteady.txt"


def main(name: str, results: Path, words: Sequence[str]) -> int:
    results.mkdir(parents=True, exist_ok=True)
    cache = (results / f"cache-{name}").resolve()
    shutil.rmtree(cache, ignore_errors=True)  # failures of another day
    status = _pytest(cache, results / f"{name}.xml", words)
    failed = _failed(cache)
    if status != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\nsecond try, alone: {', '.join(failed)}", flush=True)
    status = _pytest(cache, results / f"{name}.second.xml", failed)
    if status == 0:
        with open(results / UNSTEADY, "a") as file:
            file.writelines(f"{test}\n" for test in failed)
    return status


def _pytest(cache: Path, results: Path, words: Sequence[str]) -> int:
    own = ["-o", f"cache_dir={cache}", f"--junitxml={results}"]
    # Side by side on few processors, threads of OpenMP spin while they wait for each other: 127 s instead of 5 for one file.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run([sys.executable, "-m", "pytest", *words, *own], env=environment).returncode


def _failed(cache: Path) -> list[str]:
    try:
        return list(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
