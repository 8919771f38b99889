"""What is known of a command before it is fitted: its own batch, and the steps of its runs."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from oomproof.plans.knobs import template_of
from oomproof.recording import sqlite_files
from oomproof.recording.run_folders import runs_folder
from oomproof.sizing.planning.step_times import paces_of, usual_batch


@pytest.mark.parametrize(
    ("source", "usual", "with_accum"),
    [
        (
            "p.add_argument('--batch-size', type=int, default=64)\np.add_argument('--test-batch-size', default=9)\n",
            64,
            None,
        ),
        ("batch_size = 12\ngradient_accumulation_steps = 40\n", 12, 480),
        ("batch_size = 12\ngradient_accumulation_steps = 5 * 8\n", 12, None),
        ("batch_size = 12\nif big:\n    batch_size = 48\n", None, None),
        ("p.add_argument('--batch-size', type=int)\n", None, None),
        ("def broken(:\n", None, None),
        ("", None, None),
    ],
)
def test_the_batch_a_script_has_by_itself(
    tmp_path: Path, source: str, usual: int | None, with_accum: int | None
) -> None:
    (tmp_path / "t.py").write_text(source)
    command = ["python", "t.py", "--batch-size", "{batch}"]
    assert usual_batch(template_of(command), command, str(tmp_path)) == usual
    both = [*command, "--accum", "{accum}"]
    assert usual_batch(template_of(both), both, str(tmp_path)) == with_accum
    gone = ["python", "gone.py", "{batch}"]
    assert usual_batch(template_of(gone), gone, str(tmp_path)) is None


def test_a_file_of_settings_that_says_otherwise_leaves_it_open(tmp_path: Path) -> None:
    """nanoGPT: train.py has 12, its config 64."""
    (tmp_path / "t.py").write_text("batch_size = 12\n")
    (tmp_path / "small.py").write_text("batch_size = 64\n")
    command = ["python", "t.py", "small.py", "--batch_size={batch}"]
    assert usual_batch(template_of(command), command, str(tmp_path)) is None


def recorded(run: str, argv: str, cwd: Path, step: float | None) -> None:
    folder = runs_folder() / run
    (folder / "1").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"id": run, "argv": argv.split(), "cwd": str(cwd), "created": 1.0})
    )
    if step is None:
        (folder / "1" / "recording.sqlite").write_bytes(b"damaged")
        return
    database = sqlite3.connect(folder / "1" / "recording.sqlite")
    database.executescript(sqlite_files.TABLES)
    for number in range(1, 9):
        database.execute(
            "INSERT INTO phase (t, name, step) VALUES (?, 'train', ?)", (10 + number * step, number)
        )
    database.commit()
    database.close()


def test_steps_of_earlier_runs_of_the_command(tmp_path: Path) -> None:
    recorded("20260101-000001-aaa", "python t.py --bs 64", tmp_path, 0.5)
    recorded("20260101-000002-bbb", "python t.py --bs 32", tmp_path, 0.25)
    recorded("20260101-000003-ccc", "python t.py --bs 16", tmp_path / "elsewhere", 0.1)
    recorded("20260101-000004-ddd", "python t.py --bs 8 --lr 1", tmp_path, 0.1)
    recorded("20260101-000005-eee", "python t.py --bs 128", tmp_path, None)
    told = paces_of(template_of(["python", "t.py", "--bs", "{batch}"]), str(tmp_path))
    assert [(str(pace.plan), pytest.approx(pace.seconds), pace.said) for pace in told] == [
        ("batch=32", 0.25, "20260101-000002-bbb"), ("batch=64", 0.5, "20260101-000001-aaa"),
    ]  # fmt: skip
