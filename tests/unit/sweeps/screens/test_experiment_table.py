"""The table of `oomproof bisect`: whole whatever a value holds, and the same answer in every form."""

from __future__ import annotations

import json

from oomproof.printable import one_line
from oomproof.sweeps.experiments.experiment_plan import DIED, LIVED, Experiment, Factor
from oomproof.sweeps.screens.experiment_table import as_json, as_markdown, as_text

MIB = 1 << 20
FACTORS = [Factor("data", ("full|big\nset", "")), Factor("OMP", ("unset", "1"), is_env=True)]
DONE = [
    Experiment(
        (FACTORS[0].values[0], "unset"), DIED, "kernel: cgroup limit", peak=90 * MIB, seconds=3.0, run="r1"
    ),
    Experiment(("", "unset"), LIVED, "finished", peak=40 * MIB, seconds=600.0, run="r2"),
    Experiment((FACTORS[0].values[0], "1"), DIED, "kernel: cgroup limit", seconds=3.0, run="r3"),
]


def test_text_is_a_row_each_and_fits() -> None:
    for width in (60, 100):
        lines = as_text(FACTORS, DONE, width).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[2].startswith("(empty)") and "lived" in lines[2] and "40 MiB" in lines[2]
        assert lines[4] == "", "three experiments, three rows"
    assert "r1" in lines[1] and "?" in lines[3], "a peak that is not known"
    assert "GPU peak" not in lines[0]


def test_gpu_peaks_have_a_column_where_there_are_any() -> None:
    held = Experiment(("", "1"), LIVED, "finished", peak=MIB, gpu_peak=5 * MIB)
    assert "GPU peak" in as_text(FACTORS, [*DONE, held], 120).splitlines()[0]


def test_markdown_cells_stay_cells() -> None:
    rows = [line for line in as_markdown(FACTORS, DONE).splitlines() if line.startswith("|")]
    assert rows[2].startswith("| full\\|big set | unset | died |")


def test_json_has_the_same_answer() -> None:
    answer = json.loads(json.dumps(as_json(FACTORS, DONE, complete=True)))
    assert answer["follows"] == ["data"] and answer["complete"] is True
    assert one_line(answer["sentence"]) in as_text(FACTORS, DONE, 400)
    assert answer["experiments"][1]["values"] == {"data": "", "OMP": "unset"}
    assert answer["factors"][1]["kind"] == "env"


def test_before_the_first_end_there_is_one_sentence() -> None:
    text = as_text([Factor("bs", ("32", "8"))], [], 80)
    assert text == "nothing is known yet: the first experiment did not end"
