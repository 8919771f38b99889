"""What the agent left behind, in the verdict: the step at death, the Python line of a crash, whose crash it was."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest
from helpers_case import END, LEADER, WALL, Attempt

from oomproof.diagnosis.judge import judge


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(tmp_path)
    (made.dir / "agent").mkdir()
    return made


def fault(attempt: Attempt, kind: str, pid: int = LEADER, before: float = 0.1) -> None:
    path = attempt.dir / "agent" / f"{pid}-fault.txt"
    path.write_text(
        f"Fatal Python error: {kind}\n\nCurrent thread 0x00007f02 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/train.py", line 12 in collate\n'
        '  File "/home/me/train.py", line 40 in <module>\n'
    )
    os.utime(path, (WALL + END - before,) * 2)


def test_the_record_is_exact_where_the_recording_is_a_second_old(attempt: Attempt) -> None:
    attempt.ended(signal=signal.SIGKILL)
    text = (
        f"1 {END - 0.25:.3f} 464 -1 eval".ljust(159) + "\n" + "/home/me/train.py:57 in main".ljust(239) + "\n"
    )
    (attempt.dir / "agent" / f"{LEADER}-now.txt").write_text(text)
    verdict = attempt.verdict()
    assert (verdict.phase, verdict.step) == ("eval", 464)
    (position,) = [each for each in verdict.evidence if each.id == "agent.position"]
    assert (
        position.text
        == "phase eval, step 464, 0.2 s before the end; steps are made at /home/me/train.py:57 in main"
    )


def test_the_output_that_lags_behind_it_tells_no_other_step(attempt: Attempt) -> None:
    """Step 173 of a bar that is drawn now and then, beside the agent's 187, both "the last"."""
    attempt.output = b"step 173 of 188 loss 0.3\nTraceback (most recent call last):\nKeyError: 'x'\n"
    attempt.ended(code=1)
    text = f"1 {END - 0.25:.3f} 187 -1 train".ljust(159) + "\n" + "/home/me/train.py:57 in main".ljust(239)
    (attempt.dir / "agent" / f"{LEADER}-now.txt").write_text(text + "\n")
    verdict = attempt.verdict()
    assert verdict.cause == "other-error" and verdict.step == 187
    assert "173" not in verdict.why, verdict.why


def test_without_an_agent_the_recording_tells(attempt: Attempt) -> None:
    verdict = attempt.verdict()
    assert (verdict.phase, verdict.step) == ("train", 117)


@pytest.mark.parametrize(
    ("number", "kind", "cause"),
    [
        (signal.SIGSEGV, "Segmentation fault", "segfault"),
        (signal.SIGABRT, "Aborted", "abort"),
    ],
)
def test_a_crash_is_told_with_its_line(attempt: Attempt, number: int, kind: str, cause: str) -> None:
    attempt.ended(signal=number)
    fault(attempt, kind)
    verdict = attempt.verdict()
    assert verdict.cause == cause and "/home/me/train.py:12" in verdict.headline
    assert "inside string_at (ctypes/__init__.py:519)" in verdict.why
    assert f"agent/{LEADER}-fault.txt" in verdict.next and "PYTHONFAULTHANDLER" not in verdict.next
    assert any(each.id == "agent.crash.1" for each in verdict.evidence)


def test_what_to_try_on_a_crash_is_what_is_true_of_it(attempt: Attempt) -> None:
    attempt.ended(signal=signal.SIGSEGV)
    attempt.processes = [(LEADER, "main", "python3")]
    fault(attempt, "Segmentation fault")
    remedies = attempt.verdict().remedies
    assert [remedy.command for remedy in remedies] == ["gdb -batch -ex run -ex bt --args python train.py"]

    attempt.run |= {"argv": ["python", "train.py", "--workers", "4"], "flags": {"limit": "8G"}}
    attempt.run["env"] = {"LD_PRELOAD": "libjemalloc.so.2"}
    path = attempt.dir / "agent" / f"{LEADER}-fault.txt"
    path.write_text(path.read_text().replace("/usr/lib/python3.11/ctypes/", "/x/site-packages/faiss/"))
    preload, version, workers, _ = attempt.verdict().remedies
    assert preload.command == "env -u LD_PRELOAD oomproof run --limit 8G -- python train.py --workers 4"
    assert version.change is not None and version.change.key == "faiss" and version.command is None
    assert workers.command == "oomproof run --limit 8G -- python train.py --workers 0"

    attempt.run["argv"] = ["sh", "-c", "python train.py 2>&1 | tee log"]
    assert attempt.verdict().remedies[-1].command == "gdb -batch -ex run -ex bt --args python train.py"
    attempt.run["argv"] = ["sh", "-c", "cd /x && python train.py"]
    assert all("gdb" not in (remedy.command or "") for remedy in attempt.verdict().remedies), (
        "not in that folder"
    )

    attempt.exit["core"] = True
    assert attempt.verdict().remedies[-1].command == "cat /proc/sys/kernel/core_pattern"


def test_a_shells_word_is_less_than_the_line_that_aborted(attempt: Attempt) -> None:
    attempt.ended(code=134)
    attempt.output = b"Aborted\n"
    assert "read the lines before it" in attempt.verdict().next
    fault(attempt, "Aborted")
    verdict = attempt.verdict()
    assert verdict.cause == "abort" and "/home/me/train.py:12" in verdict.headline
    assert "read the lines before it" not in verdict.next
    attempt.output = b"libfoo: the card is on fire\nAborted: no such card\n"
    assert attempt.verdict().cause == "abort"


def test_a_bus_error_names_the_line_too(attempt: Attempt) -> None:
    attempt.ended(signal=signal.SIGBUS)
    fault(attempt, "Bus error")
    verdict = attempt.verdict()
    assert verdict.cause == "bus-error" and "/home/me/train.py:12 in collate" in verdict.why


def test_a_crash_of_another_kind_is_not_this_one(attempt: Attempt) -> None:
    """A helper aborted and the job went on; the segfault that ended it left no stack."""
    attempt.ended(signal=signal.SIGSEGV)
    fault(attempt, "Aborted", pid=5000)
    verdict = attempt.verdict()
    assert verdict.cause == "segfault" and "train.py:12" not in verdict.headline
    assert "PYTHONFAULTHANDLER=1" in verdict.next


def test_a_rank_that_crashed_explains_the_launchers_failure(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b"Traceback (most recent call last):\n  File 'x'\nChildFailedError: script.py FAILED\n"
    fault(attempt, "Segmentation fault", pid=4100, before=2.0)
    verdict = attempt.verdict()
    assert verdict.cause == "segfault" and verdict.victim is not None and verdict.victim.pid == 4100


def test_a_crash_of_long_ago_does_not(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.output = b"Traceback (most recent call last):\n  File 'x'\nValueError: no such column\n"
    fault(attempt, "Segmentation fault", pid=4100, before=600.0)
    assert attempt.verdict().cause == "other-error"


def test_a_finished_job_with_a_crashed_helper_is_finished(attempt: Attempt) -> None:
    fault(attempt, "Segmentation fault", pid=4100)
    assert attempt.verdict().cause == "finished"


def test_damaged_files_cost_nothing(attempt: Attempt) -> None:
    folder = attempt.dir / "agent"
    (folder / "x-fault.txt").write_text("Fatal Python error: Aborted\n")
    (folder / "7-fault.txt").write_bytes(b"\xff\xfe\x00Fatal Python error")
    (folder / "8-now.txt").write_bytes(b"\x00" * 400)
    (folder / "9-fault.txt").mkdir()
    assert attempt.verdict().cause == "finished"


def test_events_from_inside_are_evidence(attempt: Attempt) -> None:
    attempt.ended(code=1)
    attempt.case()
    db = sqlite3.connect(attempt.dir / "recording.sqlite")
    db.execute(
        "INSERT INTO event VALUES(?,?,?,NULL)", (END - 1, "exception", "ValueError at train.py:3 in main")
    )
    db.execute("INSERT INTO event VALUES(?,?,?,NULL)", (END - 9, "saved", "saved out/checkpoint-7 at step 7"))
    db.commit()
    db.close()
    texts = {each.id: each.text for each in attempt.collect().evidence}
    assert texts["agent.exception.1"] == "ValueError at train.py:3 in main"
    assert texts["agent.saved.1"] == "saved out/checkpoint-7 at step 7"


@pytest.mark.parametrize("end", [b"ConnectionResetError: [Errno 104] Connection reset by peer\n", b""])
def test_a_lost_worker_is_told_whatever_the_parent_stumbled_over(attempt: Attempt, end: bytes) -> None:
    attempt.ended(code=1)
    attempt.output = b"Traceback (most recent call last):\n  File 'x'\n" + end + b"lost sys.stderr\n"
    attempt.case()
    db = sqlite3.connect(attempt.dir / "recording.sqlite")
    text = "DataLoader worker (pid 4100) is killed by signal: Killed."
    db.execute("INSERT INTO event VALUES(?,?,?,NULL)", (END - 1, "worker-lost", text))
    db.commit()
    db.close()
    verdict = judge(attempt.collect())
    assert verdict.cause == "dataloader-killed" and "4100" in verdict.headline
