"""Sweeps of real trials: points that cannot fit, deaths at a limit, kills of everything, and all of it accounted for."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab, SmallMachine, alive, until

LOSS = ("--metric", "loss")


@contextlib.contextmanager
def driving(lab: Lab, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`oomproof sweep …` in the background."""
    process = subprocess.Popen(
        lab.command("sweep", *words),
        env=lab.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # an earlier test may ignore it
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def trial_run(lab: Lab, name: str) -> dict[str, Any]:
    """started.json of the run, once its job waits at its gate."""

    def waits() -> dict[str, Any]:
        folder = lab.folder_of(name)
        if folder is None or "waiting" not in _text(folder / "1" / "output.log"):
            return {}
        return lab.read(folder / "1" / "started.json")

    return until(waits, f"{name} to wait at its gate")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def kill_all(process: subprocess.Popen[str], started: dict[str, Any]) -> None:
    """The sweep, the trial's front, its keeper and the job, at once."""
    process.kill()
    for who in ("guard", "keeper", "job"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(started[who]["pid"], signal.SIGKILL)
    process.wait()
    for who in ("guard", "keeper", "job"):
        until(lambda process=started[who]: not alive(process["pid"], process["start"]), f"{who} to be gone")


def status(lab: Lab, *words: str) -> dict[str, Any]:
    return dict(json.loads(lab.run("sweep", "status", "--json", *words).stdout))


@pytest.mark.usefixtures("kernel_limit")
def test_eight_trials_of_which_three_cannot_fit_killed_twice(lab: Lab, tmp_path: Path) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    batches = ["250", "8", "16", "300", "24", "32", "400", "12"]
    for batch in ("16", "32"):
        (gates / f"closed-{batch}").touch()
    words = [
        "--name", "eight", "--limit", "120M", "--grace", "1", *LOSS, "--param", f"batch={','.join(batches)}",
        "--", *lab.job("sweep_trial.py", "--batch", "{batch}", "--gates", str(gates)),
    ]  # fmt: skip
    with driving(lab, *words) as sweep:
        kill_all(sweep, trial_run(lab, "sweep:eight:3"))
    halfway = status(lab)
    assert halfway["state"] == "unfinished"
    assert [trial["state"] for trial in halfway["trials"]] == ["out-of-memory", "done", "running"]

    (gates / "closed-16").unlink()
    with driving(lab, "resume", "eight") as sweep:
        trial_run(lab, "sweep:eight:6")
        refused = lab.run("sweep", "resume", "eight")
        assert refused.returncode == 2 and f"is run by pid {sweep.pid}" in refused.stderr
        sweep.kill()  # the trial continues, and ends with nobody there
    (gates / "closed-32").unlink()
    went_on = until(lambda: lab.folder_of("sweep:eight:6"), "the run of trial 6")
    until(lambda: lab.read(went_on / "1" / "exit.json"), "trial 6 to end by itself")

    done = lab.run("sweep", "resume", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["state"] == "finished"
    by_batch = {trial["values"]["batch"]: trial for trial in told["trials"]}
    assert list(by_batch) == batches, "every point once, none twice, none lost"
    ends = {batch: trial["state"] for batch, trial in by_batch.items()}
    assert ends == {
        "250": "out-of-memory", "8": "done", "16": "done", "300": "skipped", "24": "done", "32": "done", "400": "skipped",
        "12": "done",
    }  # fmt: skip
    for batch, trial in by_batch.items():
        assert len(trial["tries"]) == {"16": 2, "300": 0, "400": 0}.get(batch, 1), batch
        if trial["state"] == "done":
            assert trial["metric"] == pytest.approx(1 / int(batch) + 0.1, abs=1e-6)
            assert int(batch) << 20 <= trial["peak_bytes"] < (int(batch) + 40) << 20
    assert by_batch["16"]["tries"][0]["again"] and not by_batch["16"]["tries"][1]["again"]
    assert by_batch["32"]["tries"][0]["run"] == went_on.name, "taken over, not repeated"
    assert by_batch["250"]["peak_bytes"] <= 120 << 20 and "trial 1 died at" in by_batch["300"]["why"]
    assert told["best"] == by_batch["32"]["trial"]
    assert told["trials"][0]["metric_source"] is None and "printed" in by_batch["8"]["metric_source"]
    runs = [lab.read(path) for path in (lab.state / "oomproof" / "runs").glob("*/run.json")]
    assert len(runs) == 7, "five done, one that died, one that was killed with all its processes"
    assert optuna_states(lab, "eight") == {"COMPLETE": 5, "PRUNED": 3}


def test_a_trial_whose_guard_was_killed_too_is_guarded_again(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "closed-2").touch()
    job = lab.job("sweep_trial.py", "--batch", "{batch}", "--gates", str(tmp_path))
    with driving(lab, "--name", "g", *LOSS, "--param", "batch=2", "--", *job) as sweep:
        started = trial_run(lab, "sweep:g:1")
        os.kill(started["guard"]["pid"], signal.SIGKILL)
        sweep.kill()
    with driving(lab, "resume") as sweep:
        folder = lab.folder_of("sweep:g:1")
        assert folder is not None
        guard = until(
            lambda: (
                (now := lab.read(folder / "1" / "started.json")["guard"])["pid"] != started["guard"]["pid"]
                and now
            ),
            "a new guard",
        )
        assert alive(guard["pid"], guard["start"]) and alive(started["job"]["pid"])
        (tmp_path / "closed-2").unlink()
        assert sweep.wait(60) == 0
    (trial,) = status(lab)["trials"]
    assert trial["state"] == "done" and len(trial["tries"]) == 1 and trial["metric"] == pytest.approx(0.6)


def test_a_reboot_in_the_middle(lab: Lab, tmp_path: Path) -> None:
    """Everything is gone at once, and what was written down is of another boot."""
    (tmp_path / "closed-2").touch()
    job = lab.job("sweep_trial.py", "--batch", "{batch}", "--gates", str(tmp_path))
    with driving(lab, "--name", "r", *LOSS, "--param", "batch=2", "--", *job) as sweep:
        kill_all(sweep, trial_run(lab, "sweep:r:1"))
    folder = lab.folder_of("sweep:r:1")
    assert folder is not None
    for path in (folder / "run.json", folder / "1" / "started.json"):
        path.write_text(json.dumps({**lab.read(path), "boot_id": "b" * 36}))
    (tmp_path / "closed-2").unlink()
    done = lab.run("sweep", "resume", "--json")
    assert done.returncode == 0 and "it is tried again" in done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["state"] == "done" and len(trial["tries"]) == 2
    assert lab.read(folder / "1" / "verdict.json")["verdict"]["cause"] == "machine-down"


@pytest.mark.long
@pytest.mark.usefixtures("kernel_limit")
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_any_moment_nothing_is_repeated_or_lost(lab: Lab, seed: int) -> None:
    """Twelve kills at random moments, of the sweep alone or with all processes of its trials, two trials at once."""
    rng = random.Random(seed)
    batches = [8, 9, 10, 11, 12, 13, 14, 15, 300, 16, 17, 400]
    words = [
        "--name", "chaos", "--limit", "120M", "--grace", "1", "--parallel", "2", "--need", "100M", *LOSS,
        "--param", f"batch={','.join(map(str, batches))}",
        "--", *lab.job("sweep_trial.py", "--batch", "{batch}", "--seconds", "0.7"),
    ]  # fmt: skip
    for _ in range(12):
        made = (lab.state / "oomproof" / "sweeps" / "chaos" / "sweep.json").exists()
        with driving(lab, *(["resume", "chaos"] if made else words)) as sweep:
            with contextlib.suppress(subprocess.TimeoutExpired):
                sweep.wait(rng.uniform(0.2, 4.0))
            sweep.kill()
            if rng.random() < 0.5:
                kill_trials(lab)
            if sweep.poll() == 0:
                break
    done = lab.run("sweep", "resume", "chaos", "--retry-failed", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ends = {trial["values"]["batch"]: trial["state"] for trial in told["trials"]}
    assert list(ends) == [str(batch) for batch in batches]
    assert all(ends[str(batch)] == "done" for batch in batches if batch < 100), ends
    assert ends["300"] in ("out-of-memory", "skipped") and ends["400"] in ("out-of-memory", "skipped")
    finished: dict[str, int] = {}
    for folder in (lab.state / "oomproof" / "runs").iterdir():
        argv, code = (
            lab.read(folder / "run.json").get("argv") or [],
            lab.read(folder / "1" / "exit.json").get("code"),
        )
        if code == 0:
            batch = argv[argv.index("--batch") + 1]
            finished[batch] = finished.get(batch, 0) + 1
    assert finished == {str(batch): 1 for batch in batches if batch < 100}, "none that finished was run again"


def kill_trials(lab: Lab) -> None:
    """Fronts, keepers and jobs of all runs of this test."""
    mark = str(lab.state).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes()
                if mark in variables and b"OOMPROOF_SWEEP_TRY" in variables:
                    os.kill(int(entry.name), signal.SIGKILL)


def optuna_states(lab: Lab, name: str) -> dict[str, int]:
    path = lab.state / "oomproof" / "sweeps" / name / "optuna.sqlite"
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT state, count(*) FROM trials GROUP BY state").fetchall()
    finally:
        connection.close()
    return dict(rows)


@pytest.mark.usefixtures("kernel_limit")
def test_a_batch_that_does_not_fit_is_split_at_equal_effective_batch(lab: Lab) -> None:
    done = lab.run(
        "sweep", "--json", "--limit", "100M", "--grace", "1", *LOSS, "--param", "batch=200,16", "--param", "lr=0.1,0.2",
        "--", *lab.job("sweep_trial.py", "--batch", "{batch}", "--accum", "{accum}", "--lr", "{lr}"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    first, second = told["trials"][:2]
    assert [trial["state"] for trial in told["trials"]] == ["done"] * 4
    assert first["values"]["batch"] == "200" and len(first["tries"]) >= 2, "it died first"
    assert len(second["tries"]) == 1, "and what that taught the next one did not pay for"
    for trial in (first, second):
        micro, accum = int(trial["run_as"]["batch"]), int(trial["run_as"]["accum"])
        assert micro * accum == 200 and micro < 100
        output = (
            lab.state / "oomproof" / "runs" / trial["tries"][-1]["run"] / "1" / "output.log"
        ).read_text()
        assert "samples=200\n" in output
    assert "a smaller plan is tried" in done.stderr


def test_as_many_at_once_as_truly_fit(lab: Lab, small_machine: SmallMachine) -> None:
    """A machine of 1000 MiB with a margin of 250, of which the sweep takes some 150: two needs of 250 MiB fit, a third waits."""
    lab.prefix = small_machine(1000 << 20).prefix
    words = ["--parallel", "3", "--need", "250M", "--param", "lr=0.1,0.2,0.3,0.4"]
    job = lab.job("sweep_trial.py", "--batch", "16", "--lr", "{lr}", "--seconds", "1.5")
    done = lab.run("sweep", "--json", *words, "--", *job)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["done"] == 4
    spans = []
    for folder in (lab.state / "oomproof" / "runs").iterdir():
        started, ended = lab.read(folder / "1" / "started.json"), lab.read(folder / "1" / "exit.json")
        spans.append((started["boottime"], ended["boottime"]))
    at_once = max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)
    assert at_once == 2
    assert "none of them is called the best" in done.stderr


def test_ctrl_c_finishes_what_runs_and_again_stops_it_in_order(lab: Lab, tmp_path: Path) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "closed-2").touch()
    job = lab.job("sweep_trial.py", "--batch", "{batch}", "--gates", str(gates))
    with driving(lab, "--name", "c", "--grace", "1", "--param", "batch=2,3", "--", *job) as sweep:
        started = trial_run(lab, "sweep:c:1")
        sweep.send_signal(signal.SIGINT)
        assert sweep.stderr is not None
        lines = iter(sweep.stderr.readline, "")
        assert next(line for line in lines if "no further trial is started" in line)
        assert alive(started["job"]["pid"]), "the first one lets it finish"
        sweep.send_signal(signal.SIGINT)
        stdout, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert not alive(started["job"]["pid"])
    assert "1 waiting" not in stdout and "2 waiting" in stdout, (
        "it is queued again, with the one that never began"
    )
    (gates / "closed-2").unlink()
    assert lab.run("sweep", "resume").returncode == 0
    told = status(lab)
    assert told["counts"]["done"] == 2 and [len(trial["tries"]) for trial in told["trials"]] == [2, 1]


def test_stop_from_another_terminal(lab: Lab, tmp_path: Path) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "closed-2").touch()
    job = lab.job("sweep_trial.py", "--batch", "{batch}", "--gates", str(gates))
    with driving(lab, "--name", "s", "--grace", "1", "--param", "batch=2,3", "--", *job) as sweep:
        started = trial_run(lab, "sweep:s:1")
        stopped = lab.run("sweep", "stop", "s")
        assert stopped.returncode == 0 and "has stopped" in stopped.stderr
        assert sweep.wait(60) == 130
    assert not alive(started["job"]["pid"])
    assert status(lab)["trials"][0]["state"] == "waiting"


def test_a_script_that_always_fails_ends_the_sweep_and_is_retried_when_mended(
    lab: Lab, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit('no such dataset')\n")
    words = ["--name", "f", "--param", "lr=1,2,3,4", *LOSS, "--", *lab.job("x")[:1], str(script), "{lr}"]
    failed = lab.run("sweep", *words)
    assert failed.returncode == 1
    assert "given up: the first 3 trials failed, none for memory" in failed.stderr
    assert len(list((lab.state / "oomproof" / "runs").iterdir())) == 3
    script.write_text("import sys, oomproof\noomproof.report_metric(loss=float(sys.argv[1]))\n")
    again = lab.run("sweep", "resume", "--retry-failed", "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert [trial["metric"] for trial in told["trials"]] == [1.0, 2.0, 3.0, 4.0] and told["best"] == 1
    assert told["trials"][0]["metric_source"] == "oomproof.report_metric"


def test_a_metric_that_never_appears(lab: Lab) -> None:
    words = ["--param", "lr=0.1..0.9", "--trials", "6", "--metric", "val_acc", "--goal", "maximize"]
    done = lab.run(
        "sweep", *words, "--", *lab.job("sweep_trial.py", "--batch", "1", "--seconds", "0", "--lr", "{lr}")
    )
    assert done.returncode == 1
    assert "trial 1 is done, but reported no val_acc; it printed loss" in done.stderr
    assert done.stderr.count("reported no val_acc") == 1, "said once"
    assert "given up: 3 trials are done and none reported val_acc" in done.stderr


@pytest.mark.usefixtures("kernel_limit")
def test_a_trial_of_an_agent_dies_and_the_agent_lives_on(lab: Lab, tmp_path: Path) -> None:
    """Not wandb's own agent, which needs its server: a parent that starts trials in turn, as that one does."""
    trial = tmp_path / "trial.py"
    trial.write_text(
        "import os, sys, time\n"
        "held = bytearray(b'x') * (24 << 20)\n"
        "print('waiting', sys.argv[1], os.getpid(), flush=True)\n"
        "if sys.argv[1] == '--batch=77':\n"
        "    raise RuntimeError('CUDA out of memory. Tried to allocate 9.00 GiB')\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.02)\n"
        "if sys.argv[1] == '--batch=99':\n"
        "    more = bytearray(b'x') * (200 << 20)\n"
    )
    first, last, said = tmp_path / "first", tmp_path / "last", tmp_path / "said"
    values = [f"--batch=99 {first}", "--batch=77", f"--batch=8 {last}"]
    with open(said, "w") as messages:
        job = lab.job("trial_agent.py", str(trial), *values)
        running = lab.start("agent", "--limit", "100M", "--", *job, stderr=messages)
        running.output_has("waiting --batch=99")
        seen_by_the_sampler(lab, running.attempt)
        victim = int(_text(running.attempt / "output.log").split()[2])
        running.process.send_signal(signal.SIGSTOP)  # the kernel, not the guard, is to end it
        first.touch()
        until(lambda: not alive(victim), "the kernel to kill the trial")
        running.process.send_signal(signal.SIGCONT)
        until(
            lambda: "the kernel killed" in _text(said) and "ran out of memory" in _text(said),
            "both to be told",
        )
        meanwhile = lab.run("why", "agent").stdout
        last.touch()
        assert running.wait() == 0, "the agent lives on"
    told = [line for line in _text(said).splitlines() if "the job that started it continues" in line]
    assert ["--batch=99" in line for line in told] == [True, False] and "--batch=77" in told[1]
    assert "still running, but 2 programs that it started ran out of memory" in meanwhile
    verdict = lab.verdict("agent")["verdict"]
    assert verdict["headline"] == "finished, but 2 programs that it started ran out of memory on the way"
    assert "--batch=99" in verdict["why"] and "killed by the kernel for memory" in verdict["why"]
    assert "--batch=77" in verdict["why"] and "RuntimeError at" in verdict["why"]
    assert "--batch=8 " not in verdict["why"], "the innocent"


@pytest.mark.long
@pytest.mark.usefixtures("kernel_limit")
def test_wandbs_own_agent_lives_on(lab: Lab, tmp_path: Path) -> None:
    """`wandb agent` as it is, against as much of its server as it asks for. Whoever ends the trial, guard or kernel, it alone is ended."""
    wandb = os.environ.get("OOMPROOF_WANDB") or shutil.which("wandb")
    if wandb is None:
        pytest.skip("wandb is not installed (OOMPROOF_WANDB names its command)")
    (tmp_path / "trial.py").write_text(
        "import argparse, time\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch', type=int)\n"
        "batch, held = parser.parse_args().batch, []\n"
        "for _ in range(batch): held.append(bytearray(b'x') * (8 << 20)); time.sleep(0.02)\n"
        "print('trial is done', batch, flush=True)\n"
    )
    port, said = tmp_path / "port", tmp_path / "said"
    trials = [json.dumps({"batch": batch}) for batch in (4, 200, 5)]
    server = subprocess.Popen(lab.job("wandb_server.py", str(port), "trial.py", *trials))
    try:
        until(lambda: _text(port), "the server to listen")
        lab.environment.update(WANDB_BASE_URL=f"http://127.0.0.1:{_text(port)}", WANDB_API_KEY="0" * 40)
        with open(said, "w") as messages:
            command = ("--limit", "600M", "--", wandb, "agent", "me/p/abcd1234")
            running = lab.start("agent", *command, stderr=messages, cwd=tmp_path)
            assert running.wait() == 0, "the agent lives on"
    finally:
        server.kill()
        server.wait()
    output = _text(running.attempt / "output.log")
    assert [f"trial is done {batch}" in output for batch in (4, 200, 5)] == [True, False, True]
    verdict = lab.verdict("agent")["verdict"]
    assert verdict["headline"] == "finished, but a program that it started ran out of memory on the way"
    assert "--batch=200" in verdict["why"] and "killed by" in verdict["why"]


def seen_by_the_sampler(lab: Lab, attempt: Path) -> None:
    """A row of the trial's process stands in the recording."""

    def rows() -> int:
        try:
            connection = sqlite3.connect(f"file:{attempt / 'recording.sqlite'}?mode=ro", uri=True)
            try:
                query = "SELECT count(*) FROM process WHERE role != 'main' AND anon > ?"
                return int(connection.execute(query, (20 << 20,)).fetchone()[0])
            finally:
                connection.close()
        except sqlite3.Error:
            return 0

    until(rows, "the sampler to have seen the trial")
