"""`oomproof run --need auto`: sized once, measured after that, and never in the way of the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oomproof.cli.main import main
from oomproof.ledger.ledger_entries import Need
from oomproof.recording import run_folders
from oomproof.runner.admission_request import Asked, ask
from oomproof.sizing import need_auto, script_sizing, sizing_cache
from oomproof.sizing.estimate import Estimate

pytestmark = pytest.mark.timeout(240)
GIB = 1 << 30

TRAIN = """
import sys, torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(16, 512, device=device)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_HOME", "CONFIG_HOME", "RUNTIME_DIR"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path / name))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(need_auto, "_card_size", lambda: None)


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were really sized."""
    commands: list[list[str]] = []
    real = script_sizing.size_command

    def counted(argv: Any, **settings: Any) -> Any:
        commands.append(list(argv))
        return real(argv, **settings)

    monkeypatch.setattr(script_sizing, "size_command", counted)
    return commands


def find(*argv: str) -> tuple[need_auto.AutoNeed, str]:
    said: list[str] = []
    return need_auto.find([sys.executable, *argv], os.getcwd(), None, said.append, said.append), "\n".join(
        said
    )


def test_a_script_for_a_card_is_sized_once(sized: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    monkeypatch.setattr(need_auto, "_card_size", lambda: 24 * GIB)
    Path("train.py").write_text(TRAIN)
    first, text = find("train.py")
    assert "sizing" in text and "at most 60 s" in text and "on the card (up to" in text, text
    assert first.need is not None and first.predicted is not None
    assert first.need.basis == need_auto.BASIS
    assert first.need.high == first.predicted["host"]["expected"] > 100 << 20
    assert first.need.gpu == first.predicted["gpu"]["high"] > first.predicted["gpu"]["expected"] > 400 << 20
    again, text = find("train.py", "--seed", "2")  # another seed needs the same
    assert len(sized) == 1 and again == first
    assert text.endswith("(sized before)") and text.count("\n") == 0, text
    kept = list(sizing_cache.folder().glob("*"))
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o777 == 0o600


def test_predicted_then_measured_from_start_to_compare(
    sized: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    Path("train.py").write_text(TRAIN)
    command = ["run", "-v", "--need", "auto", "--", sys.executable, "train.py"]
    assert main(command) == 0
    told = capfd.readouterr().err
    assert "as there is no card here" in told and f"({need_auto.BASIS})" in told, told
    (run,) = run_folders.list_runs()
    predicted = run.info["predicted"]["host"]
    assert run.info["claim"]["need"] == predicted["expected"] and "gpu" not in run.info["predicted"]

    assert main(["size", "--compare", run.id, "--json"]) == 0
    compared = json.loads(capfd.readouterr().out)
    assert compared["host"]["expected_bytes"] == predicted["expected"] and compared["gpu"] is None
    assert compared["host"]["measured_bytes"] > 64 << 20
    off = compared["host"]["expected_bytes"] / compared["host"]["measured_bytes"] - 1
    assert compared["host"]["error"] == pytest.approx(off, abs=1e-3)
    assert main(["size", "--compare", run.id]) == 0
    assert "MEASURED" in capfd.readouterr().out

    assert main(command) == 0  # it has run to its end: what it held counts
    told = capfd.readouterr().err
    assert "measured, which counts before a sizing" in told and len(sized) == 1, told
    newest = run_folders.list_runs()[0]
    assert newest.info["claim"]["need"] == compared["host"]["measured_bytes"]
    assert newest.info["predicted"]["host"] == predicted

    argv = [sys.executable, "train.py"]
    assert need_auto._measured(argv, os.getcwd(), None) is not None
    Path("train.py").write_text(TRAIN.replace("512", "768"))  # no longer what was measured
    assert need_auto._measured(argv, os.getcwd(), None) is None


def test_a_script_that_fails_by_itself_is_told_and_still_started(
    sized: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("import sys, some_library_that_is_not_there")
    command = ["run", "--need", "auto", "--", sys.executable, "train.py"]
    assert main(command) == 1
    told = capfd.readouterr().err
    assert "not sized: it failed there with status 1 (ModuleNotFoundError: No module named" in told, told
    assert len(sized) == 1 and len(run_folders.list_runs()) == 1
    assert not sizing_cache.folder().exists()  # the next time the library may be there


def test_what_cannot_be_followed_is_refused_once(sized: list[list[str]]) -> None:
    pytest.importorskip("torch", reason="the extra [ml] is not installed")
    Path("train.py").write_text(
        'import torch.distributed as d\nd.init_process_group("gloo", init_method="file:///tmp/x", rank=0, world_size=2)'
    )
    for _ in range(2):
        found, text = find("train.py")
        assert found == need_auto.AutoNeed() and "not sized: " in text, text
        assert text.endswith("starts as without --need")
    assert len(sized) == 1 and "(sized before)" in text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import json, helper\nprint(json.dumps(helper.figure))", "imports nothing that uses torch"),
        ("import numpy as np", "imports nothing that uses torch"),
    ],
)
def test_without_torch_nothing_is_run(source: str, why: str, sized: list[list[str]]) -> None:
    Path("main.py").write_text(source)
    Path("helper.py").write_text("import math\nfigure = math.pi")
    found, text = find("main.py")
    assert found == need_auto.AutoNeed() and why in text and "\n" not in text and sized == []


def test_a_program_that_is_no_python_is_not_run(sized: list[list[str]]) -> None:
    said: list[str] = []
    assert (
        need_auto.find(["sleep", "1000"], os.getcwd(), None, said.append, said.append) == need_auto.AutoNeed()
    )
    assert said == ["not sized: sleep is no Python program (--need auto); give --need SIZE"] and sized == []


def test_our_own_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(script_sizing, "size_command", fails)
    found, text = find("-c", "import torch")
    assert found == need_auto.AutoNeed() and "not sized (RuntimeError: a bug of ours)" in text


def test_ctrl_c_ends_the_sizing(tmp_path: Path) -> None:
    Path("train.py").write_text("import time, some_library\n")
    Path("some_library.py").write_text("import importlib, time\ntime.sleep(600)\n")
    command = [
        sys.executable,
        "-m",
        "oomproof",
        "run",
        "--need",
        "auto",
        "--",
        sys.executable,
        "train.py",
        "mark-7",
    ]
    front = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (children := _sized_processes(front.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    front.send_signal(signal.SIGINT)
    _, told = front.communicate(timeout=60)
    assert front.returncode == 130 and "nothing was started" in told, told
    # one that has ended may wait for its new parent, which is this process where it was a front before; it has no words then
    while (left := [pid for pid in children if _words(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert run_folders.list_runs() == [] and not sizing_cache.folder().exists()


def _sized_processes(front: int) -> list[int]:
    """The child of the front, once it runs the script itself."""
    from oomproof.machine import processes

    pids = [pid for pid in processes.descendants(front) if pid != front]
    return pids if any(_words(pid)[1:] == ["train.py", "mark-7"] for pid in pids) else []


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


# --- figures ------------------------------------------------------------------------------------------------------


def test_a_card_is_reserved_by_the_high_figure_unless_it_cannot_have_that() -> None:
    gpu = Estimate(18 * GIB, 20 * GIB, 25 * GIB, {})
    assert need_auto._of_card(gpu, 80 * GIB) == 25 * GIB
    assert need_auto._of_card(gpu, 24 * GIB) == 20 * GIB
    assert need_auto._of_card(gpu, None) is None


def test_a_sized_need_is_reserved_and_never_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()

    def start(size: int) -> Any:
        asked = Asked(sized=Need(size // 2, size, need_auto.BASIS), ledger=str(tmp_path / "ledger"))
        return ask(run_folders.new_run(), ["true"], None, asked, os.getcwd(), print, print)

    ticket = start(100 << 20)
    assert (ticket.entry.need_low, ticket.entry.need, ticket.entry.basis) == (
        50 << 20,
        100 << 20,
        need_auto.BASIS,
    )
    ticket.drop()
    ticket = start(1 << 50)
    assert ticket.entry.need is None and any(
        "the need is only an estimate, so it starts, unreserved" in note for note in ticket.told
    )
    ticket.drop()


def test_where_it_was_ended_before_counts_when_that_is_more() -> None:
    said: list[str] = []
    kept = {"host": Estimate(1 * GIB, 2 * GIB, 3 * GIB, {}).as_json()}
    before = Need(5 * GIB, 5 * GIB, "at least: what it held in a run that ended early")
    found = need_auto._told(kept, before, None, "", said.append)
    assert (
        found.need == before and "reserves 5.0 GiB (at least: what it held in a run that ended early)" in said
    )
    assert found.predicted == {"host": {"low": 1 * GIB, "expected": 2 * GIB, "high": 3 * GIB}}


@pytest.mark.parametrize(
    "words", [["run", "--need", "automatic", "--", "true"], ["adopt", str(os.getpid()), "--need", "auto"]]
)
def test_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "--need" in capsys.readouterr().err


def test_a_run_that_was_not_sized_has_nothing_to_compare(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-q", "--name", "plain", "--", "true"]) == 0
    assert main(["size", "--compare", "plain"]) == 2
    assert "plain was not sized before it started" in capfd.readouterr().err
    assert main(["size", "--compare", "plain", "--gpu", "24G"]) == 2
    assert "--gpu does nothing beside --compare" in capfd.readouterr().err
