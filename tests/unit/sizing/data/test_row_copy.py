"""Rows leave a file in parts or as its head, whole rows only, whatever is in them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.sizing.data import row_copy

CELLS = st.lists(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6), min_size=2, max_size=2
    ),
    min_size=1,
    max_size=12,
)


def split(path: Path, rows: int, *words: str) -> int:
    return main(["data", "split", str(path), "--rows", str(rows), *words])


@settings(max_examples=30)  # each waits for the disk
@given(CELLS, st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_csv_in_parts_is_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[list[str]], size: int, chunk: int, ended: bool
) -> None:
    """Also with quotes and line breaks in cells, and wherever the pieces that are read end."""
    monkeypatch.setattr(row_copy, "_CHUNK", chunk)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["a", "b\nc"])
    writer.writerows(rows)
    path = tmp_path / "rows.csv"
    path.write_bytes(buffer.getvalue().removesuffix("" if ended else "\n").encode())
    for part in tmp_path.glob("rows-*"):
        part.unlink()
    assert split(path, size) == 0
    parts = sorted(tmp_path.glob("rows-*.csv"))
    read = [list(csv.reader(io.StringIO(part.read_bytes().decode(), newline=""))) for part in parts]
    assert all(part[0] == ["a", "b\nc"] and len(part) <= size + 1 for part in read)
    assert [row for part in read for row in part[1:]] == rows
    assert len(parts) == -(-len(rows) // size)


@settings(max_examples=30)
@given(
    st.lists(
        st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"").replace(b"\0", b"") + b'"'),
        min_size=1,
    ),
    st.integers(1, 4),
    st.integers(1, 20),
)
def test_json_lines_in_parts_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], size: int, chunk: int
) -> None:
    monkeypatch.setattr(row_copy, "_CHUNK", chunk)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'"' + b"\n".join(lines))
    for part in tmp_path.glob("rows-*"):
        part.unlink()
    assert split(path, size) == 0
    parts = [part.read_bytes() for part in sorted(tmp_path.glob("rows-*"))]
    assert b"".join(parts) == path.read_bytes() and all(part.count(b"\n") <= size for part in parts)
    assert len(parts) == -(-len(lines) // size)


def test_names_places_and_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("1\n2\n3\n")
    assert split(path, 2, "--out", str(tmp_path / "new" / "parts")) == 0
    assert "3 rows in 2 parts" in capsys.readouterr().out
    assert (tmp_path / "new/parts/rows-00002.jsonl").read_text() == "3\n"
    assert split(path, 3, "--out", str(tmp_path / "new" / "parts")) == 2
    assert "rows-00001.jsonl exists already" in capsys.readouterr().err
    assert (tmp_path / "new/parts/rows-00001.jsonl").read_text() == "1\n2\n"
    assert split(path, 3, "--force", "--out", str(tmp_path / "new" / "parts")) == 0


def test_head_of_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,b\n1,"x\ny"\n2,z\n')
    assert main(["data", "head", str(tmp_path / "rows.csv"), str(tmp_path / "s.csv"), "--rows", "1"]) == 0
    assert (tmp_path / "s.csv").read_text() == 'a,b\n1,"x\ny"\n'
    (tmp_path / "rows.jsonl").write_text("1\n2\n3")
    assert main(["data", "head", str(tmp_path / "rows.jsonl"), str(tmp_path / "s.jsonl")]) == 0
    assert (tmp_path / "s.jsonl").read_text() == "1\n2\n3"


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("x.csv", b"", "is empty (0 bytes)"),
        ("x.csv", b"a,b\n", "has no rows"),
        ("x.jsonl", '{"a": 1}'.encode("utf-16"), "is not UTF-8 text"),
        ("x.npy", b"\x93NUMPY\x01\x00", "has no rows that can be copied"),
        ("x.txt", b"hello", "no format that is known here"),
    ],
)
def test_what_cannot_be_split(
    tmp_path: Path, name: str, data: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    assert split(tmp_path / name, 2) == 125
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_heading_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "x.csv").open("wb") as file:
        file.write(b"a," * 5000)
        file.truncate(1 << 30)
    assert split(tmp_path / "x.csv", 2) == 125
    assert "has a heading of more than 16 MiB" in capsys.readouterr().err


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("1\n")
    assert split(path, 0) == 2 and "--rows 0 would copy nothing" in capsys.readouterr().err
    assert main(["data", "head", str(path), str(tmp_path / "s.csv")]) == 2
    assert "the copy has the format of" in capsys.readouterr().err
    assert main(["data"]) == 2 and "an action is missing" in capsys.readouterr().err


def test_parquet_in_parts(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": range(25), "b": [str(number) for number in range(25)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    assert split(tmp_path / "rows.parquet", 10) == 0
    parts = [parquet.read_table(part) for part in sorted(tmp_path.glob("rows-*"))]
    assert [len(part) for part in parts] == [10, 10, 5] and arrow.concat_tables(parts).equals(table)
