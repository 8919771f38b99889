"""A short job pays for what every run needs, and for nothing that only a leak, a census or a death calls for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Other modules bring a part of the standard library along: `ast` takes as long as ten of ours, `records.py` is there to do
# without `dataclasses` and `inspect`, `locale` is 0.4 MiB of a guard at rest, `datetime` (of sqlite3) is 0.4.
_STANDARD = {"ast", "dataclasses", "datetime", "inspect", "locale", "tomllib"}
_ONLY_FOR_CARDS = {"oomproof.guard.gpu_pause", "oomproof.machine.cuda_checkpoint"}
_ONLY_FOR_LEAKS = {
    "oomproof.diagnosis.data_copies",
    "oomproof.evidence.heap_growth",
    "oomproof.evidence.memory_growth",
    "oomproof.evidence.run_trend",
    "oomproof.evidence.variable_line",
    "oomproof.machine.mapping_sizes",
    "oomproof.recording.census_record",
    "oomproof.recording.traced_lines",
    "oomproof.runner.census_request",
    "oomproof.runner.mapping_watch",
    "oomproof.runner.stack_request",
    "oomproof.trend.leaks",
}
# These folders load the same on every machine: 60 modules when this was written, then the runtime folder, the spare files, SQLite without its Python layer, what spilled. Whoever needs one more for each run raises it.
_SAME_EVERYWHERE = ("diagnosis", "evidence", "recording", "reports", "trend")
_MOST = 66


def test_a_run_that_ends_well_imports_little(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'somebodys'\n")
    command = [sys.executable, "-X", "importtime", "-m", "oomproof", "run", "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "oomproof: finished" in done.stderr, done.stderr[-2000:]
    rows = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in rows}
    assert {"oomproof.runner.sampler", "oomproof.runner.agent_feed", "oomproof.diagnosis.judge"} <= names
    unneeded = names & (_STANDARD | _ONLY_FOR_LEAKS | _ONLY_FOR_CARDS)
    assert not unneeded, unneeded
    ours = sorted(
        name for name in names if name.startswith(tuple(f"oomproof.{of}" for of in _SAME_EVERYWHERE))
    )
    assert len(ours) <= _MOST, ours
