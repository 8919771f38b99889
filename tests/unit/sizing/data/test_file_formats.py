"""What loading a file costs is told from its headers, and what is wrong with a file is one line."""

from __future__ import annotations

import json
import os
import pickle
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers_data import gguf, npy, npz, safetensors, torch_zip
from hypothesis import given
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.errors import OomproofError
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.load_cost import AT_LEAST, EXACT, SAMPLED


def cost_of(path: Path) -> Any:
    return load_cost(str(path))


def problem(path: Path | str) -> str:
    with pytest.raises(OomproofError) as raised:
        load_cost(str(path))
    assert raised.value.hint and "\n" not in raised.value.message
    return raised.value.message


def test_npy_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy((100, 25)))
    cost = cost_of(path)
    assert (cost.peak, cost.kept, cost.basis) == (10_000, 10_000, EXACT)
    assert cost.parts[0].shape == (100, 25) and cost.parts[0].type == "float32"
    assert 'mmap_mode="r"' in cost.cheaper[0]


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_counts_what_it_unpacks_to(tmp_path: Path, compressed: bool) -> None:
    path = npz(tmp_path / "x.npz", {"x.npy": npy((1000, 250)), "y.npy": npy((1000,), "<i8", 8)}, compressed)
    cost = cost_of(path)
    assert cost.kept == 1_008_000 and cost.basis == EXACT
    assert ("data convert" in cost.cheaper[0]) == compressed and ("open_npz" in cost.cheaper[0]) != compressed
    assert cost.disk < 10_000 or not compressed


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


def test_a_pickle_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither alone, nor as an array of objects, nor with --prove."""
    monkeypatch.chdir(tmp_path)
    payload = pickle.dumps(Bomb())
    (tmp_path / "a.pkl").write_bytes(payload)
    (tmp_path / "o.npy").write_bytes(npy((1,), "|O", 8, payload))
    npz(tmp_path / "o.npz", {"o.npy": npy((1,), "|O", 8, payload), "x.npy": npy((9,))})
    torch_zip(tmp_path / "t.pt", 100)
    for name in ("o.npy", "o.npz"):
        assert cost_of(tmp_path / name).basis == AT_LEAST
    assert main(["data", "inspect", "--prove", "a.pkl", "o.npy", "o.npz"]) == 125
    assert main(["data", "inspect", "t.pt"]) == 0
    assert not (tmp_path / "unpickled").exists()


def test_a_pickle_of_python_objects_takes_more_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.pkl"
    path.write_bytes(pickle.dumps([{"id": row, "text": f"row {row}"} for row in range(5000)]))
    cost = cost_of(path)
    assert cost.basis == SAMPLED and cost.kept > 4 * cost.disk


def test_tensors_are_exact(tmp_path: Path) -> None:
    for path, size in (
        (safetensors(tmp_path / "w.safetensors"), 400),
        (gguf(tmp_path / "w.gguf"), 680),
        (torch_zip(tmp_path / "w.pt", 1000, 24), 1024),
    ):
        assert (cost_of(path).kept, cost_of(path).basis) == (size, EXACT)


def test_csv_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = "".join(f"{row},{row / 7},{'ab'[row % 2]},{'' if row % 3 else row}\n" for row in range(2000))
    path.write_text("id,ratio,letter,gaps\n" + rows)
    cost = cost_of(path)
    assert [part.type for part in cost.parts] == ["int64", "float64", "text", "float64"]
    assert cost.contents == "2,000 rows of 4 columns" and cost.peak > cost.kept >= 2000 * 32


def test_csv_with_an_index_that_has_no_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a;b\n" + "".join(f"{row};1;x\n" for row in range(50)))
    cost = cost_of(path)
    assert [part.name for part in cost.parts] == ["(index)", "a", "b"] and "sep=';'" in cost.usual


def test_a_large_file_is_sampled(tmp_path: Path) -> None:
    """Rows at the end are longer than those at the start: the first rows alone would mislead by half."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for row in range(60_000):
            file.write(json.dumps({"id": row, "text": "x" * (row // 300)}) + "\n")
    cost = cost_of(path)
    count = int(cost.contents.split()[1].replace(",", ""))
    assert cost.contents.startswith("about ") and abs(count / 60_000 - 1) < 0.03


@given(
    st.binary(max_size=300),
    st.sampled_from(["npy", "npz", "csv", "jsonl", "pkl", "pt", "safetensors", "gguf", "bin"]),
)
def test_no_bytes_make_a_traceback(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"file.{suffix}"
    magics = {"npy": b"\x93NUMPY\x01\x00", "npz": b"PK\x03\x04", "gguf": b"GGUF\x03\0\0\0"}
    for start in (b"", magics.get(suffix, b"")):
        path.write_bytes(start + data)
        try:
            load_cost(str(path))
        except OomproofError as error:
            assert error.hint


@given(st.data())
def test_a_damaged_file_is_told_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """A byte changed, or the end cut, anywhere in a sound file."""
    path = data.draw(
        st.sampled_from([
            npz(tmp_path / "x.npz", {"x.npy": npy((10, 5)), "y.npy": npy((3,), "<i8", 8)}, True),
            safetensors(tmp_path / "w.safetensors"),
            gguf(tmp_path / "w.gguf"),
            torch_zip(tmp_path / "w.pt", 100),
        ])
    )  # fmt: skip
    sound = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(sound) - 1))
    sound[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(sound[: data.draw(st.integers(at, len(sound)))])
    try:
        load_cost(str(path))
    except OomproofError as error:
        assert error.hint


def test_cut_short(tmp_path: Path) -> None:
    whole = npz(tmp_path / "x.npz", {"x.npy": npy((1000,))}).read_bytes()
    (tmp_path / "x.npz").write_bytes(whole[:2000])
    assert "cut short, or still being written" in problem(tmp_path / "x.npz")
    (tmp_path / "x.npy").write_bytes(npy((1000,))[:500])
    assert "claims 4 KiB of data, 372 B are there" in problem(tmp_path / "x.npy")
    assert "the file has" in problem(safetensors(tmp_path / "w.safetensors", data=10))
    assert "the file has" in problem(gguf(tmp_path / "w.gguf", data=10))


def test_a_header_that_claims_a_billion_billion(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy((10**9, 10**9), data=b"1234"))
    assert "claims" in problem(path)
    assert "claims" in problem(npz(tmp_path / "x.npz", {"x.npy": path.read_bytes()}))
    assert "claims" in problem(safetensors(tmp_path / "w.safetensors", (10**9, 10**9), 4))
    assert "claims" in problem(gguf(tmp_path / "w.gguf", (1 << 40, 1 << 40)))
    for shape in ((1 << 62,) * 60, (10**4000,), (1,) * 100):
        path.write_bytes(
            npy((3,)).replace(b"(3,)", repr(shape).encode()) if len(shape) < 9 else npy(shape, data=b"")
        )
        problem(path)
    (tmp_path / "n.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    assert "claims" in problem(tmp_path / "n.gguf")


def test_larger_than_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sparse files of 64 TiB: told at once, and not proved."""
    path = tmp_path / "huge.npy"
    path.write_bytes(npy((1 << 44,), data=b""))
    with path.open("r+b") as file:
        try:
            file.truncate(128 + (4 << 44))
        except OSError:
            file.truncate(file.seek(0, 2) + (4 << 40))  # ext4 takes 16 TiB
            file.seek(0)
            file.write(npy((1 << 40,), data=b""))
    assert main(["data", "inspect", "--prove", str(path)]) == 75
    told = capsys.readouterr()
    assert (
        "TiB" in told.out and "are available now" in told.out and "not proved: loading it takes" in told.err
    )


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in problem(tmp_path)
    assert "there is no such file" in problem(tmp_path / "gone.npy")
    (tmp_path / "empty.npz").touch()
    assert "is empty (0 bytes)" in problem(tmp_path / "empty.npz")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "is not a regular file" in problem(tmp_path / "pipe.csv")
    (tmp_path / "x.txt").write_text("hello")
    assert "no format that is known here" in problem(tmp_path / "x.txt")
    (tmp_path / "rows.jsonl.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0")
    assert "compressed with gzip" in problem(tmp_path / "rows.jsonl.gz")
    npz(tmp_path / "a.zip", {"readme.txt": b"hello"})
    assert "a zip without arrays" in problem(tmp_path / "a.zip")


def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy((3,)))
    path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root may read everything
    try:
        assert "cannot be opened: Permission denied" in problem(path)
    finally:
        if root:
            os.seteuid(0)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "caf\xe9"}\n')
    assert "is not UTF-8 at byte 19" in problem(path)
    path.write_text('{"a": 1}\n', encoding="utf-16")
    assert "is not UTF-8 text" in problem(path)
    path.write_text('\ufeff{"a": 1}\n')
    assert cost_of(path).contents == "1 row"


def test_rows_that_are_not_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    assert "the line at byte 9 is not JSON" in problem(path)
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert "the last line is cut" in cost_of(path).notes[0]
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
    assert "is not JSON (too deep)" in problem(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "is not UTF-8 text" in problem(path)


def test_a_file_that_is_being_written(tmp_path: Path) -> None:
    """Inspected again and again while a thread writes it: an answer or one line, whatever the moment."""
    path = tmp_path / "x.npz"
    whole = npz(tmp_path / "whole.npz", {"x.npy": npy((40, 40)), "y.npy": npy((9,))}, True).read_bytes()
    path.write_bytes(whole[:1])
    done = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for at in range(len(whole)):
                file.write(whole[at : at + 1])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        try:
            load_cost(str(path))
        except OomproofError as error:
            assert error.hint
    writer.join()
    assert cost_of(path).kept == 6436


def test_a_password_and_another_compression(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", {"x.npy": npy((3,))})
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    for at in (6, entry + 8):  # the flag of encryption
        data[at] |= 1
    path.write_bytes(data)
    assert "cannot be read" in problem(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy((1000,)))
    assert cost_of(path).kept == 4000


def test_a_pickle_that_would_be_read_for_ever(tmp_path: Path) -> None:
    """An opcode whose argument ends with a line, and no line end; one that claims more than there is."""
    path = tmp_path / "x.pkl"
    with path.open("wb") as file:
        file.write(b"S'")
        file.truncate(1 << 40)
    assert "is no pickle" in problem(path)
    path.write_bytes(b"\x80\x04\x8e" + b"\xff" * 8)
    assert "ends within its data" in problem(path)


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npy").write_bytes(npy((100, 25)))
    names = [str(tmp_path / name) for name in ("gone.npy", "x.npy")]
    assert main(["data", "inspect", *names]) == 127
    told = capsys.readouterr()
    assert "x.npy: npy, 1 array" in told.out and "gone.npy: there is no such file" in told.err
    assert main(["data", "inspect", "--json", *names]) == 127
    value = json.loads(capsys.readouterr().out)
    assert "problem" in value["files"][0] and value["files"][1]["peak"] == 10_000


def test_names_in_a_file_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz(tmp_path / "x.npz", {"\x1b[2Jred\n.npy": npy((3,))})
    assert main(["data", "inspect", str(path)]) == 0
    assert "\x1b" not in (shown := capsys.readouterr().out) and "\\u001b[2Jred" in shown
