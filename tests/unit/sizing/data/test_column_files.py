"""Parquet and Arrow, where pyarrow is; without it, a line that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.errors import OomproofError
from oomproof.sizing.data import text_sample
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.load_cost import EXACT, SAMPLED

ROWS = 5000


def table(text: bool) -> Any:
    arrow = pytest.importorskip("pyarrow")
    columns: dict[str, Any] = {"a": range(ROWS), "b": [row / 7 for row in range(ROWS)]}
    return arrow.table(columns | ({"c": [f"row {row} of many" for row in range(ROWS)]} if text else {}))


def written(path: Path, text: bool) -> Path:
    made = table(text)
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(made, path, row_group_size=2000)
    elif path.suffix == ".feather":
        pytest.importorskip("pyarrow.feather").write_feather(made, path, chunksize=1500)
    else:
        with pytest.importorskip("pyarrow.ipc").new_stream(path, made.schema) as writer:
            writer.write_table(made, max_chunksize=700)
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow"])
def test_rows_and_bytes(tmp_path: Path, name: str) -> None:
    cost = load_cost(str(written(tmp_path / name, text=False)))
    assert (
        cost.contents.startswith("5,000 rows of 2 columns")
        and cost.kept is not None
        and cost.peak is not None
    )
    assert abs(cost.kept / (16 * ROWS) - 1) < 0.03 and cost.peak > cost.kept
    cost = load_cost(str(written(tmp_path / name, text=True)))
    nbytes = table(text=True).nbytes
    assert cost.kept is not None and abs(cost.kept / nbytes - 1) < 0.05
    assert cost.basis == (EXACT if name == "x.arrow" else SAMPLED)


def test_text_as_objects_takes_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(written(tmp_path / "x.parquet", text=True))
    peaks = []
    for version in (2, 3):
        versions = {"pandas": version, "pyarrow": 20}
        monkeypatch.setattr(text_sample, "_major_version", versions.__getitem__)
        peaks.append(load_cost(path).peak or 0)
    assert peaks[0] > peaks[1] + 64 * ROWS


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_is_one_line(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / data.draw(st.sampled_from(["x.parquet", "x.feather", "x.arrow"]))
    sound = written(path, text=True).read_bytes()
    path.write_bytes(sound[: data.draw(st.integers(20, len(sound)))])
    try:
        load_cost(str(path))
    except OomproofError as error:
        assert error.hint and "\n" not in error.message


WITHOUT = """
import sys
sys.modules["pyarrow"] = sys.modules["pyarrow.parquet"] = None
from oomproof.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and so on")
    for words in (["inspect", "x.parquet"], ["split", "--rows", "9", "x.parquet"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, "data", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (
            done.returncode == 127
            and "needs pyarrow, which is not installed\n  hint: pip install pyarrow" in done.stderr
        )
