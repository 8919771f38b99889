"""Real training programs, unmodified, under `oomproof run`: their phases and steps are told, requests are answered."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import JOBS, Lab, Running, until

from oomproof.recording import position_record
from oomproof.recording.reader import open_recording

pytest.importorskip("torch", reason="the extra [ml] is not installed")
PYTHON = sys.executable
ML = JOBS / "ml"
MANY = "1000000"
LOAD_GPT2 = "import sys; from transformers import GPT2LMHeadModel as M; print(M.from_pretrained(sys.argv[1]).config.n_embd)"
pytestmark = pytest.mark.timeout(300)


def steps(running: Running, at_least: int) -> position_record.PositionRecord:
    """Waits until the job itself says that it has made so many steps."""

    def reached() -> position_record.PositionRecord | None:
        found = position_record.best(position_record.read_all(running.attempt / "agent"))
        return found if found is not None and (found.step or 0) >= at_least else None

    return until(reached, f"{running.name} to make {at_least} steps", 120)


def python(code: str, *words: object) -> str:
    done = subprocess.run(
        [PYTHON, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def phases(running: Running) -> set[str]:
    return {
        str(row[0])
        for row in open_recording(running.attempt / "recording.sqlite").rows("SELECT name FROM phase")
    }


def events(running: Running, kind: str) -> list[str]:
    recording = open_recording(running.attempt / "recording.sqlite")
    return [
        str(row[0]) for row in recording.rows("SELECT text FROM event WHERE kind = ? ORDER BY t", (kind,))
    ]


def stderr_of(path: Path) -> str:
    return path.read_text(errors="replace")


def start(lab: Lab, name: str, tmp_path: Path, *words: str) -> tuple[Running, Path]:
    path = tmp_path / "stderr"
    with open(path, "w") as file:
        return lab.start(name, "--", *words, stderr=file), path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_hugging_face_trainer_saves_goes_on_and_stops(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "out"
    running, path = start(lab, "hf", tmp_path, PYTHON, str(ML / "hf_trainer.py"), str(out), MANY)
    steps(running, 41)  # it evaluates after 40
    saved = lab.run("save", "hf")
    assert saved.returncode == 0, saved.stderr
    assert "asked the Hugging Face Trainer to save" in saved.stderr and "hf continues" in saved.stderr
    first = [each.name for each in out.glob("checkpoint-*")]
    assert len(first) == 1 and first[0] in saved.stderr
    before = steps(running, 0).step or 0
    steps(running, before + 2)
    assert lab.run("stop", "--grace", "100", "hf").returncode == 0
    assert running.wait() == 0
    last = max(int(each.name.split("-")[1]) for each in out.glob("checkpoint-*"))
    assert last > int(first[0].split("-")[1])
    assert python(LOAD_GPT2, out / f"checkpoint-{last}") == "32"
    assert running.verdict()["verdict"]["step"] == last
    assert {"load", "train", "eval", "save"} <= phases(running)
    assert not events(running, "agent:agent-failed")
    # anywhere in a line: the trainer writes to the same file, and not only whole lines
    said = re.findall(r"oomproof: [^\r\n]*", stderr_of(path))
    del said[0]  # names the run
    assert said == [
        f"oomproof: the Hugging Face Trainer saves and continues at step {first[0].split('-')[1]}",
        f"oomproof: saved {out / first[0]} at step {first[0].split('-')[1]}",
        f"oomproof: the Hugging Face Trainer saves and stops at step {last}",
        f"oomproof: saved {out / f'checkpoint-{last}'} at step {last}",
    ]
    shown = " ".join(lab.run("runs", "show", "hf").stdout.split())  # long lines are folded
    assert "the Hugging Face Trainer answers requests" in shown
    assert f"step {last}" in shown and "at entry" in shown


def test_lightning_saves_goes_on_and_stops(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    out = tmp_path / "out"
    running, path = start(lab, "pl", tmp_path, PYTHON, str(ML / "lightning_fit.py"), str(out), MANY)
    steps(running, 201)  # an epoch of 200 and its validation
    saved = lab.run("save", "pl")
    assert saved.returncode == 0, saved.stderr
    before = steps(running, 0).step or 0
    steps(running, before + 2)
    assert lab.run("stop", "--grace", "100", "pl").returncode == 0
    assert running.wait() == 0
    kept = sorted(out.glob("oomproof-step=*.ckpt"), key=lambda each: each.stat().st_mtime)
    assert len(kept) == 2
    load = "import sys, torch; print(torch.load(sys.argv[1], weights_only=False)['global_step'])"
    last = int(python(load, kept[-1]))
    assert kept[-1].name == f"oomproof-step={last}.ckpt"
    assert {"load", "train", "eval", "save"} <= phases(running)
    assert not events(running, "agent:agent-failed")
    assert f"oomproof: Lightning saves and stops at step {last}" in stderr_of(path)
    output = (running.attempt / "output.log").read_text()
    assert last % 200 == 0 or f"validated at step {last}\n" not in output
    assert "the script goes on after fit(), with validations of 1.0" in output, "as the script had it"


def test_lightning_saves_at_once_in_a_validation(lab: Lab, tmp_path: Path) -> None:
    """Asked to stop for memory it has no time for the rest of a validation, nor for one more."""
    pytest.importorskip("lightning")
    out = tmp_path / "out"
    running, _ = start(lab, "pl", tmp_path, PYTHON, str(ML / "lightning_fit.py"), str(out), MANY, "slow")
    running.output_has("validating")
    assert lab.run("stop", "--grace", "100", "pl").returncode == 0
    assert running.wait() == 0
    output = (running.attempt / "output.log").read_text()
    assert "saved in the middle of a validation" in output
    assert len(list(out.glob("oomproof-step=*.ckpt"))) == 1
    assert not events(running, "agent:agent-failed")


def test_plain_loop_stops_when_its_loader_is_watched(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    running, _ = start(lab, "plain", tmp_path, PYTHON, str(ML / "plain_loop.py"), str(out))
    steps(running, 20)
    refused = lab.run("save", "plain")
    assert refused.returncode != 0 and "nothing in plain answers a request to save" in refused.stderr
    assert lab.run("stop", "--grace", "100", "plain").returncode == 0
    assert running.wait() == 0
    kept = int(python("import sys, torch; print(torch.load(sys.argv[1])['step'])", out))
    assert running.verdict()["verdict"]["step"] == kept
    assert {"load", "train"} <= phases(running)


def test_torchrun_ranks_stop_in_the_same_step(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    running, _ = start(lab, "ranks", tmp_path, PYTHON, *words, str(ML / "two_ranks.py"), str(out))
    steps(running, 20)
    assert lab.run("stop", "--grace", "100", "ranks").returncode == 0
    assert running.wait() == 0
    output = (running.attempt / "output.log").read_text()
    kept = int(python("import sys, torch; print(torch.load(sys.argv[1])['step'])", out))
    assert f"rank 0 stopped at step {kept}" in output and f"rank 1 stopped at step {kept}" in output
    assert running.verdict()["verdict"]["step"] == kept
    assert not events(running, "agent:agent-failed")


def test_accelerate_launch(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    out = tmp_path / "out"
    words = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    running, _ = start(lab, "acc", tmp_path, PYTHON, *words, str(ML / "hf_trainer.py"), str(out), MANY)
    steps(running, 5)
    assert lab.run("stop", "--grace", "100", "acc").returncode == 0
    assert running.wait() == 0
    (found,) = out.glob("checkpoint-*")
    assert python(LOAD_GPT2, found) == "32"
    assert "the script goes on after train()" in (running.attempt / "output.log").read_text()
    assert running.verdict()["verdict"]["step"] == int(found.name.split("-")[1])
    assert not events(running, "agent:agent-failed")


def test_trainer_on_two_ranks_of_torchrun(lab: Lab, tmp_path: Path) -> None:
    """Saving is a joint act of all ranks: each must come to it in the same step, once for each request."""
    pytest.importorskip("transformers")
    out = tmp_path / "out"
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    running, path = start(lab, "hf2", tmp_path, PYTHON, *words, str(ML / "hf_trainer.py"), str(out), MANY)
    steps(running, 5)
    saved = lab.run("save", "hf2")
    assert saved.returncode == 0, saved.stderr
    before = steps(running, 0).step or 0
    steps(running, before + 10)
    assert lab.run("stop", "--grace", "100", "hf2").returncode == 0
    assert running.wait() == 0
    found = sorted(out.glob("checkpoint-*"), key=lambda each: int(each.name.split("-")[1]))
    assert len(found) == 2
    assert python(LOAD_GPT2, found[-1]) == "32"
    assert (running.attempt / "output.log").read_text().count("the script goes on after train()") == 2
    assert not events(running, "agent:agent-failed")
    said = stderr_of(path)
    assert said.count("the Hugging Face Trainer saves and continues") == 1, "rank 0 speaks for all"
    assert said.count("the Hugging Face Trainer saves and stops") == 1


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        "torchrun",
        pytest.param("accelerate", marks=pytest.mark.long),
        "spawn",
        pytest.param("hogwild", marks=pytest.mark.long),
    ],
)
def test_who_trains_speaks_not_who_launched_it(lab: Lab, how: str) -> None:
    """The parent imports torch first and then only waits: it is in "load" to the end, its stack is the launcher's."""
    if how == "accelerate":
        pytest.importorskip("accelerate")
    launcher = {"torchrun": [*TORCHRUN, str(free_port())], "accelerate": ACCELERATE}.get(how, [])
    done = lab.run("run", "--name", how, "--", PYTHON, *launcher, str(ML / "launched.py"), how, "88")
    assert done.returncode == 0, done.stderr
    assert "left" not in done.stderr, "Python's resource tracker is no process left behind"
    folder = lab.folder_of(how)
    assert folder is not None
    shown = json.loads(lab.run("runs", "show", how, "--json").stdout)["phases"]
    last_steps = {row["phase"]: row["last_step"] for row in shown}
    assert last_steps == {"load": None, "train": 88}
    recording = open_recording(folder / "1" / "recording.sqlite")
    stacks = [str(row[0]) for row in recording.rows("SELECT text FROM event WHERE kind = 'stacks'")]
    assert not [text for text in stacks if "_invoke_run" in text or "launch.py" in text or "spawn.py" in text]
    assert all("launched.py:" in text for text in stacks), "a line of the user's, or nothing"
