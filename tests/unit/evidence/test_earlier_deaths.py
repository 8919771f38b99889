"""At which limits the same command died before, and what is no such death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomproof.evidence.other_runs import died_at
from oomproof.recording import run_folders

MIB = 1 << 20


def test_only_deaths_for_memory_of_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "runs_folder", lambda: tmp_path)

    def ran(number: int, limit: int, cause: str | None, argv: str = "a.py") -> dict[str, object]:
        folder = tmp_path / f"20260101-00000{number}-aaaa"
        (folder / "1").mkdir(parents=True)
        info = {"id": folder.name, "argv": ["python", argv], "cwd": "/x", "settings": {"limit": limit * MIB}}
        (folder / "run.json").write_text(json.dumps(info))
        if cause is not None:
            (folder / "1" / "verdict.json").write_text(json.dumps({"verdict": {"cause": cause}}))
        return info

    ran(1, 300, "stopped-by-guard")
    ran(2, 200, "oom-kill-memcg")
    ran(3, 250, "finished")
    ran(4, 260, "stopped-by-guard", "b.py")
    ran(5, 270, None)
    ran(6, 280, "no such cause")
    assert died_at(ran(7, 400, "stopped-by-guard")) == (200 * MIB, 300 * MIB)
