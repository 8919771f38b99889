"""Arrays leave a .npz in bounded memory, whole or their first rows, and the outputs are whole or not there."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers_data import npy, npz
from hypothesis import given, settings
from hypothesis import strategies as st

from oomproof.cli.main import main
from oomproof.sizing.data.file_formats import load_cost
from oomproof.sizing.data.npy_header import read_header

NUMBERS = bytes(range(240))


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def train(tmp_path: Path) -> Path:
    members = {"x.npy": npy((60,), data=NUMBERS), "deep/y.npy": npy((5,), "<i8", 8)}
    return npz(tmp_path / "train.npz", members, compressed=True)


def test_converted_arrays_are_those_of_the_zip(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    before = train.read_bytes()
    assert main(["data", "convert", str(train), f"{out}/"]) == 0
    assert "2 arrays" in (told := capsys.readouterr().out) and 'mmap_mode="r"' in told
    assert listed(out) == ["deep", "deep/y.npy", "x.npy"]
    assert (out / "x.npy").read_bytes() == npy((60,), data=NUMBERS) and train.read_bytes() == before


def test_nothing_is_replaced_without_force(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "x.npy").write_text("mine")
    assert main(["data", "convert", str(train), str(out)]) == 2
    assert "x.npy exists already" in capsys.readouterr().err
    assert listed(out) == ["x.npy"] and (out / "x.npy").read_text() == "mine"
    assert main(["data", "convert", "--force", str(train), str(out)]) == 0
    assert (out / "x.npy").read_bytes().endswith(NUMBERS)


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a/../../x.npy", ".npy"])
def test_a_name_cannot_leave_the_folder(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz(tmp_path / "evil.npz", {"a.npy": npy((3,)), name: npy((3,))})
    assert main(["data", "convert", str(path), str(tmp_path / "out" / "in")]) == 125
    assert "which is no name of a file" in capsys.readouterr().err
    assert listed(tmp_path) == ["evil.npz"]


def test_objects_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {"o.npy": npy((1,), "|O", 8, pickle.dumps([1])), "x.npy": npy((3,))}
    path = npz(tmp_path / "o.npz", members)
    assert main(["data", "convert", str(path), str(tmp_path / "out")]) == 1
    assert "left out: o (Python objects" in capsys.readouterr().err and listed(tmp_path / "out") == ["x.npy"]
    assert main(["data", "head", str(path), str(tmp_path / "s.npz")]) == 1
    assert zipfile.ZipFile(tmp_path / "s.npz").namelist() == ["x.npy"]


def test_a_damaged_member_leaves_nothing(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz(tmp_path / "x.npz", {"a.npy": npy((3,)), "x.npy": npy((60,), data=NUMBERS)})
    data = bytearray(path.read_bytes())
    data[data.index(NUMBERS) + 5] ^= 1
    path.write_bytes(data)
    assert main(["data", "convert", str(path), str(tmp_path / "out")]) == 125
    assert "damaged" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz(tmp_path / "x.npz", {"x.npy": npy((1 << 20,))}, compressed=True)
    assert main(["data", "convert", str(path), str(small_disk / "out")]) == 125
    assert "4 MiB must be written" in capsys.readouterr().err
    assert main(["data", "head", "--rows", "1000000", str(path), str(small_disk / "s.npz")]) in (0, 125)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("1\n" * 900_000)
    assert main(["data", "head", "--rows", "900000", str(rows), str(small_disk / "s.jsonl")]) == 125
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not (small_disk / "out").exists() and not [name for name in listed(small_disk) if "jsonl" in name]


SLOW = """
import os, sys, time
from oomproof.sizing.data import row_copy
def copy(source, out, size, path, real=row_copy._copy):
    real(source, out, min(size, 100), path)
    out.flush()
    print(*os.listdir(os.path.dirname(out.name)), flush=True)
    while True:
        time.sleep(0.05)  # one that came a moment before a longer wait would be waited out
row_copy._copy = copy
from oomproof.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_leaves_nothing(train: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "data", "convert", str(train), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        there = process.stdout.readline().split()
        process.send_signal(2)
        assert process.wait(60) == 130
    assert len(there) == 1 and there[0].startswith(".x.npy.") and not (tmp_path / "out").exists()


def test_the_input_is_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npz(tmp_path / "x.npz", {"x.npy": npy((60,), data=NUMBERS)})
    os.link(path, tmp_path / "same.npz")
    for name in ("x.npz", "same.npz"):
        assert main(["data", "head", "--force", str(path), str(tmp_path / name)]) == 2
        assert "is the input itself" in capsys.readouterr().err


@settings(max_examples=30)  # each waits for the disk
@given(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 7), st.booleans(), st.booleans())
def test_first_rows(tmp_path: Path, shape: list[int], rows: int, fortran: bool, compressed: bool) -> None:
    """The same as taking them from the array, in C's and in Fortran's order."""
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(int(numpy.prod(shape)), dtype="int16").reshape(shape, order="F" if fortran else "C")
    array = numpy.asfortranarray(array) if fortran else array
    path, small = tmp_path / "x.npz", tmp_path / "s.npz"
    (numpy.savez_compressed if compressed else numpy.savez)(path, x=array)
    assert main(["data", "head", "--force", "--rows", str(rows), str(path), str(small)]) == 0
    with numpy.load(small) as archive:
        assert numpy.array_equal(archive["x"], array[:rows] if shape else array)
    numpy.save(tmp_path / "x.npy", array)
    assert (
        main(
            ["data", "head", "--force", "--rows", str(rows), str(tmp_path / "x.npy"), str(tmp_path / "s.npy")]
        )
        == 0
    )
    assert numpy.array_equal(numpy.load(tmp_path / "s.npy"), array[:rows] if shape else array)


@pytest.mark.parametrize(
    "kind",
    ["<f8", ">i2", "|b1", "<U7", "|S3", "<c16", "<M8[ns]", "|V5", [("a", "<i4"), ("b", "<f4", (2, 3)), ("c", [("d", "|S2")])]],
    ids=str,
)  # fmt: skip
def test_sizes_of_types_are_numpys(kind: object, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((3, 4), dtype=kind)
    buffer = io.BytesIO()
    numpy.save(buffer, array)
    buffer.seek(0)
    header = read_header(buffer, "x.npy")
    assert (header.data_size, header.offset) == (array.nbytes, buffer.tell())
    assert header.encoded() == buffer.getvalue()[: header.offset] or len(header.encoded()) % 64 == 0


def test_converted_arrays_load_in_numpy(train: Path, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    assert main(["data", "convert", str(train), str(tmp_path / "out")]) == 0
    array = numpy.load(tmp_path / "out" / "x.npy", mmap_mode="r")
    assert array.shape == (60,) and array.tobytes() == NUMBERS


def test_memory_stays_small(tmp_path: Path) -> None:
    """A zip of 100 KiB that unpacks to 100 MiB is converted within 50 MiB."""
    path = npz(tmp_path / "x.npz", {"x.npy": npy((25 << 20,))}, compressed=True)
    assert load_cost(str(path)).kept == 100 << 20
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (50 << 20, 50 << 20));"
        "from oomproof.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "data", "convert", str(path), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=120)
    assert (tmp_path / "out" / "x.npy").stat().st_size == 128 + (100 << 20)
