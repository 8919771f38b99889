"""A try of a trial that cannot be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.sweeps.sweep_folder import SCHEMA, Sweep
from oomproof.sweeps.trial_process import Template, TrialProcess


def test_a_process_that_cannot_be_had_is_no_error_of_ours(tmp_path: Path) -> None:
    """A folder that is gone, no memory for one more: the sweep says so, and is resumed later."""
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": SCHEMA, "token": "x"}))
    process = TrialProcess(Sweep(tmp_path), 3, 1, "sweep:mine:3")
    template = Template(("python", "train.py"), (), str(tmp_path / "gone"), False, ())
    with pytest.raises(OomproofError, match="cannot start trial 3: No such file"):
        process.start(template, {}, {}, ())
