"""The desktop's own memory: drop-in files for its slices, and nothing left of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomproof.errors import OomproofError
from oomproof.runner import guard_service
from oomproof.units import GIB


def listed(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_every_level_hands_it_down() -> None:
    files = guard_service.slice_files(8 * GIB)
    assert [path.parent.name for path in files] == [
        "user.slice.d", "user-.slice.d", "user@.service.d", "session.slice.d",
    ]  # fmt: skip
    assert all("MemoryLow=819M\n" in text for text in files.values())
    assert "[Service]" in files[Path("/etc/systemd/system/user@.service.d/60-oomproof-desktop.conf")]


def test_a_large_machine_keeps_no_more_than_a_desktop_holds() -> None:
    assert all("MemoryLow=2048M\n" in text for text in guard_service.slice_files(512 * GIB).values())


def test_written_and_taken_away(tmp_path: Path) -> None:
    (tmp_path / "etc/systemd/system/user@.service.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/user@.service.d/50-own.conf").write_text("[Service]\n")
    before = listed(tmp_path)
    guard_service.write_slices(guard_service.slice_files(8 * GIB), tmp_path)
    assert len([name for name in listed(tmp_path) if name.endswith("60-oomproof-desktop.conf")]) == 4
    assert guard_service.remove_slices(tmp_path)
    assert [name for name in listed(tmp_path) if name.endswith(".conf")] == [
        name for name in before if name.endswith(".conf")
    ]
    assert not guard_service.remove_slices(tmp_path)


def test_somebody_elses_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "etc/systemd/system/user.slice.d/60-oomproof-desktop.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[Slice]\nMemoryLow=1G\n")
    assert not guard_service.remove_slices(tmp_path) and path.exists()
    with pytest.raises(OomproofError, match="is not ours"):
        guard_service.write_slices(guard_service.slice_files(GIB), tmp_path)
    assert path.read_text() == "[Slice]\nMemoryLow=1G\n"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("")
    with pytest.raises(OomproofError, match="cannot write"):
        guard_service.write_slices(guard_service.slice_files(GIB), tmp_path)
