"""`oomproof fix` on real runs: the file is changed, the next run tells how the change fares, and it can be taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab

SETTINGS = """\
# the training
data:
  num_workers: 12   # as many as we can
train: {batch_size: 64, accum: 1}
"""
SCRIPT = f"""\
import re, runpy, sys
text = open(sys.argv[1]).read()
workers = re.search(r"num_workers: (\\d+)", text)[1]
sys.argv = ["shrinks.py", "--workers", workers, "--each", "30", "--seconds", "6", "--apart", "0.3"]
runpy.run_path({str(JOBS / "shrinks.py")!r}, run_name="__main__")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "settings.yaml").write_text(SETTINGS)
    (folder / "train.py").write_text(SCRIPT)
    return folder


@pytest.mark.usefixtures("kernel_limit")
def test_a_change_is_applied_confirmed_and_taken_back(lab: Lab, project: Path) -> None:
    command = ("run", "--limit", "220M", "--", sys.executable, "train.py", "settings.yaml")
    died = lab.run(*command, cwd=project, stdin=subprocess.DEVNULL)
    assert died.returncode != 0, died.stdout
    shown = lab.run("fix", cwd=project)
    assert "-  num_workers: 12   # as many as we can" in shown.stdout, shown.stdout + shown.stderr
    assert (
        "nothing was changed; to write it" in shown.stdout
        and (project / "settings.yaml").read_text() == SETTINGS
    )
    applied = lab.run("fix", "--apply", "--json", cwd=project)
    told = json.loads(applied.stdout)
    (change,) = told["changes"]
    assert change["from"] == "12" and told["applied"]
    text = (project / "settings.yaml").read_text()
    assert text == SETTINGS.replace("num_workers: 12 ", f"num_workers: {change['to']} ")
    again = lab.run(*command, cwd=project, stdin=subprocess.DEVNULL)
    state = json.loads(lab.run("fix", "--json", cwd=project).stdout)["fixes"][0]["state"]
    if again.returncode == 0:
        assert "is confirmed: peak" in again.stderr and state == "confirmed"
    else:  # half the workers were still too many
        assert "it ran out of memory all the same" in again.stderr and state == "offered for undo"
    undone = lab.run("fix", "--undo", cwd=project)
    assert undone.returncode == 0 and (project / "settings.yaml").read_text() == SETTINGS
    assert lab.run("fix", "--undo", cwd=project).returncode == 2, "there is nothing left to take back"


def test_without_its_package_a_file_is_named_with_the_way_to_read_it(lab: Lab, project: Path) -> None:
    done = lab.run("run", "--", sys.executable, "-c", "raise MemoryError", "settings.yaml", cwd=project)
    assert done.returncode == 1
    hide = (
        "import sys; sys.modules['ruamel.yaml'] = None; from oomproof.cli.main import main; sys.exit(main())"
    )
    refused = subprocess.run(
        [sys.executable, "-c", hide, "fix"], env=lab.environment, cwd=project, capture_output=True, text=True
    )
    assert refused.returncode == 2 and "pip install 'oomproof[fix]'" in refused.stderr, refused.stderr
