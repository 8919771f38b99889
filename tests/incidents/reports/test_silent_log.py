"""I2 as its user has it: a training log that stops in the middle of a bar. Rebuilt from the report's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oomproof.diagnosis.judge import judge_texts
from oomproof.diagnosis.silent_end import with_log_file
from oomproof.diagnosis.verdict import Verdict
from oomproof.evidence.case_file import KernelFault, KernelKill
from oomproof.evidence.log_file import LogFile, log_file
from oomproof.evidence.texts.text_case import read_texts
from oomproof.records import replace

LONG_AGO = 1_700_000_000.0
GIB = 1 << 30


def bar(step: int, total: int = 1122, epoch: str = "Epoch 1/30", seconds: int = 59) -> str:
    done = 10 * step // total
    clock = f"{seconds // 60:02d}:{seconds % 60:02d}<01:22"
    return (
        f"{epoch}: {100 * step // total:3d}%|{'█' * done:10}| {step}/{total} [{clock}, 7.93it/s, loss=0.41]"
    )


def log(folder: Path, step: int, **more: Any) -> Path:
    lines = [
        "Using device: cpu",
        "loaded vectors.npz (11 GB)",
        "batch_size=32 gradient_accumulation_steps=16",
    ]
    path = folder / f"train{step}.log"
    path.write_text("\n".join(lines) + "\n" + "\r".join(bar(n, **more) for n in range(1, step + 1)))
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def told(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "oomproof", "why", *words, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    value: dict[str, Any] = json.loads(answer.stdout)
    return value


def known(folder: Path, file: LogFile | None) -> Verdict:
    case = read_texts([str(log(folder, 472))])
    return judge_texts(replace(case, log_file=file))


def share(verdict: Verdict, cause: str) -> float:
    return next((reading.probability for reading in verdict.causes if reading.cause == cause), 0.0)


# the log alone


def test_a_log_that_stops_inside_a_bar_is_a_silent_death(tmp_path: Path) -> None:
    answer = told(str(log(tmp_path, 472)))
    verdict = answer["verdict"]
    assert verdict["cause"] == "silent-end" and verdict["certainty"] == "likely"
    assert verdict["headline"] == "died without a word at step 472 of 1122 in epoch 1 of 30"
    assert "not at the epoch's end: 650 steps were left" in verdict["why"]
    assert "its last bar had run 59 s" in verdict["why"]
    assert "no crash found" not in json.dumps(answer)
    assert "oomproof run -- CMD" in verdict["next"]
    assert (verdict["step"], verdict["phase"]) == (472, "train")


def test_its_causes_are_ranked_each_with_a_test(tmp_path: Path) -> None:
    causes = told(str(log(tmp_path, 472)))["causes"]
    assert sum(cause["probability"] for cause in causes) == pytest.approx(1.0)
    shares = [cause["probability"] for cause in causes]
    assert shares == sorted(shares, reverse=True)
    assert {"oom-kill-global", "segfault", "interrupted", "machine-down"} <= {c["cause"] for c in causes}
    assert all(cause["test"] for cause in causes)


def test_why_and_why_all_say_the_same(tmp_path: Path) -> None:
    paths = [str(log(tmp_path, step, seconds=step // 8)) for step in (117, 464, 472, 927, 951)]
    together = told("--all", *paths)
    assert [death["cause"] for death in together["deaths"]] == ["silent-end"] * 5
    assert {told(path)["verdict"]["cause"] for path in paths} == {"silent-end"}
    assert {death["uptime"] for death in together["deaths"]} == {14.0, 58.0, 59.0, 115.0, 118.0}
    ends = next(each for each in together["statements"] if each["topic"] == "epoch ends")
    assert ends["found"] == "excluded" and "not tied to epoch ends" in ends["text"]


def test_at_an_epochs_end_it_says_so(tmp_path: Path) -> None:
    verdict = told(str(log(tmp_path, 1122)))["verdict"]
    assert verdict["cause"] == "silent-end"
    assert "at an epoch's end, where a training evaluates and saves" in verdict["why"]


@pytest.mark.parametrize("between", ["\r", "\n"])
def test_the_epoch_may_stand_on_a_line_of_its_own(tmp_path: Path, between: str) -> None:
    """Hundreds of bars below `Epoch 2/30`, none of which repeats it."""
    bars = between.join(bar(n, epoch="").removeprefix(":") for n in range(1, 473))
    path = tmp_path / "train.log"
    path.write_text(f"Using device: cpu\nEpoch 1/30\n{bar(1122, epoch='')}\nEpoch 2/30\n{bars}")
    os.utime(path, (LONG_AGO, LONG_AGO))
    verdict = judge_texts(read_texts([str(path)]))
    assert verdict.headline == "died without a word at step 472 of 1122 in epoch 2 of 30"
    assert "not at the epoch's end: 650 steps were left" in verdict.why


def test_wherever_the_last_bar_is_cut(tmp_path: Path) -> None:
    """`473/112` of 1122 was told as step 473 of 112, "at an epoch's end"."""
    whole, last = "\r".join(bar(n) for n in range(1, 473)), bar(473)
    path = tmp_path / "train.log"
    for end in range(len(last)):
        path.write_text(f"{whole}\r{last[:end]}")
        verdict = judge_texts(read_texts([str(path)]))
        assert verdict.cause == "silent-end" and verdict.step in (472, 473), last[:end]
        assert "of 1122 in epoch 1 of 30" in verdict.headline, (last[:end], verdict.headline)
        assert "not at the epoch's end" in verdict.why and "had run 59 s" in verdict.why, last[:end]


def test_a_first_bar_that_is_cut_tells_no_place_in_the_epoch(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(bar(472)[:30])
    verdict = judge_texts(read_texts([str(path)]))
    assert verdict.cause == "silent-end" and "at an epoch's end" not in verdict.why, verdict.why


@pytest.mark.parametrize(
    "end",
    [
        "\nTraining complete.\n",
        "\nTraceback (most recent call last):\n  File 'a.py', line 3, in <module>\nKeyError: 'x'\n",
        "\nKilled\n",
        "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    ],
)
def test_a_log_with_an_end_is_no_silent_one(tmp_path: Path, end: str) -> None:
    path = log(tmp_path, 472)
    path.write_text(path.read_text() + end)
    verdict = judge_texts(read_texts([str(path)]))
    assert verdict.cause != "silent-end"
    assert not any("the log stops here" in item.says for item in verdict.evidence)


def test_a_finished_bar_and_a_count_without_an_end_are_no_deaths(tmp_path: Path) -> None:
    for text in (bar(1122, epoch="Epoch 30/30"), "step 10 loss 0.3\nstep 11 loss 0.8"):
        path = tmp_path / "train.log"
        path.write_text(text)
        os.utime(path, (LONG_AGO, LONG_AGO))
        assert told(str(path))["verdict"]["cause"] == "not-a-crash"


# who still writes it


def test_a_log_that_a_process_has_open_is_still_running(tmp_path: Path) -> None:
    path = log(tmp_path, 472)
    program = "import sys; file = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == "open\n"
        verdict = told(str(path))["verdict"]
        together = told("--all", str(path))
        writer.stdin.close()
    assert verdict["cause"] == "not-a-crash"
    assert f"(pid {writer.pid}) has {path.name} open for writing" in verdict["headline"]
    assert "stuck?" in verdict["headline"]  # not written for years
    assert together["deaths"] == []
    assert told(str(path))["verdict"]["cause"] == "silent-end"  # and when it is gone


def test_somebody_who_only_reads_it_is_no_sign_of_life(tmp_path: Path) -> None:
    path = log(tmp_path, 472)
    with path.open():
        found = subprocess.run(
            [sys.executable, "-m", "oomproof", "why", str(path), "--short"], capture_output=True, text=True
        )
    assert "died without a word" in found.stdout


def test_a_log_that_changed_just_now_may_still_run(tmp_path: Path) -> None:
    path = log(tmp_path, 472)
    now = time.time()
    os.utime(path, (now, now))
    verdict = told(str(path))["verdict"]
    assert verdict["cause"] == "not-a-crash" and verdict["headline"].startswith("still running?")


def test_a_fresh_copy_tells_its_own_date(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("2025-09-01 10:00:00 Epoch 1 batch 117/2310 loss 0.43\n")
    case = with_log_file(read_texts([str(path)]))
    assert judge_texts(case).cause == "silent-end"


# what this machine knows


def test_a_machine_that_killed_nothing_rules_the_kernel_out(tmp_path: Path) -> None:
    verdict = known(tmp_path, LogFile(2000.0, 9e5, booted=1000.0, counted=0, log_readable=True))
    assert share(verdict, "oom-kill-global") < 0.05 and share(verdict, "machine-down") < 0.05
    assert "has killed nothing for memory since it booted" in verdict.why
    assert "dmesg" not in verdict.next and "killed process" not in verdict.next


def test_a_kill_of_python_then_leads(tmp_path: Path) -> None:
    kill = KernelKill(
        1010.0, 4242, "python3", "CONSTRAINT_NONE", anon_rss=50 * GIB, text="Killed process 4242"
    )
    file = LogFile(2000.0, 9e5, booted=1000.0, counted=1, log_readable=True, kills=(kill,))
    verdict = known(tmp_path, file)
    assert verdict.causes[0].cause == "oom-kill-global" and verdict.causes[0].probability > 0.9
    assert "killed python3 (pid 4242), which held 50" in verdict.why
    other = known(tmp_path, replace(file, kills=(replace(kill, name="chrome"),)))
    assert other.causes[0].probability < 0.9 and "chrome" in other.why


def test_a_fault_of_python_then_leads(tmp_path: Path) -> None:
    fault = KernelFault(1010.0, 4242, "python3", "segfault", "libfaiss.so", text="segfault at 0")
    verdict = known(
        tmp_path, LogFile(2000.0, 9e5, booted=1000.0, counted=0, log_readable=True, faults=(fault,))
    )
    assert verdict.causes[0].cause == "segfault" and verdict.causes[0].probability > 0.8


def test_a_boot_soon_after_points_at_the_machine(tmp_path: Path) -> None:
    soon = known(tmp_path, LogFile(2000.0, 9e5, booted=2300.0))
    late = known(tmp_path, LogFile(2000.0, 9e5, booted=200_000.0))
    assert soon.causes[0].cause == "machine-down" and "this machine booted 5 min" in soon.why
    assert share(late, "machine-down") < 0.1


def test_on_apples_gpu_it_is_macos_that_kills(tmp_path: Path) -> None:
    verdict = known(tmp_path, LogFile(2000.0, 9e5, device="mps"))
    assert share(verdict, "oom-kill-global") == 0.0 and share(verdict, "jetsam") > 0.2


def test_a_kernel_log_beside_it_that_tells_of_nothing(tmp_path: Path) -> None:
    kernel = tmp_path / "dmesg.txt"
    kernel.write_text("[  100.000000] usb 1-1: new device\n[ 9000.000000] eth0: link up\n")
    verdict = told(str(log(tmp_path, 472)), str(kernel))
    assert verdict["verdict"]["cause"] == "silent-end"
    assert "dmesg.txt has no kill and no crash" in verdict["verdict"]["why"]
    assert verdict["causes"][0]["cause"] not in ("oom-kill-global", "segfault")


def test_its_file_is_looked_up_in_the_log_of_this_boot(tmp_path: Path) -> None:
    path = log(tmp_path, 472)
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "stat").write_text(f"btime {int(LONG_AGO - 1000)}\n")
    (proc / "vmstat").write_text("pgfault 1\noom_kill 2\n")
    kmsg = tmp_path / "kmsg"
    kmsg.write_text("")
    found = log_file(
        str(path), proc=str(proc), kmsg=str(kmsg), journalctl="/nonexistent", now=LONG_AGO + 5000
    )
    assert found is not None and (found.age, found.counted, found.device) == (5000.0, 2, "cpu")
