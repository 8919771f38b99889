"""I0: a desktop of 31 GB with a training of 19, full swap, and a loader that wants 20 more, frozen and rebooted. The
recordings it left in; who held what, what was needed and there, and a command that waits its turn, out: in every document."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from oomproof.machine.host_identity import host_name, machine_id
from oomproof.recording.writer import Writer

GIB = 1 << 30
BOOT = "11111111-2222-3333-4444-555555555555"
FROZE = 2040.0
# the start of that boot: this one came three minutes after the last sample
WALL = int(re.findall(r"btime (\d+)", Path("/proc/stat").read_text())[0]) - 2200.0
TRAIN, LOADER = ["python", "train.py", "--batch-size", "64"], ["python", "load_model.py", "--model", "big"]


class Desktop:
    """The state folder that it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self, name: str, argv: list[str], start: float, use: list[tuple[float, int]], **ended: Any
    ) -> Writer:
        """``use``: (seconds since boot, bytes)."""
        attempt = self.folder / "oomproof" / "runs" / f"20251113-000000-{name}" / "1"
        attempt.mkdir(parents=True)
        boot = {"boot_id": BOOT, "boottime": start, "wall": WALL + start}
        info = {
            "schema": 1, "id": attempt.parent.name, "name": name, "argv": argv, "cwd": "/", "boot_id": BOOT,
            "created": WALL + start, "settings": {}, "flags": {"name": name}, "host": host_name(), "machine": machine_id(),
        }  # fmt: skip
        (attempt.parent / "run.json").write_text(json.dumps(info))
        (attempt / "started.json").write_text(json.dumps({**boot, "job": {"pid": 77, "start": 1}}))
        if ended:
            (attempt / "exit.json").write_text(json.dumps({"wall": WALL + use[-1][0], **ended}))
        writer = Writer(attempt / "recording.sqlite", {"boot_id": BOOT, "wall_offset": repr(WALL)})
        for t, held in use:
            writer.put("job", (t, held, 0, 0, 0, 0, None, 1, None, None))
        return writer

    def trained(self, loaded: list[tuple[float, int]]) -> Writer:
        """19 GiB, without a change; the machine beside it, with what the loader took."""
        times = [float(t) for t in range(1900, int(FROZE) + 1)]
        writer = self.run("training", TRAIN, 1000.0, [(t, 19 * GIB) for t in times])
        held = dict(loaded)
        for t in times:
            there = 11 * GIB - held.get(t, 0)
            stalled = int(held.get(t, 0) / GIB * 2.2e6)
            writer.put("host", (t, 31 * GIB, there, there, 4 * GIB, 0, stalled, stalled))
        return writer

    def why(self, *words: str) -> str:
        command = [sys.executable, "-m", "oomproof", "why", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desktop:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return Desktop(tmp_path / "state")


LOADED = [(float(t), int((t - 2000) * 10.8 / 40 * GIB)) for t in range(2000, int(FROZE) + 1)]


def documents(desktop: Desktop, tmp_path: Path, *words: str) -> dict[str, str]:
    """What the terminal shows, and both files, in plain words."""
    texts = {"terminal": desktop.why(*words)}
    for name in ("md", "html"):
        path = tmp_path / f"story.{name}"
        desktop.why(*words, f"--{name}", str(path))
        texts[name] = path.read_text()
    texts["html"] = unescape(re.sub(r"<[^>]+>", "", texts["html"]))
    return {name: " ".join(text.replace("\\", "").split()) for name, text in texts.items()}


@pytest.mark.parametrize("words", [("training",), ("--system", "--since", "2020-01-01")])
def test_every_document_tells_the_freeze_with_its_arithmetic(
    desktop: Desktop, tmp_path: Path, words: tuple[str, ...]
) -> None:
    desktop.run("loader-before", LOADER, 100.0, [(101.0, 2 * GIB), (130.0, 20 * GIB)], code=0).close()
    desktop.trained(LOADED).close()
    desktop.run("loader", LOADER, 2000.0, LOADED).close()
    for name, text in documents(desktop, tmp_path, *words).items():
        assert "20.0 GiB − 11.0 GiB = short by 9.0 GiB" in text, name
        assert "11.0 GiB available + 0 B of 4.0 GiB swap free = 11.0 GiB there" in text, name
        assert "the peak of 1 other run of the same command" in text, name
        assert "oomproof run --name loader --need 20G -- python load_model.py --model big" in text, name
        assert "halve" not in text and "half the batch" not in text, name


def test_a_loader_that_nobody_managed_is_the_culprit_in_every_document(
    desktop: Desktop, tmp_path: Path
) -> None:
    writer = desktop.trained(LOADED)
    for t, held in LOADED[::5]:
        writer.put("other_job", (t, 812, 190000, 1000, "python load_model.py", 0, held, 0))
        writer.put("other_job", (t, 900, 1000, 1000, "firefox", 0, 2 * GIB, 0))
    writer.close()
    for name, text in documents(desktop, tmp_path, "training").items():
        assert "python load_model.py (pid 812" in text and "10.8 GiB" in text, name
        assert "MiB/s" in text, name
        assert (
            "pause or finish python load_model.py (pid 812) first, or start it with oomproof run too" in text
        )
        assert "halve" not in text and "half the batch" not in text, name
    verdict = json.loads(desktop.why("--json", "training"))
    assert verdict["verdict"]["cause"] == "machine-down"
    assert not any("batch" in remedy["title"] for remedy in verdict["remedies"])


def test_a_machine_with_room_did_not_go_down_for_memory(desktop: Desktop) -> None:
    desktop.trained([]).close()
    text = desktop.why("training")
    assert "the machine went down" in text and "nearly gone" not in text and "short by" not in text
