"""A try of a trial: one that cannot be started, or whose run is hard to find, and what its death says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_case import LEADER, Attempt, changed

from oomproof.diagnosis.conclusion import Conclusion
from oomproof.diagnosis.judge import judge
from oomproof.errors import OomproofError
from oomproof.recording.run_folders import Run, runs_folder
from oomproof.sweeps.sweep_folder import SCHEMA, Sweep
from oomproof.sweeps.trial_process import End, Template, TrialProcess, _not_loaded, describe


def test_a_process_that_cannot_be_had_is_no_error_of_ours(tmp_path: Path) -> None:
    """A folder that is gone, no memory for one more: the sweep says so, and is resumed later."""
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": SCHEMA, "token": "x"}))
    process = TrialProcess(Sweep(tmp_path), 3, 1, "sweep:mine:3")
    template = Template(("python", "train.py"), (), str(tmp_path / "gone"), False, ())
    with pytest.raises(OomproofError, match="cannot start trial 3: No such file"):
        process.start(template, {}, {}, ())


@pytest.mark.parametrize(
    ("phase", "step", "not_loaded"),
    [("load", None, ("batch", "eval_batch", "workers", "prefetch")), ("load", 40, ()), ("train", None, ())],
)
def test_a_death_while_loading_names_what_took_no_part_in_it(
    tmp_path: Path, phase: str, step: int | None, not_loaded: tuple[str, ...]
) -> None:
    attempt = Attempt(tmp_path)
    attempt.ended(signal=9, memcg_oom_kill=1, memcg_oom=1)
    attempt.processes = [(LEADER, "main", "python3")]
    case = changed(attempt.case(), phase=phase, step=step)
    told = _not_loaded(Run(tmp_path), Conclusion(judge(case), stored=False, case=case))
    assert told == not_loaded
    assert describe(End("r1", judge(case), not_loaded=told))["not_loaded"] == list(not_loaded)


def test_a_clock_that_was_set_back_hides_no_run(tmp_path: Path) -> None:
    """Runs of before it have ids that look newer: each trial ran three times, and was taken for one that never started."""
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": SCHEMA, "token": "x"}))
    process = TrialProcess(Sweep(tmp_path), 3, 1, "sweep:mine:3")
    process._process = subprocess.Popen([sys.executable, "-c", ""])
    process._process.wait()
    for name in [f"29990101-000000-{number}" for number in range(101)] + ["20200101-000000-abc"]:
        (runs_folder() / name).mkdir(parents=True)
        (runs_folder() / name / "run.json").write_text("{}")
    info = {"name": "sweep:mine:3", "env": {"OOMPROOF_SWEEP_TRY": "x/3.1"}}
    (runs_folder() / "20200101-000000-abc" / "run.json").write_text(json.dumps(info))
    process.look()
    assert process.run is not None and process.run.id == "20200101-000000-abc"
