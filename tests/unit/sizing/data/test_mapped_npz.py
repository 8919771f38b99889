"""Arrays of a .npz that is not compressed are mapped where they are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from helpers_data import npy, npz

from oomproof.data import open_npz
from oomproof.errors import OomproofError

numpy = pytest.importorskip("numpy")


def test_mapped_arrays_are_those_of_np_load(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    arrays = {
        "c": numpy.arange(24.0).reshape(2, 3, 4),
        "fortran": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
        "single": numpy.array(7, "int16"),
        "none": numpy.zeros((0, 3)),
        "fields": numpy.zeros(3, [("a", "i4"), ("b", "f4", (2,))]),
    }
    numpy.savez(path, **arrays)
    opened = open_npz(path)
    assert list(opened) == list(arrays) and len(opened) == 5 and "c" in opened
    for name, array in arrays.items():
        assert numpy.array_equal(opened[name], array) and opened[name].dtype == array.dtype
    assert isinstance(opened["c"], numpy.memmap) and not opened["c"].flags.writeable
    changed = open_npz(path, mode="c")["c"]
    changed[0] = 1
    assert numpy.array_equal(open_npz(path)["c"], arrays["c"])


def test_what_cannot_be_mapped_is_said(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", {"x.npy": npy((9,)), "o.npy": npy((1,), "|O", 8, pickle.dumps([1]))}, True)
    with pytest.raises(OomproofError, match=r"x is compressed[^$]*oomproof data convert"):
        open_npz(path)["x"]
    with pytest.raises(OomproofError, match="o holds Python objects"):
        open_npz(path)["o"]
    with pytest.raises(KeyError):
        open_npz(path)["y"]
    with pytest.raises(OomproofError, match="unknown mode"):
        open_npz(path, mode="r+")
    with pytest.raises(OomproofError, match="no such file"):
        open_npz(tmp_path / "gone.npz")
