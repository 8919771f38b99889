"""Incident I2, the silent death: one training, five ends at different batches, each told for what it was."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab, until

pytest.importorskip("torch", reason="the extra [ml] is not installed")
pytest.importorskip("tqdm")
SCRIPT = JOBS / "ml" / "two_towers.py"
pytestmark = pytest.mark.timeout(300)


def job(how: str, at: int, go: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), "--die", how, "--at", str(at), "--go", str(go)]


def line_of(text: str) -> str:
    lines = SCRIPT.read_text().splitlines()
    return f"{SCRIPT}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def last_bar(lab: Lab) -> str:
    folder = lab.folder_of("i2")
    assert folder is not None
    output = (folder / "1" / "output.log").read_text(errors="replace")
    return [line for line in output.replace("\r", "\n").splitlines() if "it/s" in line][-1]


def told(lab: Lab, cause: str, at: int) -> dict[str, object]:
    """The verdict, after checking what must be the same in all five."""
    verdict = lab.verdict("i2")
    head = verdict["verdict"]
    assert head["cause"] == cause, head
    assert (head["phase"], head["step"]) == ("train", at)
    assert f"{at}/1000" in last_bar(lab), "the bar's last word agrees with the agent's"
    return verdict


@pytest.mark.usefixtures("kernel_limit")
def test_five_deaths_of_one_training(lab: Lab, tmp_path: Path) -> None:
    go = tmp_path / "go"
    assert lab.kernel_kill("i2", "--limit", "700M", job=job("oom", 117, go), go=go) == 137
    told(lab, "oom-kill-memcg", 117)

    assert lab.run("run", "--name", "i2", "--", *job("segfault", 464, go)).returncode == 139
    verdict = told(lab, "segfault", 464)
    assert line_of("ctypes.string_at") in verdict["verdict"]["headline"], (
        "the Python line that called native code"
    )

    running = lab.start("i2", "--", *job("killed", 472, tmp_path / "never"))
    folder = until(lambda: alive_run(lab), "the third run")
    until(lambda: "waiting" in _text(folder / "1" / "output.log"), "the job to wait", 120)
    os.kill(int(lab.read(folder / "1" / "started.json")["job"]["pid"]), signal.SIGKILL)
    assert running.wait() == 137
    verdict = told(lab, "killed-unknown", 472)
    assert "not for memory" in verdict["verdict"]["headline"]

    assert lab.run("run", "--name", "i2", "--", *job("abort", 927, go)).returncode == 134
    verdict = told(lab, "abort", 927)
    assert line_of("os.abort()") in verdict["verdict"]["headline"]

    assert lab.run("run", "--name", "i2", "--", *job("error", 951, go)).returncode == 1
    verdict = told(lab, "other-error", 951)
    assert "3 vectors fewer" in verdict["verdict"]["headline"]
    assert any(item["id"].startswith("agent.exception") for item in verdict["evidence"])

    patterns = json.loads(lab.run("why", "--all", "--json", "i2").stdout)
    found = [(each["cause"], each["step"], each["phase"]) for each in patterns["deaths"]]
    assert found == [
        ("oom-kill-memcg", 117, "train"),
        ("segfault", 464, "train"),
        ("killed-unknown", 472, "train"),
        ("abort", 927, "train"),
        ("other-error", 951, "train"),
    ]
    lines = [each["last_line"] for each in patterns["deaths"]]
    assert [f"{step}/1000" in line for (_, step, _), line in zip(found[:4], lines, strict=False)] == [
        True
    ] * 4
    assert "ValueError: the bank has 3 vectors fewer" in lines[4]
    assert any("not at one step" in each["text"] for each in patterns["statements"])
    table = lab.run("why", "--all", "i2").stdout
    for _, step, _ in found:
        assert f" {step} " in table or f" {step}/" in table


def alive_run(lab: Lab) -> Path | None:
    """The newest run, once it has no exit status yet."""
    folder = lab.folder_of("i2")
    return folder if folder is not None and not (folder / "1" / "exit.json").exists() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
