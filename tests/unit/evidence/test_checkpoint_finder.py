"""The newest checkpoint that is whole: never one that a kill cut in half."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import pytest

from oomproof.evidence.checkpoint_finder import Found, newest_checkpoint
from oomproof.recording.attempt import Attempt
from oomproof.recording.writer import Writer

NOW = 1_700_000_000.0


def safetensors(path: Path, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes((struct.pack("<Q", len(header)) + header + bytes(16))[: -cut or None])


def torch_file(path: Path, cut: int = 0) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("c/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("c/data/0", bytes(64))
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])


def trainer(folder: Path, step: int, wall: float, state: bool = True, cut: int = 0) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    safetensors(path / "model.safetensors", cut)
    torch_file(path / "optimizer.pt")
    if state:
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for file in path.iterdir():
        os.utime(file, (wall, wall))
    return path


def found(folder: Path, *words: str, died: float | None = None, saving_since: float | None = None) -> Found:
    words = words or ("--output_dir", "out")
    return newest_checkpoint([], ["python", "t.py", *words], str(folder), NOW, died, saving_since)


def newest(folder: Path, *words: str) -> str | None:
    checkpoint = found(folder, *words).newest
    return os.path.relpath(checkpoint.path, folder) if checkpoint else None


def test_the_trainers_newest(tmp_path: Path) -> None:
    trainer(tmp_path / "out", 500, NOW + 10)
    trainer(tmp_path / "out", 1000, NOW + 20)
    trainer(tmp_path / "out", 900, NOW - 5000)  # of an earlier run
    assert newest(tmp_path) == "out/checkpoint-1000"
    assert found(tmp_path).newest.step == 1000  # type: ignore[union-attr]


@pytest.mark.parametrize("half", ["no state", "cut weights", "cut optimizer", "missing part", "another step"])
def test_one_that_is_not_whole_is_passed_over_and_named(tmp_path: Path, half: str) -> None:
    trainer(tmp_path / "out", 500, NOW + 10)
    late = trainer(
        tmp_path / "out", 1000, NOW + 20, state=half != "no state", cut=4 if half == "cut weights" else 0
    )
    if half == "cut optimizer":
        torch_file(late / "optimizer.pt", cut=30)
    if half == "missing part":
        (late / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": "model-1.safetensors"}})
        )
    if half == "another step":
        (late / "trainer_state.json").write_text(json.dumps({"global_step": 999}))
    for file in late.iterdir():
        os.utime(file, (NOW + 20, NOW + 20))
    told = found(tmp_path)
    assert told.newest is not None and told.newest.path.endswith("checkpoint-500")
    assert [os.path.basename(path) for path in told.cut] == ["checkpoint-1000"]


def test_what_the_run_told_is_its_own_whatever_the_clock_says(tmp_path: Path) -> None:
    """Set back by an hour after the start, as on a machine with two systems: it began again from the beginning."""
    mine = trainer(tmp_path / "out", 500, NOW - 3500)
    trainer(tmp_path / "out", 900, NOW - 3000)  # of an earlier run
    (tmp_path / "1").mkdir()
    attempt = Attempt(tmp_path / "1")
    writer = Writer(attempt.recording_file, {"boot_id": "b", "wall_offset": "0.0"})
    writer.event(5.0, "saved", f"saved {mine} at step 500")
    writer.close()
    words = ["python", "t.py", "--output_dir", "out"]
    checkpoint = newest_checkpoint([attempt], words, str(tmp_path), NOW).newest
    assert checkpoint is not None and checkpoint.path == str(mine)


def test_lightnings_file(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs/version_3/checkpoints"
    folder.mkdir(parents=True)
    for name, wall, cut in (
        ("epoch=1-step=40.ckpt", 10, 0),
        ("last.ckpt", 20, 0),
        ("epoch=2-step=80.ckpt", 30, 9),
    ):
        torch_file(folder / name, cut)
        os.utime(folder / name, (NOW + wall, NOW + wall))
    told = newest_checkpoint([], ["python", "t.py"], str(tmp_path), NOW)
    assert (
        told.newest is not None and told.newest.path.endswith("last.ckpt") and told.newest.kind == "lightning"
    )
    assert len(told.cut) == 1


def test_a_folder_of_accelerate(tmp_path: Path) -> None:
    for name, wall in (("step_10", 10.0), ("step_20", 20.0)):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        safetensors(folder / "model.safetensors")
        torch_file(folder / "optimizer.bin")
        for file in folder.iterdir():
            os.utime(file, (NOW + wall, NOW + wall))
    assert newest(tmp_path) == "out/step_20"
    # written at the very end, or while it was saving: nothing in the folder says that it is whole
    assert found(tmp_path, died=NOW + 20.4).newest.path.endswith("step_10")  # type: ignore[union-attr]
    assert found(tmp_path, died=NOW + 60, saving_since=NOW + 19).newest.path.endswith("step_10")  # type: ignore[union-attr]
    assert found(tmp_path, died=NOW + 60).newest.path.endswith("step_20")  # type: ignore[union-attr]


def test_plain_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, wall in (("ckpt_3.pt", 10), ("best.pt", 40), ("model.safetensors", 50)):
        (safetensors if name.endswith("safetensors") else torch_file)(out / name)
        os.utime(out / name, (NOW + wall, NOW + wall))
    assert newest(tmp_path) == "out/ckpt_3.pt", "the best weights and the final ones are not where it stopped"


def test_links_are_not_followed_and_nothing_is_nothing(tmp_path: Path) -> None:
    trainer(tmp_path / "elsewhere", 5, NOW + 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/checkpoint-5").symlink_to(tmp_path / "elsewhere/checkpoint-5")
    assert found(tmp_path) == Found()
    assert found(tmp_path / "nowhere") == Found()


def test_a_plain_loops_file_beside_the_script(tmp_path: Path) -> None:
    for name, wall in (
        ("ckpt_20.pt", NOW + 5),
        ("ckpt_29.pt", NOW + 9),
        ("features.pt", NOW + 12),
        ("old_ckpt.pt", NOW - 99),
    ):
        torch_file(tmp_path / name)
        os.utime(tmp_path / name, (wall, wall))
    assert newest(tmp_path, "--lr", "1") == "ckpt_29.pt"
    earlier = newest_checkpoint([], ["python", "t.py"], str(tmp_path), NOW, NOW + 6, until=NOW + 7).newest
    assert earlier is not None and earlier.path.endswith("ckpt_20.pt"), "the other is a later run's"
    torch_file(tmp_path / "ckpt_30.pt", cut=40)
    os.utime(tmp_path / "ckpt_30.pt", (NOW + 13, NOW + 13))
    assert newest(tmp_path, "--lr", "1") == "ckpt_29.pt", "the last is cut in half"
