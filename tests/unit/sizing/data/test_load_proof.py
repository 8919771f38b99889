"""A proof loads the file in another process, within a limit, with the libraries that are there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.sizing.data import load_proof

MIB = 1 << 20


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"id": row, "text": f"row {row} of many"}) + "\n" for row in range(40_000))
    )
    return path


def test_measured_beside_predicted(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "--prove", "--json", str(rows)]) == 0
    (value,) = json.loads(capsys.readouterr().out)["files"]
    assert abs(value["measured"]["kept"] / value["kept"] - 1) < 0.1
    assert main(["data", "inspect", "--prove", str(rows)]) == 0
    assert "of the predicted peak" in capsys.readouterr().out


def test_what_goes_over_its_limit_is_ended(rows: Path) -> None:
    with pytest.raises(OomproofError, match="went over the limit of 8 MiB"):
        load_proof.prove("jsonl", str(rows), 8 * MIB)


def test_a_library_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OomproofError, match=r"has no numpy\n.*-m pip install numpy"):
        load_proof.prove("npy", str(tmp_path / "x.npy"), 512 * MIB)


def test_what_the_library_says_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n")
    with pytest.raises(OomproofError, match="loading it failed with JSONDecodeError"):
        load_proof.prove("jsonl", str(tmp_path / "x.jsonl"), 512 * MIB)
    with pytest.raises(OomproofError, match="cannot start"):
        load_proof.prove("jsonl", str(tmp_path / "x.jsonl"), 512 * MIB, python=str(tmp_path / "python"))


def test_python_goes_with_prove(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "--python", sys.executable, str(rows)]) == 2
    assert "--python goes with --prove" in capsys.readouterr().err


def test_the_kernel_enforces_it_where_a_cgroup_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks are switched off: 600 MiB of rows must not get past 64 MiB all the same."""
    from oomproof.sizing.watched_child import limited

    monkeypatch.setattr(load_proof, "_LOOK", 30.0)
    greedy = tmp_path / "greedy.py"
    greedy.write_text(
        "import time; x = bytearray(600 << 20); x[::4096] = bytes(len(x) // 4096); time.sleep(60)"
    )
    with limited(64 * MIB) as join:
        if not join:
            pytest.skip("no cgroup may be made here")
        folder = Path(join[0]).parent
        with pytest.raises(OomproofError, match=r"went over the limit of 64 MiB"):
            load_proof.measure([sys.executable, str(greedy)], "greedy", 64 * MIB, join)
    assert not folder.exists(), "and it is removed"
